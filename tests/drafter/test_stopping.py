"""When a drafter stops by itself: before a draw, for what is known before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drafter.rounds import Rounds
from drafter.speculators import Ask, Facts, Speculator
from drafter.speculators.model import ModelSpeculator
from drafter.speculators.ngram import NgramSpeculator
from drafter.stopping import Deadline, FirstOf, Gamma, Survival
from pilotfish import tablefile
from pilotfish.confidence import (
    LEAST,
    MOST,
    Calibration,
    confidence,
    confidence_of,
    read_confidences,
    write_confidences,
)
from pilotfish.draft import Draft
from pilotfish.engine.table import TableBackend
from pilotfish.messages import DraftEnd, DraftPart, Refusal, Rule, Sampling
from tests.drafter.desk import Clock, Desk, Steps
from tests.drafter.openings import opening, request

A, B = b"a" * 16, b"b" * 16
TEXT = [1, 2, 3, 4]
AS_IT_SAYS = Calibration(0.0, 1.0)


class Telling(Steps):
    """One node a step, of which it knows beforehand how surely it holds; remembers which it drew."""

    def __init__(self, clock: Clock, probabilities: Sequence[float]) -> None:
        super().__init__(clock)
        self._probabilities = probabilities
        self.drawn: list[int] = []

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        self._clock.now_s += 0.010
        return [self._step(ask) for ask in asks]

    def _step(self, ask: Ask) -> Draft:
        node = len(ask.draft)
        if not ask.draws(self._probabilities[node]):
            return Draft.EMPTY
        self.drawn.append(node)
        return ask.chain([node])


class Withholding(Telling):
    """Is told to draw the third node, and keeps it back."""

    def _step(self, ask: Ask) -> Draft:
        step = super()._step(ask)
        return Draft.EMPTY if len(ask.draft) == 2 else step


def parts_of(answers: Sequence[object]) -> list[DraftPart]:
    return [answer for answer in answers if isinstance(answer, DraftPart)]


@pytest.mark.parametrize(("price", "num_drawn"), [(0.0, 4), (0.39, 3), (0.41, 2), (0.73, 1), (0.91, 0)])
def test_a_draft_ends_before_the_node_that_is_not_worth_its_price(price: float, num_drawn: int) -> None:
    """Survival is the product of .9, .8, .56 and .5 down the path; the first node under the price is not drawn."""
    survival = Survival(price, AS_IT_SAYS)
    drawn = 0
    for probability in (0.9, 0.8, 0.56, 0.5):
        if not survival.draws(probability):
            break
        drawn += 1
    assert drawn == num_drawn
    assert survival.is_over == (num_drawn < 4)


def test_nothing_is_weighed_without_a_calibration() -> None:
    """A price means nothing where nobody knows what a confidence is worth; it is told of all the same."""
    survival = Survival(0.9)
    assert survival.draws(0.01)
    assert survival.confidences == [confidence_of(0.01)]


def test_calibration_decides_and_not_what_the_drafter_believes() -> None:
    """A drafter that is sure and was often wrong stops; one that doubts and was often right goes on."""
    assert not Survival(0.5, Calibration(-3.0, 1.0)).draws(0.9)
    assert Survival(0.5, Calibration(3.0, 1.0)).draws(0.2)


@pytest.mark.parametrize("probability", [0.0, 1e-12, 0.01, 0.5, 0.9, 1.0 - 1e-12, 1.0])
def test_what_is_decided_by_is_what_is_sent(probability: float) -> None:
    """A confidence is rounded before anything is decided by it, so it survives the wire to the bit."""
    value = confidence_of(probability)
    assert LEAST <= value <= MOST
    assert read_confidences(write_confidences([value])) == (value,)
    assert confidence(value) == value


@pytest.mark.parametrize("log_odds", [-1e9, -700.0, 0.0, 700.0, 1e9, math.inf, -math.inf])
def test_no_calibration_overflows(log_odds: float) -> None:
    """Whatever the numbers, what comes out is a probability."""
    assert 0.0 <= Calibration(log_odds, 0.0).probability(1.0) <= 1.0


async def test_the_last_part_says_that_it_was_the_price_and_of_what_node() -> None:
    """Two nodes are sent as they are drawn; the third was not drawn, and its confidence comes with the end."""
    speculator = Telling(Clock(), [0.9, 0.8, 0.3, 0.9])
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    parts = parts_of(desk.tell(request(A, TEXT, 8, price=0.5, calibration=AS_IT_SAYS)))

    assert [(part.draft.tokens, part.end) for part in parts] == [((0,), None), ((1,), None), ((), DraftEnd.SURVIVAL)]
    assert [part.confidences for part in parts] == [(confidence_of(p),) for p in (0.9, 0.8, 0.3)]
    assert parts[-1].is_complete
    assert parts[-1].first_node == 2
    assert speculator.drawn == [0, 1]


async def test_each_round_starts_afresh() -> None:
    """What was told in a round that is over counts for nothing in the next."""
    desk = Desk(Telling(Clock(), [0.9, 0.8, 0.3]))
    desk.tell(opening(A, TEXT))
    first, second = (
        parts_of(desk.tell(request(A, TEXT, 8, price=0.5, calibration=AS_IT_SAYS, round_=number))) for number in (0, 1)
    )
    assert [part.confidences for part in first] == [part.confidences for part in second]


@pytest.mark.parametrize(
    ("deadline_us", "gamma", "price", "end", "num_nodes"),
    [
        (25_000, 8, 0.05, DraftEnd.DEADLINE, 3),
        (25_000, 8, 0.65, DraftEnd.SURVIVAL, 2),
        (25_000, 2, 0.65, DraftEnd.GAMMA, 2),
        (15_000, 8, 0.65, DraftEnd.DEADLINE, 2),
        (90_000, 8, 0.05, DraftEnd.SURVIVAL, 4),
    ],
)
async def test_whichever_limit_is_met_first_ends_the_draft(
    deadline_us: int, gamma: int, price: float, end: DraftEnd, num_nodes: int
) -> None:
    """Steps of 10 ms, survival .9, .72, .58, .35, .04: deadline and γ count before a step, the price in it."""
    desk = Desk(Telling(Clock(), [0.9, 0.8, 0.8, 0.6, 0.1]))
    desk.tell(opening(A, TEXT))
    parts = parts_of(desk.tell(request(A, TEXT, gamma, price=price, calibration=AS_IT_SAYS, deadline_us=deadline_us)))
    assert (parts[-1].end, sum(len(part.draft) for part in parts)) == (end, num_nodes)
    assert sum(len(part.confidences) for part in parts) == num_nodes + (end is DraftEnd.SURVIVAL)


async def test_no_step_begins_below_a_node_that_is_not_worth_its_time() -> None:
    """Survival .9, .72, .58, a price of .3, and .3 for a step: the third node is drawn, and no fourth step made.

    A node whose law is computed already pays for its position only.
    """
    speculator = Telling(Clock(), [0.9, 0.8, 0.8, 0.8, 0.8])
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    parts = parts_of(desk.tell(request(A, TEXT, 8, price=0.3, step_price=0.3, calibration=AS_IT_SAYS)))

    assert [part.draft.tokens for part in parts] == [(0,), (1,), (2,)]
    assert [part.end for part in parts] == [None, None, DraftEnd.SURVIVAL]
    assert [len(part.confidences) for part in parts] == [1, 1, 1]
    assert parts[-1].draft_us == 30_000


async def test_the_first_step_is_made_whatever_its_time_is_worth() -> None:
    """That a draft is worth its first step was decided by whoever asked for it."""
    desk = Desk(Telling(Clock(), [0.9]))
    desk.tell(opening(A, TEXT))
    parts = parts_of(desk.tell(request(A, TEXT, 8, step_price=5.0, calibration=AS_IT_SAYS)))
    assert [(part.draft.tokens, part.end) for part in parts] == [((0,), DraftEnd.SURVIVAL)]


async def test_a_drawn_node_cannot_be_kept_back() -> None:
    """A speculator that was told to draw and returns nothing is found out: its draft is refused."""
    speculator = Withholding(Clock(), [0.9] * 4)
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    *_, refusal = desk.tell(request(A, TEXT, 4))
    assert isinstance(refusal, Refusal)
    assert "3 nodes" in refusal.message
    assert "drew 2" in refusal.message
    assert parts_of(desk.tell(request(A, TEXT, 1, round_=1)))[0].draft.tokens == (0,)


# What speculators tell ----------------------------------------------------------------------------------------------


def at_work(speculator: Speculator) -> Rounds:
    return Rounds(speculator, lambda: 0.0)


def drafts(rounds: Rounds, *requests: Any) -> dict[bytes, list[DraftPart]]:
    """What comes of requests that are served together."""
    for asked in requests:
        rounds.start(asked, 0.0, FirstOf([Gamma(asked.gamma), Deadline(asked.deadline_us)]))
    parts: dict[bytes, list[DraftPart]] = {asked.session: [] for asked in requests}
    while not rounds.is_idle:
        for asked, part, _ in rounds.step():
            parts[asked.session].append(part)
    return parts


def test_lookup_is_surer_the_longer_the_texts_agree() -> None:
    """A longer agreement, beyond the index's own n-grams too, is a surer node; each is surer than its parent."""
    sureness = []
    for num_agreed in (2, 4, 12):
        rounds = at_work(NgramSpeculator(2, 3))
        agreed = list(range(10, 10 + num_agreed))
        text = [1, *agreed, 5, 6, 7, 2, *agreed]
        rounds.open(opening(A, text))
        [part] = drafts(rounds, request(A, text, 3))[A]
        assert part.draft.tokens == (5, 6, 7)
        assert list(part.confidences) == sorted(part.confidences)
        sureness.append(part.confidences[0])
    assert sureness == sorted(set(sureness))


def test_lookup_stops_at_the_price() -> None:
    """A short agreement at a high price gives no node and says that it was for the price; no match is no match."""
    text = [1, 2, 5, 6, 7, 1, 2]
    rounds = at_work(NgramSpeculator(2, 3))
    rounds.open(opening(A, text))
    cheap, dear, between = (
        drafts(rounds, request(A, text, 3, price=price, calibration=AS_IT_SAYS))[A][0] for price in (0.1, 0.9, 0.55)
    )
    assert (cheap.draft.tokens, cheap.end, len(cheap.confidences)) == ((5, 6, 7), DraftEnd.GAMMA, 3)
    assert (dear.draft.tokens, dear.end, len(dear.confidences)) == ((), DraftEnd.SURVIVAL, 1)
    assert (between.draft.tokens, between.end, len(between.confidences)) == ((5, 6), DraftEnd.SURVIVAL, 3)

    rounds.open(opening(B, [1, 2, 3]))
    [part] = drafts(rounds, request(B, [1, 2, 3], 3, price=0.1, calibration=AS_IT_SAYS))[B]
    assert (part.draft, part.end, part.confidences) == (Draft.EMPTY, DraftEnd.NO_MATCH, ())


def table_speculator() -> ModelSpeculator:
    table = tablefile.parse({"vocabulary": list("abcdefgh"), "random": {"seed": 3, "order": 2, "sharpness": 2.0}})
    backend = TableBackend(table)
    return ModelSpeculator(backend, Facts("test", "hash", 8, 8, 10_000), page_size=4)


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": Sampling(0.0)},
    "match": {"sampling": Sampling(0.7), "rule": Rule.MATCH},
    "coupled": {"sampling": Sampling(0.7), "rule": Rule.MATCH, "is_coupled": True},
    "drawn": {"sampling": Sampling(0.7), "rule": Rule.BLOCK},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_tells_how_likely_its_likeliest_token_is(way: str) -> None:
    """The confidence is that of the law the node is chosen by, greedy sessions at temperature 1, whatever was drawn."""
    speculator = table_speculator()
    rounds = at_work(speculator)
    rounds.open(opening(A, TEXT, **WAYS[way]))
    [part] = drafts(rounds, request(A, TEXT, 1))[A]
    rounds.open(opening(B, TEXT, **WAYS[way] | {"rule": Rule.BLOCK, "is_coupled": False, "sampling": _law(way)}))
    [drawn] = drafts(rounds, request(B, TEXT, 1))[B]
    [q] = drawn.draft.q
    assert q is not None
    assert part.confidences == pytest.approx([confidence_of(max(q.weights) / q.total)], abs=1 / 16)


def _law(way: str) -> Sampling:
    return Sampling(1.0) if way == "greedy" else Sampling(0.7)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_stops_one_session_and_not_the_others(way: str) -> None:
    """Sessions that share steps stop each at its own price, with the first nodes of the unstopped draft."""

    def parts(price: float) -> dict[bytes, list[DraftPart]]:
        rounds = at_work(table_speculator())
        for session, text in ((A, TEXT), (B, [4, 4, 2])):
            rounds.open(opening(session, text, **WAYS[way]))
        return drafts(
            rounds,
            request(A, TEXT, 6, price=price, calibration=AS_IT_SAYS),
            request(B, [4, 4, 2], 6),
        )  # fmt: skip

    whole, stopped = parts(0.0), parts(0.3)
    assert stopped[B] == whole[B]
    nodes, all_nodes = (sum((part.draft.tokens for part in found[A]), ()) for found in (stopped, whole))
    assert nodes == all_nodes[: len(nodes)]
    told = [told for part in whole[A] for told in part.confidences]
    survival, num_worthy = 1.0, 0
    for value in told:
        survival *= AS_IT_SAYS.probability(value)
        if survival < 0.3:
            break
        num_worthy += 1
    assert len(nodes) == num_worthy < 6
    assert stopped[A][-1].end is DraftEnd.SURVIVAL


def test_a_row_without_a_law_is_not_asked_for() -> None:
    """A row of NaN ends its draft as one with nothing to propose, whatever the price, and breaks no other."""

    class Spoilt(TableBackend):
        def forward(self, batch: Any) -> torch.Tensor:
            logits = super().forward(batch).clone()
            logits[0] = math.nan
            return logits

    table = tablefile.parse({"vocabulary": list("abcdefgh"), "random": {"seed": 3, "order": 2, "sharpness": 2.0}})
    rounds = at_work(ModelSpeculator(Spoilt(table), Facts("test", "hash", 8, 8, 10_000), page_size=4))
    rounds.open(opening(A, TEXT))
    rounds.open(opening(B, TEXT))
    found = drafts(rounds, request(A, TEXT, 1, price=0.5, calibration=AS_IT_SAYS), request(B, TEXT, 1))
    assert [(part.draft, part.end, part.confidences) for part in found[A]] == [(Draft.EMPTY, DraftEnd.NO_MATCH, ())]
    assert len(found[B][0].draft) == 1
