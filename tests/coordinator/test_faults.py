"""What breaks, and that nobody sees it in the text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from pilotfish.errors import DeadlineExceeded, Overloaded, PilotfishError, TargetFailed, Unavailable
from pilotfish.messages import Chunk, FinishReason, Round, Targets
from tests.coordinator.conftest import VOCABULARY, Stack, Start, ids
from tests.coordinator.fakes import FakeDrafter, FakeVerifier, cancelled, chaotic, right_for, until

LAW = chaotic(26)
RIGHT = right_for(3, LAW, 26)


async def three(start: Start, **settings: Any) -> tuple[Stack, FakeVerifier, FakeDrafter]:
    """A coordinator, a verifier that makes a pass every few milliseconds, and a drafter that is right for a while."""
    verifier, drafter = await start.verifier(LAW), await start.drafter(RIGHT)
    verifier.pass_s = 0.001
    settings = {"draft_deadline_ms": 20.0, "patience_ms": 50.0} | settings
    return await start.coordinator([verifier], [drafter], **settings), verifier, drafter


def truth(num_tokens: int) -> tuple[int, ...]:
    """What the target says after "abc", token by token."""
    tokens = ids("abc")
    for _ in range(num_tokens):
        tokens.append(LAW(tokens, 3))
    return tuple(tokens[3:])


async def take_until(answer: AsyncGenerator[Chunk, None], claim: Callable[[Round], bool]) -> list[Chunk]:
    """The next chunks, up to the first one with a round of which the claim holds."""
    chunks = []
    async for chunk in answer:
        chunks.append(chunk)
        if any(map(claim, chunk.rounds)):
            return chunks
    raise AssertionError("no such round came")


# ---- drafters ------------------------------------------------------------------------------------------------------


async def test_drafter_killed_and_restarted(start: Start) -> None:
    """A drafter that dies in mid-stream costs no token; back on the same address it drafts again, as a new one."""
    stack, _, drafter = await three(start)
    answer = stack.generate(max_tokens=4000, gamma=4, include_rounds=True)
    chunks = await take_until(answer, lambda entry: entry.num_drafted == 4)
    num_opens, incarnation = len(drafter.opens), drafter.incarnation
    await drafter.kill()
    chunks += await take_until(answer, lambda entry: entry.reason == "drafter_down")
    await drafter.start()
    chunks += await take_until(answer, lambda entry: entry.num_drafted == 4)
    await answer.aclose()
    got = tuple(token for chunk in chunks for token in chunk.ids)
    assert got == truth(len(got))
    assert drafter.incarnation != incarnation
    assert len(drafter.opens) == num_opens + 1
    assert drafter.opens[-1].tokens == (*ids("abc"), *got)[: len(drafter.opens[-1].tokens)]


async def test_drafter_frozen_and_thawed(start: Start) -> None:
    """A drafter that answers no more costs one patience; when it answers again speculation resumes."""
    stack, _, drafter = await three(start)
    answer = stack.generate(max_tokens=4000, gamma=4, include_rounds=True)
    chunks = await take_until(answer, lambda entry: entry.num_drafted == 4)
    drafter.is_frozen = True
    num_asked = len(drafter.requests)
    chunks += await take_until(answer, lambda entry: entry.reason == "draft_late")
    late = [await anext(answer) for _ in range(40)]
    assert {entry.reason for chunk in late for entry in chunk.rounds} == {"draft_late"}
    assert len(drafter.requests) <= num_asked + 1
    drafter.thaw()
    chunks += [*late, *await take_until(answer, lambda entry: entry.num_drafted == 4)]
    await answer.aclose()
    got = tuple(token for chunk in chunks for token in chunk.ids)
    assert got == truth(len(got))


async def test_silent_drafter_is_given_up(start: Start) -> None:
    """A drafter that does not answer for long is given up for another one."""
    verifier = await start.verifier(LAW)
    verifier.pass_s = 0.001
    drafters = [await start.drafter(RIGHT) for _ in range(2)]
    settings: dict[str, Any] = {"draft_deadline_ms": 20.0, "patience_ms": 50.0, "lost_after_s": 0.1}
    stack = await start.coordinator([verifier], drafters, **settings)
    answer = stack.generate(max_tokens=4000, gamma=4, include_rounds=True)
    chunks = await take_until(answer, lambda entry: entry.num_drafted == 4)
    used, other = sorted(drafters, key=lambda drafter: not drafter.sessions)
    used.is_frozen = True
    chunks += await take_until(answer, lambda entry: entry.reason == "draft_late")
    chunks += await take_until(answer, lambda entry: entry.num_drafted == 4)
    await answer.aclose()
    assert other.requests
    got = tuple(token for chunk in chunks for token in chunk.ids)
    assert got == truth(len(got))


async def test_drafter_absent_at_start(start: Start) -> None:
    """Without its drafter a coordinator serves plainly, says so, and speculates once the drafter is there."""
    verifier, drafter = await start.verifier(LAW), await start.drafter(RIGHT)
    await drafter.kill()
    stack = await start.coordinator([verifier], [drafter], is_waiting=False)
    await stack.service.start()
    done = await stack.complete(max_tokens=10, gamma=4, include_rounds=True)
    assert {entry.reason for entry in done.rounds} == {"drafter_down"}
    assert done.started.drafter is None
    await drafter.start()
    await until(lambda: stack.service.roster.num_drafters_up == 1)
    again = await stack.complete(max_tokens=10, gamma=4)
    assert again.ids == done.ids
    assert again.statistics.num_drafts > 0
    assert again.started.drafter == drafter.address


async def test_drafter_of_another_vocabulary(start: Start) -> None:
    """A drafter with other token strings is not used and named as the problem; the service goes on plainly."""
    verifier = await start.verifier(LAW)
    drafter = await start.drafter(RIGHT, vocabulary_hash="other")
    stack = await start.coordinator([verifier], [drafter], is_waiting=False)
    await stack.service.start()
    await until(lambda: drafter.num_streams > 0)
    done = await stack.complete(max_tokens=10, gamma=4)
    assert done.statistics.num_drafts == 0
    info = await stack.client.info()
    peer = next(peer for peer in info.peers if peer.role == "drafter")
    assert not peer.is_up
    assert peer.problem is not None
    assert "vocabulary" in peer.problem
    assert "other" in peer.problem


async def test_two_drafters(start: Start) -> None:
    """When one of two drafters dies the other takes over its sessions."""
    verifier = await start.verifier(LAW)
    verifier.pass_s = 0.001
    drafters = [await start.drafter(RIGHT) for _ in range(2)]
    stack = await start.coordinator([verifier], drafters)
    answer = stack.generate(max_tokens=150, gamma=4)
    first = await anext(answer)
    assert first.started is not None
    used, other = sorted(drafters, key=lambda drafter: drafter.address != first.started.drafter)  # type: ignore[union-attr]
    await used.kill()
    chunks = [first, *[chunk async for chunk in answer]]
    plain = await stack.complete(max_tokens=150, gamma=0)
    assert tuple(token for chunk in chunks for token in chunk.ids) == plain.ids
    assert len(other.requests) > 10


async def test_lying_drafter(start: Start) -> None:
    """Ids outside the vocabulary cut a draft, and are counted; the text is the target's."""
    verifier = await start.verifier(LAW)

    def lie(tokens: Any, num_prompt: int, gamma: int) -> list[int]:
        return [*RIGHT(tokens, num_prompt, 2), len(VOCABULARY), (1 << 31) - 1][:gamma]

    stack = await start.coordinator([verifier], [await start.drafter(lie)])
    plain = await stack.complete(max_tokens=50, gamma=0)
    done = await stack.complete(max_tokens=50, gamma=4)
    assert done.ids == plain.ids
    assert done.statistics.num_dropped_by_cause["token"] > 5
    assert max(len(work.draft) for work in verifier.works) == 2


# ---- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["twice", "reversed", "stale", "garbage", "lost"])
async def test_bad_frames_from_the_drafter(start: Start, kind: str) -> None:
    """Parts that come twice, in the wrong order, too late, damaged or not at all change no token."""
    stack, _, drafter = await three(start)
    drafter.is_by_node = True
    drafter.mangle = mangler(kind)
    plain = await stack.complete(max_tokens=80, gamma=0)
    done = await stack.complete(max_tokens=80, gamma=4)
    assert done.ids == plain.ids


@pytest.mark.parametrize("kind", ["twice", "stale", "garbage"])
async def test_bad_frames_from_the_verifier(start: Start, kind: str) -> None:
    """Verdicts that come twice, again later, or among damaged ones are taken once, and the others are counted."""
    stack, verifier, _ = await three(start)
    plain = await stack.complete(max_tokens=80, gamma=0)
    verifier.mangle = mangler(kind)
    done = await stack.complete(max_tokens=80, gamma=4)
    assert done.ids == plain.ids
    dropped = sum(done.statistics.num_dropped_by_cause.values())
    assert dropped + sum(stack.service.roster.verifiers[verifier.address].num_dropped_by_cause.values()) > 0


def mangler(kind: str) -> Any:
    """Does something to every frame's answers, or to some of them by chance (fixed seed)."""
    source, seen = random.Random(5), []

    def mangle(answers: list[Any]) -> list[Any]:
        seen.extend(answers)
        match kind:
            case "twice":
                return [answer for answer in answers for _ in range(2)]
            case "reversed":
                return answers[::-1]
            case "stale":
                return [*answers, *source.sample(seen, min(3, len(seen)))]
            case "lost":
                return [answer for answer in answers if source.random() < 0.9]
            case _:
                garbage = type(answers[0])()
                garbage.CopyFrom(answers[0])
                garbage.header.session = b"short"
                return [garbage, *answers, type(answers[0])()]

    return mangle


# ---- verifiers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 4])
async def test_verifier_stream_cut(start: Start, gamma: int) -> None:
    """A stream to the verifier that breaks is opened again, and nothing is missing or doubled."""
    stack, verifier, _ = await three(start)
    plain = await stack.complete(max_tokens=150, gamma=0)
    answer = stack.generate(max_tokens=150, gamma=gamma)
    chunks = []
    async for chunk in answer:
        chunks.append(chunk)
        if len(chunks) in {5, 20, 21}:
            verifier.cut()
    assert tuple(token for chunk in chunks for token in chunk.ids) == plain.ids
    assert verifier.num_streams > 1
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.statistics.num_dropped_by_cause["stream_cut"] >= 1
    assert len(verifier.opens) == 2


@pytest.mark.parametrize("gamma", [0, 4])
async def test_verifier_restarted(start: Start, gamma: int) -> None:
    """A verifier that restarts gets the session anew, prompt and output told apart; the client sees nothing of it."""
    stack, verifier, _ = await three(start)
    plain = await stack.complete(max_tokens=150, gamma=0)
    answer = stack.generate(max_tokens=150, gamma=gamma)
    chunks = [await anext(answer) for _ in range(5)]
    await verifier.kill()
    await verifier.start()
    chunks += [chunk async for chunk in answer]
    assert tuple(token for chunk in chunks for token in chunk.ids) == plain.ids
    opened = verifier.opens[-1]
    assert opened.prompt == tuple(ids("abc"))
    assert opened.output_so_far == plain.ids[: len(opened.output_so_far)]
    assert len(opened.output_so_far) > 0


async def test_a_verifier_is_told_what_is_left_until_the_first_token(start: Start) -> None:
    """An opening says what remains of the target: less after a restart, nothing once that token is out."""
    stack, verifier, drafter = await three(start)
    await stack.complete()
    verifier.is_frozen = True
    answer = stack.generate(max_tokens=150, gamma=4, targets=Targets(first_token_s=1000.0))
    first = asyncio.ensure_future(anext(answer))
    await until(lambda: len(verifier.opens) == 2)
    await verifier.kill()
    verifier.is_frozen = False
    await verifier.start()
    chunk = await first
    while not chunk.ids:
        chunk = await anext(answer)
    await verifier.kill()
    await verifier.start()
    async for _ in answer:
        pass
    without, *opens = verifier.opens
    assert without.first_token_us is None
    left_us = [opened.first_token_us or 0 for opened in opens if not opened.output_so_far]
    assert len(left_us) > 1
    assert left_us == sorted(set(left_us), reverse=True)
    assert 0 < left_us[-1] < left_us[0] <= 1e9
    assert {opened.first_token_us for opened in opens if opened.output_so_far} == {None}
    assert {opened.first_token_us for opened in drafter.opens} == {None}


async def test_another_verifier_takes_over(start: Start) -> None:
    """When one of two verifiers dies the other goes on with its sessions."""
    verifiers = [await start.verifier(LAW) for _ in range(2)]
    for verifier in verifiers:
        verifier.pass_s = 0.001
    stack = await start.coordinator(verifiers, [await start.drafter(RIGHT)], lost_after_s=0.1)
    answer = stack.generate(max_tokens=200, gamma=4)
    first = await anext(answer)
    assert first.started is not None
    used = next(verifier for verifier in verifiers if verifier.address == first.started.verifier)
    await used.kill()
    chunks = [first, *[chunk async for chunk in answer]]
    plain = await stack.complete(max_tokens=200, gamma=0)
    assert tuple(token for chunk in chunks for token in chunk.ids) == plain.ids


async def test_no_verifier(start: Start) -> None:
    """With no verifier left a request ends as unavailable, after a bounded time and naming the address."""
    stack, verifier, _ = await three(start, lost_after_s=0.05, failover_s=0.2)
    answer = stack.generate(max_tokens=1500)
    await anext(answer)
    await verifier.kill()
    with pytest.raises(Unavailable, match=verifier.address):
        async for _ in answer:
            pass


async def test_verifier_that_drains(start: Start) -> None:
    """A verifier that refuses new sessions is passed over for another one."""
    verifiers = [await start.verifier(LAW) for _ in range(2)]
    stack = await start.coordinator(verifiers)
    verifiers[0].refuse_opens = Unavailable("this verifier is shutting down")
    for _ in range(3):
        done = await stack.complete(max_tokens=10)
        assert len(done.ids) == 10


async def test_verifier_that_fails_one_request(start: Start) -> None:
    """An error of the target ends the request with that error, and no other."""
    stack, verifier, _ = await three(start)
    verifier.refuse_opens = TargetFailed("the logits at position 3 are not numbers")
    with pytest.raises(TargetFailed, match="position 3"):
        await stack.complete()
    verifier.refuse_opens = None
    assert len((await stack.complete()).ids) == 20


async def test_verifier_that_is_full(start: Start) -> None:
    """Where the only verifier is full the client is told to come again."""
    stack, verifier, _ = await three(start)
    verifier.refuse_opens = Overloaded("1024 sessions are open")
    with pytest.raises(Overloaded, match="1024 sessions"):
        await stack.complete()


async def test_session_that_is_always_lost(start: Start) -> None:
    """A session that a verifier loses again and again ends with an error, not in a circle."""
    stack, verifier, _ = await three(start)
    verifier.mangle = lambda answers: [_refused(answer) for answer in answers]
    with pytest.raises(Unavailable, match="unknown_session"):
        await stack.complete()


def _refused(answer: Any) -> Any:
    header = type(answer)(header=answer.header)
    header.refusal.reason = "unknown_session"
    header.refusal.status.code = 5
    return header


# ---- requests that end early ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 4])
async def test_cancel(start: Start, gamma: int) -> None:
    """A request that is cancelled frees its sessions on both sides, and others go on untouched."""
    stack, verifier, drafter = await three(start)
    plain = await stack.complete(max_tokens=100, gamma=0)
    other = asyncio.create_task(stack.complete(max_tokens=100, gamma=gamma))

    async def consume() -> None:
        async for _ in stack.generate(max_tokens=4000, gamma=gamma):
            pass

    tasks = [asyncio.create_task(consume()) for _ in range(3)]
    await until(lambda: len(verifier.sessions) == 4)
    for task in tasks:
        await cancelled(task)
    assert (await other).ids == plain.ids
    await until(lambda: not verifier.sessions and not drafter.sessions)
    await until(lambda: stack.service.num_running == 0)
    assert all(peer.num_sessions == 0 for peer in stack.service.roster.describe())


async def test_deadline(start: Start) -> None:
    """A request whose deadline is over frees its sessions on both sides."""
    stack, verifier, drafter = await three(start)
    with pytest.raises(DeadlineExceeded):
        async for _ in stack.client.generate("abc", timeout_s=0.1, temperature=0.0, max_tokens=4000):
            pass
    await until(lambda: not verifier.sessions and not drafter.sessions)
    await until(lambda: stack.service.num_running == 0)


async def test_end_frees_sessions(start: Start) -> None:
    """A request that comes to its end leaves no session behind, whatever ended it."""
    stack, verifier, drafter = await three(start)
    await stack.complete(max_tokens=30, gamma=4)
    done = await stack.complete(max_tokens=30, gamma=4, stop_ids=[5, 6, 7, 8, 9])
    assert done.finish_reason is FinishReason.STOP
    await until(lambda: not verifier.sessions and not drafter.sessions)


async def test_shutdown(start: Start) -> None:
    """A coordinator that shuts down takes no new request and finishes those that run."""
    stack, _, _ = await three(start)
    running = asyncio.create_task(stack.complete(max_tokens=100, gamma=4))
    await until(lambda: stack.service.num_running == 1)
    stopping = asyncio.create_task(stack.service.stop())
    await until(lambda: stack.service.is_draining)
    with pytest.raises(Unavailable, match="shutting down"):
        await stack.complete()
    assert len((await running).ids) == 100
    await stopping


async def test_too_many_requests(start: Start) -> None:
    """Over its limit a coordinator refuses at once, and says to come again."""
    stack, verifier, _ = await three(start, max_requests=1)
    verifier.is_frozen = True
    running = asyncio.create_task(stack.complete())
    await until(lambda: stack.service.num_running == 1)
    with pytest.raises(Overloaded, match="max_requests") as refused:
        await stack.complete()
    assert refused.value.retry_after_s is not None
    await cancelled(running)


async def test_errors_are_ours(start: Start) -> None:
    """Nothing that a peer answers ends a request as an internal error without a word."""
    stack, verifier, _ = await three(start)
    verifier.refuse_opens = PilotfishError("something of the verifier's own")
    with pytest.raises(PilotfishError, match="something of the verifier's own"):
        await stack.complete()


async def test_a_verdict_that_is_lost_in_silence(start: Start) -> None:
    """A verifier that says nothing more, though its stream is open, is told to go on; nobody waits for the lease."""
    stack, verifier, _ = await three(start, lost_after_s=0.1, patience_ms=50.0, draft_deadline_ms=40.0)
    plain = await stack.complete(max_tokens=40, gamma=0)
    num_lost = 0

    def lose(answers: list[Any]) -> list[Any]:
        nonlocal num_lost
        if verifier.num_streams == 1 and sum(session.num_verdicts for session in verifier.sessions.values()) > 3:
            num_lost += 1
            return [] if num_lost < 3 else answers
        return answers

    verifier.mangle, verifier.patience = lose, 1000
    done = await asyncio.wait_for(stack.complete(max_tokens=40, gamma=3), timeout=10)
    assert done.ids == plain.ids
    assert num_lost >= 3
    assert done.statistics.num_dropped_by_cause["quiet"] >= 1
