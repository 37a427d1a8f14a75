from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pilotfish import AsyncClient, Client
from pilotfish.client import Completion
from pilotfish.errors import (
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    PilotfishError,
    TargetFailed,
    Unavailable,
)
from pilotfish.messages import (
    Chat,
    Chunk,
    Finished,
    FinishReason,
    Message,
    Request,
    Round,
    Rule,
    Sampling,
    Speculation,
    Started,
    Statistics,
    TokenKind,
)
from tests.plumbing.fakes import FakeCoordinator, raising

ANSWER = tuple(range(100, 110))  # ids of the whole answer; the text of an id is its number and a space
STARTED = Started("00" * 16, "toy", 3, verifier="v:1", rule=Rule.BLOCK)
STATISTICS = Statistics(num_drafts=2, num_drafted_tokens=8, num_accepted_tokens=4)
FINISHED = Finished(FinishReason.STOP, 3, len(ANSWER), STATISTICS)


def pieces(ids: tuple[int, ...]) -> list[Chunk]:
    """One chunk a token."""
    return [Chunk(f"{token} ", (token,), (TokenKind.ACCEPTED,), num_characters=(4,)) for token in ids]


async def whole(request: Request) -> AsyncIterator[Chunk]:
    """The answer, after what the client has already."""
    yield Chunk(started=STARTED)
    for chunk in pieces(ANSWER[len(request.output_so_far) :]):
        yield chunk
    yield Chunk(finished=FINISHED)


def breaking_after(num_tokens: int, error: PilotfishError) -> Callable[[Request], AsyncIterator[Chunk]]:
    """A script that breaks once it has sent so many tokens."""

    def script(request: Request) -> AsyncIterator[Chunk]:
        rest = ANSWER[len(request.output_so_far) :]
        return raising(error, Chunk(started=STARTED), *pieces(rest[:num_tokens]))

    return script


async def ask(kind: type[Client | AsyncClient], addresses: Any, prompt: Any = "Hi", **options: Any) -> Completion:
    """A whole answer through either client."""
    if issubclass(kind, AsyncClient):
        async with AsyncClient(addresses) as client:
            return await client.complete(prompt, **options)

    def blocking() -> Completion:
        with Client(addresses) as client:
            return client.complete(prompt, **options)

    return await asyncio.to_thread(blocking)


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
async def test_an_answer_comes_whole(kind: Any) -> None:
    """Text, ids, kinds, finish reason, usage and statistics of a stream are put together."""
    async with FakeCoordinator(whole) as coordinator:
        completion = await ask(kind, coordinator.address)
    assert completion.text == "100 101 102 103 104 105 106 107 108 109 "
    assert (completion.ids, completion.kinds) == (ANSWER, (TokenKind.ACCEPTED,) * 10)
    assert (completion.finish_reason, completion.num_prompt_tokens) == (FinishReason.STOP, 3)
    assert (completion.num_output_tokens, completion.num_characters) == (10, (4,) * 10)
    assert (completion.statistics.acceptance_rate, completion.statistics.mean_length) == (0.5, 3.0)
    assert completion.started == STARTED


@both
async def test_every_option_reaches_the_coordinator(kind: Any) -> None:
    """What is said at the client is what the coordinator reads."""
    wish = Speculation(gamma=3, max_gamma=4, rule=Rule.TOKEN, speculator="ngram")
    async with FakeCoordinator(whole) as coordinator:
        await ask(
            kind,
            coordinator.address,
            [{"role": "user", "content": "Hi"}],
            max_tokens=20,
            temperature=0.5,
            top_k=7,
            top_p=0.9,
            seed=2**64 - 1,
            stop="END",
            stop_ids=[5],
            ignore_eos=True,
            speculation=wish,
            output_so_far=ANSWER[:2],
            model="toy",
            include_rounds=True,
            timeout_s=30,
        )
        (request,) = coordinator.requests
    assert request == Request(
        Chat((Message("user", "Hi"),)),
        Sampling(0.5, 7, 0.9),
        2**64 - 1,
        20,
        ("END",),
        (5,),
        True,
        wish,
        ANSWER[:2],
        "toy",
        True,
    )


@both
async def test_what_was_left_out_is_left_to_the_coordinator(kind: Any) -> None:
    """A bare call sends nothing but its prompt."""
    async with FakeCoordinator(whole) as coordinator:
        await ask(kind, coordinator.address, [1, 2])
        assert coordinator.requests == [Request((1, 2))]


@both
async def test_a_request_can_be_part_of_the_callers_trace(kind: Any) -> None:
    """The caller's trace context travels as W3C says; without one nothing is said."""
    traceparent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with FakeCoordinator(whole) as coordinator:
        await ask(kind, coordinator.address, traceparent=traceparent)
        assert coordinator.metadata["traceparent"] == traceparent
        await ask(kind, coordinator.address)
        assert "traceparent" not in coordinator.metadata


@both
async def test_a_broken_stream_goes_on_at_another_address(kind: Any) -> None:
    """A coordinator that dies in mid-answer: the next one continues, without a gap or a repeat, and starts once."""
    dying = breaking_after(4, Unavailable("going away"))
    async with FakeCoordinator(dying) as first, FakeCoordinator(whole) as second:
        completion = await ask(kind, [first.address, second.address])
        assert completion.ids == ANSWER
        assert completion.text == "100 101 102 103 104 105 106 107 108 109 "
        assert [request.output_so_far for request in first.requests] == [()]
        assert [request.output_so_far for request in second.requests] == [ANSWER[:4]]


@both
async def test_an_answer_survives_many_breaks(kind: Any) -> None:
    """As long as something comes between two breaks, an answer is taken up again at the same address."""
    async with FakeCoordinator(breaking_after(1, Unavailable("flaky"))) as coordinator:
        flaky = coordinator.script

        def script(request: Request) -> AsyncIterator[Chunk]:
            return whole(request) if len(request.output_so_far) == 8 else flaky(request)

        coordinator.script = script
        assert (await ask(kind, coordinator.address)).ids == ANSWER
        assert len(coordinator.requests) == 9


@both
async def test_an_answer_that_makes_no_progress_is_given_up(kind: Any) -> None:
    """When every address fails as often as allowed, the last reason is raised."""
    async with FakeCoordinator(breaking_after(0, Unavailable("nobody home"))) as coordinator:
        coordinator.script = lambda _: raising(Unavailable("nobody home"))
        with pytest.raises(Unavailable, match="nobody home"):
            await ask(kind, coordinator.address)
        assert len(coordinator.requests) == 3


@both
async def test_nobody_there_is_unavailable(kind: Any) -> None:
    """A wrong address raises Unavailable, not gRPC's own error."""
    async with FakeCoordinator(whole) as coordinator:
        address = coordinator.address
    with pytest.raises(Unavailable):
        await ask(kind, address)


@both
@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("no such speculator", field="speculation.speculator"),
        Overloaded("queue full", retry_after_s=0.5),
        TargetFailed("NaN in the logits"),
        PilotfishError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_other_errors_are_raised_as_they_are(kind: Any, error: PilotfishError) -> None:
    """What the coordinator raised is raised at the client, after one try, with field and delay."""
    async with FakeCoordinator(breaking_after(2, error)) as coordinator:
        with pytest.raises(type(error)) as raised:
            await ask(kind, coordinator.address)
        assert len(coordinator.requests) == 1
    assert type(raised.value) is type(error)
    assert (raised.value.message, raised.value.field) == (error.message, error.field)
    assert raised.value.retry_after_s == error.retry_after_s


@both
async def test_the_time_of_a_request_is_over_when_it_is(kind: Any) -> None:
    """A coordinator that hangs is left when the time is over."""

    async def hang(request: Request) -> AsyncIterator[Chunk]:
        yield Chunk(started=STARTED)
        await asyncio.Event().wait()

    async with FakeCoordinator(hang) as coordinator:
        with pytest.raises(DeadlineExceeded):
            await ask(kind, coordinator.address, timeout_s=0.2)
        await coordinator.ended.wait()


@both
async def test_a_bad_value_is_refused_before_anything_is_sent(kind: Any) -> None:
    """What no message can hold is refused at the call."""
    async with FakeCoordinator(whole) as coordinator:
        with pytest.raises(InvalidArgument):
            await ask(kind, coordinator.address, [-1])
        assert coordinator.requests == []


@both
async def test_an_answer_without_an_end_is_an_error(kind: Any) -> None:
    """A stream that just stops is not taken for a whole answer."""

    async def stop(request: Request) -> AsyncIterator[Chunk]:
        yield Chunk("half", started=STARTED)

    async with FakeCoordinator(stop) as coordinator:
        with pytest.raises(PilotfishError, match="no end"):
            await ask(kind, coordinator.address)


async def endless(request: Request) -> AsyncIterator[Chunk]:
    yield Chunk(started=STARTED)
    while True:
        yield Chunk("x", (1,), (TokenKind.PLAIN,))
        await asyncio.sleep(0)


async def test_closing_the_iterator_cancels_the_request() -> None:
    """Whoever stops reading frees the coordinator at once."""
    async with FakeCoordinator(endless) as coordinator, AsyncClient(coordinator.address) as client:
        answer = client.generate("Hi")
        async for chunk in answer:
            if chunk.ids:
                break
        await answer.aclose()
        await coordinator.ended.wait()


async def test_cancelling_the_task_cancels_the_request() -> None:
    """A cancelled task frees the coordinator at once."""
    async with FakeCoordinator(endless) as coordinator, AsyncClient(coordinator.address) as client:
        task = asyncio.create_task(client.complete("Hi"))
        await coordinator.began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await coordinator.ended.wait()


async def test_leaving_a_loop_over_the_blocking_client_cancels_the_request() -> None:
    """So does the client that blocks."""

    def read_a_little(address: str) -> None:
        with Client(address) as client:
            for chunk in client.generate("Hi"):
                if chunk.ids:
                    break

    async with FakeCoordinator(endless) as coordinator:
        await asyncio.to_thread(read_a_little, coordinator.address)
        await coordinator.ended.wait()


@both
async def test_rounds_come_where_they_were_asked_for(kind: Any) -> None:
    """The rounds of all chunks are put together in order."""
    rounds = tuple(Round(index, 4, "request", 4, 2, 3) for index in range(3))

    async def script(request: Request) -> AsyncIterator[Chunk]:
        yield Chunk(started=STARTED, rounds=rounds[:1])
        yield Chunk(rounds=rounds[1:], finished=FINISHED)

    async with FakeCoordinator(script) as coordinator:
        assert (await ask(kind, coordinator.address, include_rounds=True)).rounds == rounds


async def test_info_says_what_is_served() -> None:
    """Both clients ask the coordinator what it is."""
    async with FakeCoordinator(whole) as coordinator:
        async with AsyncClient(coordinator.address) as client:
            info = await client.info()

        def blocking() -> Any:
            with Client(coordinator.address) as client:
                return client.info()

        assert await asyncio.to_thread(blocking) == info
    assert (info.model, info.context_length, info.max_gamma) == ("toy", 2048, 8)


def test_a_client_needs_an_address() -> None:
    """No address at all is refused at once."""
    with pytest.raises(InvalidArgument):
        Client([])
