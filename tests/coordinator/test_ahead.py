"""Drafts that lie ahead of the verdict: the next one is there, and nobody sees it in the text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.policy import Decision, Snapshot
from pilotfish.messages import Rule, Speculation
from pilotfish.price import Choice
from tests.coordinator.conftest import Stack, Start
from tests.coordinator.fakes import FakeDrafter, FakeVerifier, Proposer, cancelled, chaotic, right_for, until
from tests.coordinator.test_faults import take_until, truth

LAW = chaotic(26)
RIGHT = right_for(1000, LAW, 26)


class AheadPolicy:
    """Always the same γ, and the same number of nodes in each further round."""

    def __init__(self, gamma: int, ahead: int, *, passes: int = 1) -> None:
        self.choice = Choice(gamma, passes, ahead)
        self.may: set[bool] = set()  # what it was told of drafts that lie ahead

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off

    def heeds_price(self, _wishes: Speculation) -> bool:
        return True

    def decide(self, snapshot: Snapshot) -> Decision:
        self.may.add(snapshot.may_draft_ahead)
        gamma = min(self.choice.gamma, snapshot.num_remaining - 1)
        if not snapshot.is_drafter_up or snapshot.wishes.is_off or gamma < 1:
            return Decision(0, "drafter_down")
        return Decision(gamma, "fixed", is_held=self.choice.is_held, choice=self.choice)


class MoodyPolicy(AheadPolicy):
    """Any γ, any number of nodes ahead, held or not, and now and then none at all: anew for every round."""

    def __init__(self, seed: int, *, max_gamma: int = 5, is_held: bool = True) -> None:
        super().__init__(1, 0)
        self.source = random.Random(seed)
        self.max_gamma = max_gamma
        self.passes = (1, 1, 2) if is_held else (2,)

    def decide(self, snapshot: Snapshot) -> Decision:
        gamma, ahead = self.source.randrange(self.max_gamma) + 1, self.source.randrange(self.max_gamma)
        self.choice = Choice(gamma, self.source.choice(self.passes), ahead)
        if self.source.random() < 0.1:
            return Decision(0, "saturation")
        return super().decide(snapshot)


def moody_drafter(seed: int) -> Proposer:
    """A drafter that is right for a while, another while each time it is asked."""
    source = random.Random(seed)

    def propose(tokens: Sequence[int], num_prompt: int, gamma: int) -> Sequence[int]:
        return right_for(source.randrange(12), LAW, 26)(tokens, num_prompt, gamma)

    return propose


async def three(
    start: Start, policy: AheadPolicy, propose: Proposer = RIGHT, **settings: Any
) -> tuple[Stack, FakeVerifier, FakeDrafter]:
    """A coordinator, a verifier that waits for its drafts, and a drafter."""
    verifier, drafter = await start.verifier(LAW), await start.drafter(propose)
    verifier.patience = 1000
    return await start.coordinator([verifier], [drafter], policy=policy, **settings), verifier, drafter


async def first_token(verifier: FakeVerifier) -> None:
    """Let a frozen verifier make its first pass."""
    await until(lambda: bool(verifier.opens))
    verifier.make_pass()


async def test_rounds_lie_ahead(start: Start) -> None:
    """While a draft waits for its pass the drafts of the rounds after it lie at the verifier, below guessed bonuses."""
    policy = AheadPolicy(3, 2)
    stack, verifier, drafter = await three(start, policy)
    verifier.is_frozen = True
    answer = asyncio.create_task(stack.complete(max_tokens=16, include_rounds=True))
    await first_token(verifier)
    await until(lambda: len(verifier.works) >= 3)
    hold, first, second = verifier.works[:3]
    assert hold.patience_us > 0
    assert (first.assumes, first.draft.tokens) == ((), truth(4)[1:])
    assert second.position == first.position == 4
    assert second.assumes == truth(5)[1:]
    assert second.draft.tokens == truth(7)[5:]
    assert drafter.requests[0].gamma == 3 + 1 + 2
    verifier.is_frozen = False
    verifier.wake()
    done = await answer
    assert done.ids == truth(16)
    assert [entry.gamma for entry in done.rounds][:3] == [
        0,
        3,
        2,
    ]  # after that the drafter may be slower than the passes
    assert all(entry.num_drafted == entry.num_accepted for entry in done.rounds)
    assert policy.may == {True}


async def test_counts(start: Start) -> None:
    """Drafted and accepted are what was verified: guesses and rounds that were dropped count as neither."""
    stack, _, _ = await three(start, AheadPolicy(3, 2), right_for(5, LAW, 26))
    done = await stack.complete(max_tokens=60, include_rounds=True)
    statistics = done.statistics
    assert done.ids == truth(60)
    assert statistics.num_drafts == sum(entry.num_drafted > 0 for entry in done.rounds)
    assert statistics.num_drafted_tokens == sum(entry.num_drafted for entry in done.rounds)
    assert statistics.num_accepted_tokens == sum(entry.num_accepted for entry in done.rounds)
    assert sum(entry.num_committed for entry in done.rounds) == 60
    assert all(entry.num_drafted <= entry.gamma <= 3 for entry in done.rounds)
    assert {entry.reason for entry in done.rounds} <= {"fixed", "first_token", "drafter_down"}


async def test_a_wrong_guess_drops_what_lies_ahead(start: Start) -> None:
    """Where the guess of the bonus is wrong the rounds below it are dropped, counted, and the next begins anew."""
    stack, verifier, drafter = await three(start, AheadPolicy(3, 2), right_for(3, LAW, 26))
    verifier.is_frozen = True
    answer = asyncio.create_task(stack.complete(max_tokens=8))
    await first_token(verifier)
    await until(lambda: len(verifier.works) >= 3)
    verifier.is_frozen = False
    verifier.wake()
    done = await answer
    assert done.ids == truth(8)
    assert done.statistics.num_dropped_by_cause["assumption"] >= 1
    assert verifier.counts["assumption"] >= 1
    assert [request.position for request in drafter.requests][:2] == [4, 8]


@pytest.mark.parametrize("seed", range(8))
async def test_any_mood(start: Start, seed: int) -> None:
    """Whatever is drafted, ahead or not, held or not, right or wrong, in parts or not, the text is the target's."""
    stack, verifier, drafter = await three(start, MoodyPolicy(seed), moody_drafter(seed))
    drafter.is_by_node = seed % 2 == 0
    verifier.patience = 1
    verifier.pass_s = 0.001 if seed % 4 < 2 else 0.0
    done = await stack.complete(max_tokens=150, include_rounds=True)
    assert done.ids == truth(150)
    assert sum(entry.num_committed for entry in done.rounds) == 150
    assert done.statistics.num_drafted_tokens == sum(entry.num_drafted for entry in done.rounds)
    await until(lambda: not verifier.sessions and not drafter.sessions)


@pytest.mark.parametrize("seed", range(8))
async def test_drafts_that_are_put_off(start: Start, seed: int) -> None:
    """A verifier may go past a draft by its grant, and then past what the next one assumes: nobody waits for that."""
    stack, verifier, drafter = await three(start, MoodyPolicy(seed, max_gamma=2, is_held=False), moody_drafter(seed))
    source = random.Random(seed)
    verifier.puts_off = lambda: source.random() < 0.7
    verifier.patience, verifier.pass_s = 1, 0.001
    done = await asyncio.wait_for(stack.complete(max_tokens=150, include_rounds=True), timeout=30)
    assert done.ids == truth(150)
    assert sum(entry.num_committed for entry in done.rounds) == 150
    assert "quiet" not in done.statistics.num_dropped_by_cause
    await until(lambda: not verifier.sessions and not drafter.sessions)


@pytest.mark.parametrize("fault", ["drafter_kill", "drafter_cut", "drafter_freeze", "verifier_kill", "verifier_cut"])
async def test_faults(start: Start, fault: str) -> None:
    """Whoever fails while rounds lie ahead, the answer goes on as if nothing had been, and drafts lie ahead again."""
    settings: dict[str, Any] = {"patience_ms": 60.0, "draft_deadline_ms": 20.0, "lost_after_s": 0.2}
    stack, verifier, drafter = await three(start, AheadPolicy(3, 2), right_for(9, LAW, 26), **settings)
    verifier.patience, verifier.pass_s = 1, 0.001
    answer = stack.generate(max_tokens=4000, include_rounds=True)
    chunks = await take_until(answer, lambda entry: entry.num_drafted == 2)
    peer: FakeVerifier | FakeDrafter = verifier if fault.startswith("verifier") else drafter
    if fault.endswith("kill"):
        await peer.kill()
        await peer.start()
    elif fault.endswith("cut"):
        peer.cut()
    else:
        drafter.is_frozen = True
        chunks += await take_until(answer, lambda entry: entry.num_drafted == 0)
        drafter.thaw()
    chunks += await take_until(answer, lambda entry: entry.num_drafted == 3)
    chunks += await take_until(answer, lambda entry: entry.num_drafted == 2)
    await answer.aclose()
    got = tuple(token for chunk in chunks for token in chunk.ids)
    assert got == truth(len(got))
    await until(lambda: not verifier.sessions)


async def test_cancelled_with_rounds_ahead(start: Start) -> None:
    """A request that is given up while rounds lie ahead leaves nothing at its peers."""
    stack, verifier, drafter = await three(start, AheadPolicy(3, 2))
    verifier.is_frozen = True
    answer = asyncio.create_task(stack.complete(max_tokens=16))
    await until(lambda: len(verifier.works) >= 2)
    await cancelled(answer)
    await until(lambda: not verifier.sessions and not drafter.sessions)


async def test_room_ends_the_line(start: Start) -> None:
    """Nothing is drafted beyond the answer's own limit."""
    stack, verifier, drafter = await three(start, AheadPolicy(3, 2))
    done = await stack.complete(max_tokens=9)
    assert done.ids == truth(9)
    assert all(request.position + request.gamma <= 3 + 8 for request in drafter.requests)
    assert all(work.position + len(work.assumes) + len(work.draft) <= 3 + 8 for work in verifier.works)


async def test_drafter_that_draws_less_at_once(start: Start) -> None:
    """No more is asked of a drafter than it says it draws."""
    verifier = await start.verifier(LAW)
    verifier.patience = 1000
    drafter = await start.drafter(RIGHT, max_nodes=5)
    stack = await start.coordinator([verifier], [drafter], policy=AheadPolicy(3, 2))
    done = await stack.complete(max_tokens=30)
    assert done.ids == truth(30)
    assert max(request.gamma for request in drafter.requests) <= 5


async def test_drafter_that_thinks_again(start: Start) -> None:
    """One whose next answer is another than what it said before ends the line; what was sent is verified."""

    def propose(tokens: Sequence[int], num_prompt: int, gamma: int) -> list[int]:
        line = list(RIGHT(tokens, num_prompt, gamma))
        return line if len(tokens) % 2 else [*line[:1], *[(token + 1) % 26 for token in line[1:]]]

    stack, _, _ = await three(start, AheadPolicy(3, 2), propose)
    done = await stack.complete(max_tokens=60)
    assert done.ids == truth(60)


async def test_not_where_the_settings_forbid_it(start: Start) -> None:
    """With draft_ahead off no draft lies ahead, whatever the policy chooses, and the verifier plans with none."""
    policy = AheadPolicy(3, 2)
    stack, verifier, drafter = await three(start, policy, draft_ahead=False)
    done = await stack.complete(max_tokens=20)
    assert done.ids == truth(20)
    assert done.statistics.num_drafts > 0
    assert policy.may == {False}
    assert not any(work.assumes for work in verifier.works)
    assert not any(work.profile.may_draft_ahead for work in verifier.works if work.profile)
    assert all(request.gamma <= 3 for request in drafter.requests)


async def test_only_under_match(start: Start) -> None:
    """Under a rule that weighs by q no draft lies ahead: the bonus is drawn apart from the guess."""
    policy = AheadPolicy(3, 2)
    stack, verifier, drafter = await three(start, policy)
    done = await stack.complete(max_tokens=20, temperature=1.0, speculation=Speculation(rule=Rule.BLOCK))
    assert done.ids == truth(20)
    assert policy.may == {False}
    assert not any(work.assumes for work in verifier.works)
    assert all(request.gamma <= 3 for request in drafter.requests)


async def test_the_first_token_waits_for_no_draft(start: Start) -> None:
    """By the price a session is opened for one token; then it is held for its draft. One that runs on is not."""
    stack, verifier, drafter = await three(start, AheadPolicy(3, 0))
    verifier.is_frozen = True
    answer = asyncio.create_task(stack.complete(max_tokens=9, include_rounds=True))
    await first_token(verifier)
    await until(lambda: len(verifier.works) >= 2)
    assert (verifier.opens[0].grant, verifier.opens[0].patience_us) == (1, 0)
    assert verifier.works[0].patience_us > 0  # held for the draft that was asked for
    assert drafter.requests[0].position == verifier.works[1].position == 4
    verifier.is_frozen = False
    verifier.wake()
    done = await answer
    assert done.ids == truth(9)
    assert (done.rounds[0].reason, done.rounds[0].num_committed) == ("first_token", 1)
    stack, verifier, _ = await three(start, AheadPolicy(3, 0, passes=2))
    assert (await stack.complete(max_tokens=9)).ids == truth(9)
    assert verifier.opens[0].grant > 1


async def test_a_near_lookup_is_asked_with_the_prompt_and_nothing_lies_ahead(start: Start) -> None:
    """Where a draft comes back in a fraction of a pass it is asked for before the first verdict, and none after it."""
    policy = AheadPolicy(3, 2)
    stack, verifier, drafter = await three(start, policy)
    verifier.pass_us = 10_000_000
    await stack.complete(max_tokens=4)  # after that it is known how long passes are and drafts take
    verifier.is_frozen = True
    verifier.works.clear()
    drafter.requests.clear()
    policy.may.clear()
    answer = asyncio.create_task(stack.complete(max_tokens=16))
    await until(lambda: bool(drafter.requests))
    verifier.is_frozen = False
    verifier.wake()
    assert (await answer).ids == truth(16)
    assert policy.may == {False}
    assert not any(work.assumes for work in verifier.works)


async def test_only_a_draft_that_begins_says_how_often_there_is_one(start: Start) -> None:
    """A line that ends is no lookup that found nothing: what goes on with one counts as no answer."""
    policy, seen = AheadPolicy(3, 2), list[float]()
    decide = policy.decide

    def watched(snapshot: Snapshot) -> Decision:
        if snapshot.outlook is not None:
            seen.append(snapshot.outlook.offered)
        return decide(snapshot)

    policy.decide = watched  # type: ignore[method-assign]
    stack, verifier, drafter = await three(start, policy)
    verifier.pass_s = 0.02
    has_found = True

    def propose(tokens: Sequence[int], num_prompt: int, gamma: int) -> Sequence[int]:
        nonlocal has_found
        has_found = not has_found  # each begins a line, or goes on with the one before
        return () if has_found else RIGHT(tokens, num_prompt, gamma)

    drafter.propose = propose
    assert (await stack.complete(max_tokens=60)).ids == truth(60)
    assert len(drafter.requests) >= 8
    assert seen[-1] >= seen[0]
