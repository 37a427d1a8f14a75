"""The law with stopping by the price and deadlines switched on: exact, and a biased trimmer is still seen.

Drafts come from the drafter's own rounds (`tests.law.stopping`), two rounds at least, every branch enumerated.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import product

import pytest

from pilotfish.confidence import Calibration
from pilotfish.draft import Draft
from tests.law import reference, wrong
from tests.law.enumeration import (
    Chance,
    TargetLaw,
    Tokens,
    enumerate_law,
    largest_difference,
    text_law,
    total_variation,
)
from tests.law.programs import independent_law, keyed_law
from tests.law.reference import Decide
from tests.law.stopping import Limits, Peeking, draw_stopped
from tests.law.tables import DrawDraft, Pair

LOGGER = logging.getLogger(__name__)  # pytest --log-cli-level=INFO shows what was measured
EXACT = 1e-12
CALIBRATION = Calibration(0.4, 1.1)
LIMITS = Limits(3, num_in_time=2, calibration=CALIBRATION, prices=(0.7, 0.5, 0.6), step_price=0.05)
PAIR = Pair(3, seed=23)
SMALL = Pair(2, seed=13)
MASKED = wrong.masked(PAIR.p, forbidden=1)
CHAIN_RULES = [reference.token, reference.block]
RULES = [*CHAIN_RULES, reference.match]


def bias(draw: DrawDraft, decide: Decide, target: TargetLaw = PAIR.p) -> float:
    """Share of the texts of two rounds that come out wrong."""
    return total_variation(keyed_law(draw, decide, target, 4), text_law(target, 4))


@pytest.mark.parametrize(("pair", "gamma_in_time"), [(PAIR, 2), (PAIR, 3), (SMALL, 2), (SMALL, 3)])
def test_stopping_cuts_drafts_by_their_content(pair: Pair, gamma_in_time: int) -> None:
    """What is exact below is not so for want of stopping: at one and the same base drafts come longer and shorter."""
    draw = draw_stopped(pair, Limits(3, gamma_in_time, CALIBRATION, LIMITS.prices))
    contexts = [context for size in range(3) for context in product(range(pair.num_ids), repeat=size)]
    lengths = [{len(draft) for draft in enumerate_law(partial(_swap, draw, context))} for context in contexts]
    assert max(map(len, lengths)) > 1
    assert max(map(max, lengths)) == gamma_in_time


def _swap(draw: DrawDraft, tokens: Tokens, chance: Chance) -> Draft:
    return draw(chance, tokens)


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize("seed", [23, 41, 42])
@pytest.mark.parametrize(("num_in_time", "step_price"), [(1, 0.0), (2, 0.1), (3, 0.0), (3, 0.1), (3, 0.3)])
def test_stopping_by_the_price_is_exact(decide: Decide, seed: int, num_in_time: int, step_price: float) -> None:
    """Whatever γ, deadline and price, which may hang on what is committed, two rounds have the target's law."""
    pair = Pair(3, seed=seed)
    limits = Limits(3, num_in_time, CALIBRATION, LIMITS.prices, step_price)
    law = independent_law(draw_stopped(pair, limits), decide, pair.p, 5)
    assert largest_difference(law, text_law(pair.p, 5)) < EXACT


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize("prices", [(0.0,), (0.6,), (0.8, 0.7)])
def test_stopping_with_the_keys_of_the_services_is_exact(decide: Decide, prices: tuple[float, ...]) -> None:
    """Drafts that end early leave uniforms unused, and no later round meets them."""
    draw = draw_stopped(SMALL, Limits(3, 3, CALIBRATION, prices, step_price=0.1))
    assert bias(draw, decide, SMALL.p) < EXACT


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize("num_free", [(1, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("num_verified", [1, 3])
def test_stopped_drafts_that_come_late_are_exact(decide: Decide, num_free: tuple[int, int], num_verified: int) -> None:
    """The tail of a stopped draft is used after the session ran free, as far as it had come when patience ended."""
    draw = wrong.in_time(draw_stopped(SMALL, Limits(3, 3, CALIBRATION, LIMITS.prices, 0.1)), num_verified)
    law = keyed_law(draw, decide, SMALL.p, 6, num_free)
    assert largest_difference(law, text_law(SMALL.p, 6)) < EXACT


TRIMMERS: list[tuple[str, DrawDraft, TargetLaw, float]] = [
    ("asking for the price of the drawn token", draw_stopped(PAIR, LIMITS, Peeking), PAIR.p, 0.08),
    (
        "dropping a drawn token that is unlikely",
        wrong.dropping_unlikely(draw_stopped(PAIR, LIMITS), 0.3),
        PAIR.p,
        0.03,
    ),
    (
        "trimming a batch by confidence",
        wrong.trimming_a_batch(draw_stopped(PAIR, LIMITS), draw_stopped(Pair(2, seed=37), LIMITS), 2),
        PAIR.p,
        0.005,
    ),
    ("dropping a forbidden token", wrong.dropping_forbidden(draw_stopped(PAIR, LIMITS), forbidden=1), MASKED, 0.02),
    (
        "dropping a late draft as a whole",
        wrong.dropping_late(draw_stopped(PAIR, LIMITS), 0.4, num_in_time=1),
        PAIR.p,
        0.01,
    ),
]


@pytest.mark.parametrize(("name", "draw", "target", "floor"), TRIMMERS, ids=[name for name, *_ in TRIMMERS])
@pytest.mark.parametrize("decide", CHAIN_RULES)
def test_trimmer_is_caught_beside_stopping(
    name: str, draw: DrawDraft, target: TargetLaw, floor: float, decide: Decide
) -> None:
    """Stopping and deadlines hide none of the trimmers."""
    measured = bias(draw, decide, target)
    LOGGER.info("%s: %.6f", name, measured)
    assert measured > floor > EXACT


@pytest.mark.parametrize(("name", "draw", "target", "floor"), TRIMMERS, ids=[name for name, *_ in TRIMMERS])
def test_trimming_beside_stopping_is_exact_under_match(
    name: str, draw: DrawDraft, target: TargetLaw, floor: float
) -> None:
    """Under match any trimming leaves the law as it is, stopped drafts or not."""
    assert bias(draw, reference.match, target) < EXACT
