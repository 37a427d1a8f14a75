"""Planted faults: each fails the comparison that the right rules pass to 1e-12, by at least the floor it names.

The floors are half of what was measured or less; docs/law.md has the measured values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.law import reference, wrong
from tests.law.batched import batched_law
from tests.law.enumeration import Chance, TargetLaw, Tokens, enumerate_law, extend, text_law, total_variation
from tests.law.programs import keyed_law
from tests.law.reference import Decide
from tests.law.tables import DrawDraft, Pair, draw_chain, draw_tree
from verifier.acceptance import block, token
from verifier.acceptance.chain import ChainRule

LOGGER = logging.getLogger(__name__)  # pytest --log-cli-level=INFO shows what was measured
EXACT = 1e-12
PAIR = Pair(3, seed=23)
SMALL = Pair(2, seed=23)
FINE = Pair(3, seed=23, num_bits=32)
MASKED = wrong.masked(PAIR.p, forbidden=1)
CHAIN = draw_chain(PAIR, 2)
AHEAD_FLOOR = 0.07
PlayAhead = Callable[[Chance, DrawDraft, Decide, TargetLaw, tuple[int, int]], Tokens]


def bias(draw: DrawDraft, decide: Decide, target: TargetLaw = PAIR.p) -> float:
    """Share of the texts of two rounds that come out wrong."""
    return total_variation(keyed_law(draw, decide, target, 4), text_law(target, 4))


@dataclass(frozen=True)
class Tooth:
    """A fault and the least it must show."""

    name: str
    draw: DrawDraft
    decide: Decide
    floor: float
    target: TargetLaw = PAIR.p


RULES = [
    Tooth("argmax veto", CHAIN, wrong.argmax_veto, 0.05),
    Tooth("take the draft when the target agrees", CHAIN, wrong.agreement, 0.08),
    Tooth("drawing from p after a rejection", CHAIN, wrong.correction_from_p, 0.1),
    Tooth("residual not renormalised", CHAIN, wrong.residual_not_renormalised, 0.07),
    Tooth("position-keyed uniforms", draw_chain(SMALL, 2), wrong.block_keyed_by_position, 0.02, SMALL.p),
    Tooth("longest accepted path of a tree", draw_tree(SMALL, (-1, -1, 0, 1)), wrong.longest_path, 0.05, SMALL.p),
]
SAYINGS = [
    Tooth(
        "parameters on the target only",
        wrong.says_otherwise(PAIR, 2, wrong.truncated(2)),
        wrong.forgiving_token,
        0.01,
        wrong.cut(PAIR.p, 2),
    ),
    Tooth("q at another temperature", wrong.says_otherwise(PAIR, 2, wrong.at_temperature(0.7)), reference.token, 0.02),
    Tooth("truncated q", wrong.says_otherwise(PAIR, 2, wrong.truncated(2)), wrong.forgiving_token, 0.01),
    Tooth("q in 16 bits, tokens from 32", wrong.says_otherwise(FINE, 2, wrong.rounded(16)), reference.token, 1e-7),
    Tooth("a liar under token", wrong.always(1, claimed=0.1), reference.token, 0.1, SMALL.p),
]
TRIMMERS: list[tuple[str, DrawDraft, TargetLaw, float]] = [
    ("dropping a drawn token that is unlikely", wrong.dropping_unlikely(CHAIN, 0.3), PAIR.p, 0.04),
    ("trimming a batch by confidence", wrong.trimming_a_batch(CHAIN, draw_chain(Pair(2, seed=37), 2), 2), PAIR.p, 0.04),
    ("dropping a forbidden token", wrong.dropping_forbidden(CHAIN, forbidden=1), MASKED, 0.03),
    ("dropping a late draft as a whole", wrong.dropping_late(CHAIN, 0.4, num_in_time=1), PAIR.p, 0.05),
]
ALLOWED: list[tuple[str, DrawDraft, TargetLaw]] = [
    ("stopping by the shape of q", wrong.stopping_by_shape(CHAIN, 0.6), PAIR.p),
    ("stopping after a token that is sent", wrong.stopping_after_unlikely(CHAIN, 0.4), PAIR.p),
    ("nodes that came in time", wrong.in_time(wrong.stopping_after_unlikely(CHAIN, 0.4), 1), PAIR.p),
    ("masking q before drawing", wrong.masked_before_drawing(PAIR, 2, forbidden=1), MASKED),
    ("coarse q that was drawn from", draw_chain(Pair(3, seed=23, num_bits=2), 2), PAIR.p),
]
CHAIN_RULES = [reference.token, reference.block]


def named(values: list[tuple[str, DrawDraft, TargetLaw, float]] | list[tuple[str, DrawDraft, TargetLaw]]) -> list[str]:
    return [value[0] for value in values]


@pytest.mark.parametrize("tooth", [*RULES, *SAYINGS], ids=lambda tooth: tooth.name)
def test_wrong_rule_or_wrong_q_is_caught(tooth: Tooth) -> None:
    """A wrong rule, or a q that is not what was drawn from, changes the law of two rounds."""
    measured = bias(tooth.draw, tooth.decide, tooth.target)
    LOGGER.info("%s: %.6f", tooth.name, measured)
    assert measured > tooth.floor > EXACT


@pytest.mark.parametrize(("name", "draw", "target", "floor"), TRIMMERS, ids=named(TRIMMERS))
@pytest.mark.parametrize("decide", CHAIN_RULES)
def test_trimmer_is_caught(name: str, draw: DrawDraft, target: TargetLaw, floor: float, decide: Decide) -> None:
    """Dropping drafted tokens for what they are changes the law under token and block."""
    measured = bias(draw, decide, target)
    LOGGER.info("%s: %.6f", name, measured)
    assert measured > floor > EXACT


@pytest.mark.parametrize(("name", "draw", "target", "floor"), TRIMMERS, ids=named(TRIMMERS))
def test_trimming_is_exact_under_match(name: str, draw: DrawDraft, target: TargetLaw, floor: float) -> None:
    """Under match any trimming leaves the law as it is."""
    assert bias(draw, reference.match, target) < EXACT


@pytest.mark.parametrize(("name", "draw", "target"), ALLOWED, ids=named(ALLOWED))
@pytest.mark.parametrize("decide", [*CHAIN_RULES, reference.match])
def test_what_is_allowed_is_exact(name: str, draw: DrawDraft, target: TargetLaw, decide: Decide) -> None:
    """What is decided before a draw, or after a token that is still sent, leaves the law as it is."""
    assert bias(draw, decide, target) < EXACT


@pytest.mark.parametrize("one_hot", [(True,) * 3, ()], ids=["guessed", "drawn"])
@pytest.mark.parametrize("decide", [*CHAIN_RULES, reference.match])
@pytest.mark.parametrize("play", [wrong.taking_what_failed, wrong.keeping_the_guess])
def test_wrong_draft_ahead_is_caught(play: PlayAhead, decide: Decide, one_hot: tuple[bool, ...]) -> None:
    """A round that lies ahead and counts though its assumption failed, or a guess that counts as accepted, is seen."""
    gammas, line = (1, 1), draw_chain(PAIR, 3, one_hot)
    law = enumerate_law(lambda chance: play(chance, line, decide, PAIR.p, gammas))
    measured = total_variation(extend(law, PAIR.p, 4), text_law(PAIR.p, 4))
    LOGGER.info("%s: %.6f", play.__name__, measured)
    assert measured > AHEAD_FLOOR > EXACT


def test_lying_is_harmless_under_match() -> None:
    """Under match a drafter that lies about q leaves the law as it is."""
    assert bias(wrong.always(1, claimed=0.1), reference.match, SMALL.p) < EXACT


def test_one_round_cannot_see_shared_uniforms() -> None:
    """Uniforms that are keyed by position pass a test of a single round: hence two rounds everywhere."""
    draw = draw_chain(SMALL, 2)
    law = keyed_law(draw, wrong.block_keyed_by_position, SMALL.p, 4, num_free=(0,))
    assert total_variation(law, text_law(SMALL.p, 4)) < EXACT


@pytest.mark.parametrize(
    ("name", "rule", "floor"),
    [
        (
            "block with the residual of token",
            ChainRule(block.thresholds, block.survivals, token.scales, block.keep),
            0.001,
        ),
        (
            "token that keeps the last that passes",
            ChainRule(token.thresholds, token.survivals, token.scales, block.keep),
            0.05,
        ),
        (
            "block that stops at the first rejection",
            ChainRule(block.thresholds, block.survivals, block.scales, token.keep),
            0.05,
        ),
        (
            "token with the thresholds of a path",
            ChainRule(token.survivals, token.survivals, token.scales, token.keep),
            0.005,
        ),
    ],
)
def test_wrong_rule_in_the_batched_code_is_caught(name: str, rule: ChainRule, floor: float) -> None:
    """The enumeration of the batched code sees rules whose parts do not belong together."""
    law = batched_law(PAIR, CHAIN, rule, torch.float64, 4)
    measured = total_variation(law, text_law(PAIR.p, 4))
    LOGGER.info("%s: %.6f", name, measured)
    assert measured > floor > EXACT
