"""Where sessions take turns a pass carries as many drafts as the plan says, and the text stays what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from pilotfish.price import Plan
from tests.verifier.bench import NUM_IDS, Bench, BenchSession, random_table
from verifier import acceptance
from verifier.acceptance import Outcome, Round
from verifier.cost import CostCurve, PassShape, knots_up_to
from verifier.pricing import PassYield, Pricing
from verifier.traffic import PassRecord

PROMPT = [1, 2, 3]
TABLE = random_table(seed=4)
NUM_SESSIONS, NUM_TOKENS, GAMMA = 6, 24, 4


class Turns(Pricing):
    """A plan that never changes: a pass carries so many drafts."""

    def __init__(self, num_drafts: int | None) -> None:
        curve = CostCurve(knots_up_to(64))
        curve.fit([PassShape(knot) for knot in curve.knots], [0.01] * len(curve.knots))
        super().__init__(curve, GAMMA, 0.0)
        self.seconds: list[float] = []  # that passes counted for
        self.told = replace(Plan.plain(NUM_SESSIONS, 0.01), kind=2, num_drafts=num_drafts)

    @property
    def plan(self) -> Plan:
        return self.told

    def passed(self, record: PassRecord, brought: PassYield) -> None:
        """Learn nothing."""
        self.seconds.append(record.ended_s - brought.since_s)


class Watched:
    """A bench with a plan, and how many drafts each of its passes carried."""

    def __init__(self, num_drafts: int | None) -> None:
        self.carried: list[int] = []
        self.bench = Bench(TABLE, accept=self._accept)
        self.bench.engine.set_price(Turns(num_drafts))

    def _accept(self, rounds: Sequence[Round], logits: Tensor) -> list[Outcome]:
        self.carried.append(sum(bool(each.draft.tokens) for each in rounds))
        return acceptance.accept(rounds, logits)

    def sessions(self, sampling: Sampling, rule: Rule = Rule.MATCH) -> list[BenchSession]:
        """Opened, and computed up to their last token; none may commit yet."""
        opened = [
            self.bench.session(PROMPT, max_tokens=NUM_TOKENS, seed=seed, sampling=sampling, rule=rule)
            for seed in range(NUM_SESSIONS)
        ]
        self.bench.settle()
        return opened


def alone(sampling: Sampling) -> list[list[int]]:
    """The texts of the same sessions without plan and drafts."""
    bench = Bench(TABLE)
    sessions = [
        bench.session(PROMPT, max_tokens=NUM_TOKENS, seed=seed, sampling=sampling, grant=NUM_TOKENS)
        for seed in range(NUM_SESSIONS)
    ]
    bench.settle()
    return [session.output for session in sessions]


def is_decided(session: BenchSession) -> bool:
    """Whether the session's last round is over; the first item was a grant."""
    return session.round == 1 or any(verdict.round == session.round - 1 for verdict in session.verdicts)


def is_finished(session: BenchSession) -> bool:
    return bool(session.verdicts) and session.verdicts[-1].finish is not None


def wrong(tokens: Sequence[int]) -> list[int]:
    return [(token + 1) % NUM_IDS for token in tokens]


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("num_drafts", [1, 2, 4])
def test_no_pass_carries_more_drafts_than_told_and_no_text_changes(sampling: Sampling, num_drafts: int) -> None:
    """Six sessions that run on, a third of whose drafts are wrong: the plan is kept, the texts are as without it."""
    expected = alone(sampling)
    watched = Watched(num_drafts)
    sessions = watched.sessions(sampling)
    for session in sessions:
        session.work(grant=NUM_TOKENS)
    watched.bench.turn()
    for _ in range(4 * NUM_TOKENS):
        for number, session in enumerate(sessions):
            if not is_finished(session) and is_decided(session):
                done = len(session.output)
                right = expected[number][done : done + GAMMA]
                session.work(wrong(right) if number % 3 == 2 else right, grant=NUM_TOKENS)
        watched.bench.turn()
    assert [session.output for session in sessions] == expected
    assert max(watched.carried) == num_drafts
    verdicts = [verdict for session in sessions for verdict in session.verdicts]
    assert any(verdict.num_drafted and verdict.num_reused for verdict in verdicts)  # put off, and then the tail counted


def first_drafts(
    num_drafts: int | None, rule: Rule, sampling: Sampling, draft: Draft, patience_us: int = 0
) -> list[int]:
    """Nodes that the first pass verifies for each session, where all their drafts are there."""
    watched = Watched(num_drafts)
    sessions = watched.sessions(sampling, rule)
    for session in sessions:
        session.work(grant=NUM_TOKENS, patience_us=patience_us)
        session.work(draft, grant=NUM_TOKENS)
    watched.bench.turn()
    return [sum(verdict.num_drafted for verdict in session.verdicts) for session in sessions]


def test_who_rides_does_not_depend_on_what_drafts_say() -> None:
    """Whatever their nodes are, the same sessions' drafts ride."""
    some = [Draft.chain((token, token)) for token in range(NUM_IDS)]
    for draft in some:
        assert first_drafts(2, Rule.MATCH, Sampling(0.0), draft) == [2, 2, 0, 0, 0, 0]


def test_a_held_session_keeps_its_draft() -> None:
    """Who is held for its draft would stand by without it: all of them ride, whatever the number."""
    draft = Draft.chain((1, 2))
    assert first_drafts(2, Rule.MATCH, Sampling(0.0), draft, patience_us=50_000) == [2] * NUM_SESSIONS


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_drawn_drafts_are_never_put_off(rule: Rule) -> None:
    """Drafts judged by their law all ride at once, though their sessions could run on; greedy ones take turns."""
    q = Distribution(tuple(range(NUM_IDS)), (1,) * NUM_IDS)
    draft = Draft((1, 2), (-1, 0), (q, q))
    assert first_drafts(1, rule, Sampling(1.0), draft) == [2] * NUM_SESSIONS
    assert sum(first_drafts(1, rule, Sampling(0.0), draft)) == 2


def test_without_a_number_all_drafts_ride() -> None:
    """Where the plan names none, whoever is there rides."""
    assert first_drafts(None, Rule.MATCH, Sampling(0.0), Draft.chain((1, 2))) == [2] * NUM_SESSIONS


def test_time_in_which_nobody_was_there_is_not_counted() -> None:
    """A session that is held leaves, and another comes a minute later: its first pass counts from then on."""
    bench, turns = Bench(TABLE), Turns(None)
    bench.engine.set_price(turns)
    held = bench.session(PROMPT, max_tokens=NUM_TOKENS, grant=1)
    bench.settle()
    held.work([1, 2], patience_us=50_000_000, grant=3)
    bench.settle()
    assert held.verdicts[-1].num_drafted
    bench.advance(0.5)
    held.close()
    bench.advance(60.0)
    bench.session(PROMPT, max_tokens=4, grant=4)
    bench.settle()
    assert sum(turns.seconds) < 1.0
