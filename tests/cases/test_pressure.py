"""Too many, too large, too slow, gone in the middle: nothing hangs, nothing is left behind, every text is its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from pilotfish.errors import Overloaded, PilotfishError, PoolFull, PromptTooLong
from pilotfish.messages import Speculation, TokenKind
from pilotfish.telemetry import Metric
from tests.cases.conftest import Serve
from tests.cases.services import RANDOM, Services, drafts, until

SLOW = dict(RANDOM) | {"pass_us": [[1, 2000]]}
SHORT: Mapping[str, Any] = {"patience_ms": 90.0, "draft_deadline_ms": 80.0}


async def test_who_waits_for_kv_longer_than_the_lease_is_still_served(serve: Serve) -> None:
    """Requests that wait for KV for many leases get their turn and their text: a lease is for callers that are gone."""
    async with serve(
        SLOW, verifier={"page_size": 4, "num_kv_pages": 16}, coordinator=dict(SHORT) | {"lease_s": 0.15}
    ) as services:
        prompts = [[i, 3 * i % 16] for i in range(12)]
        answers = await asyncio.gather(
            *(
                services.complete(prompt, max_tokens=55, speculation=drafts("Part", 2 * (i % 3)))
                for i, prompt in enumerate(prompts)
            )
        )
        assert [answer.ids for answer in answers] == [services.greedy(prompt, 55) for prompt in prompts]
        assert services.verifier.telemetry.value(Metric.LEASES_EXPIRED) == 0


async def test_a_prompt_that_takes_longer_than_the_lease_is_read(serve: Serve) -> None:
    """A prompt whose reading takes many leases is read to its end, and continued."""
    slow = dict(RANDOM) | {"pass_us": [[1, 60_000]]}
    async with serve(slow, verifier={"prefill_positions": 64}, coordinator=dict(SHORT) | {"lease_s": 0.1}) as services:
        prompt = [i % 16 for i in range(600)]
        for gamma in (0, 3):
            answer = await services.complete(prompt, max_tokens=5, speculation=drafts("Perfect", gamma))
            assert answer.ids == services.greedy(prompt, 5)
        assert services.verifier.telemetry.value(Metric.LEASES_EXPIRED) == 0


@pytest.mark.parametrize("gamma", [0, 4])
async def test_a_reader_slower_than_the_lease_gets_everything(serve: Serve, gamma: int) -> None:
    """A client that stops reading until both sides have freed its sessions, and then reads on, misses no token."""
    async with serve(coordinator=dict(SHORT) | {"lease_s": 0.2}) as services:
        stream = services.generate("ab", max_tokens=2500, speculation=drafts("Adverse", gamma), include_rounds=True)
        ids = list((await anext(stream)).ids)
        for _ in range(2):
            await services.until_idle()  # the flow control of the stream has stopped the request
            for _ in range(300):
                ids += (await anext(stream)).ids
        ids += [token async for chunk in stream for token in chunk.ids]
        assert tuple(ids) == services.greedy("ab", 2500)


async def gone_after(services: Services, num_chunks: int, **options: Any) -> None:
    """A client that leaves after some pieces, or during the first."""
    stream = services.generate([num_chunks % 16], **options)
    if num_chunks == 0:
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        return
    for _ in range(num_chunks):
        await anext(stream)
    await stream.aclose()


@pytest.mark.parametrize("gamma", [0, 1, 4])
async def test_clients_that_leave_at_any_moment_leave_nothing(serve: Serve, gamma: int) -> None:
    """Clients that cancel before, at and after each piece leave no session, no page and no running request."""
    async with serve(SLOW, verifier={"page_size": 4}) as services:
        leaving = [
            gone_after(services, num_chunks, max_tokens=3000, speculation=drafts(name, gamma))
            for num_chunks in range(8)
            for name in ("Perfect", "Part", "Fork")
        ]
        staying = services.complete("ac", max_tokens=40, speculation=drafts("Part", 3))
        _, answer = await asyncio.gather(asyncio.gather(*leaving), staying)
        assert answer.ids == services.greedy("ac", 40)


async def test_clients_that_leave_at_random_times_leave_nothing(serve: Serve) -> None:
    """A hundred requests cut off by their own time limits, whenever that is, leave nothing and harm nobody."""
    chance = random.Random(11)
    async with serve(SLOW, verifier={"page_size": 4, "num_kv_pages": 200}) as services:

        async def cut_off(i: int) -> None:
            with pytest.raises(PilotfishError):
                await services.complete(
                    [i % 16] * chance.randrange(1, 40),
                    max_tokens=700,
                    timeout_s=chance.uniform(0.0, 0.4),
                    speculation=drafts(chance.choice(["Perfect", "Part", "Fork", "Noise"]), chance.randrange(6)),
                )

        whole = [services.complete([i], max_tokens=30, speculation=drafts("Part", 4)) for i in range(5)]
        _, answers = await asyncio.gather(asyncio.gather(*(cut_off(i) for i in range(100))), asyncio.gather(*whole))
        assert [answer.ids for answer in answers] == [services.greedy([i], 30) for i in range(5)]


async def test_what_never_fits_is_refused_at_once(serve: Serve) -> None:
    """A request whose prompt and limit need more KV than there is, is refused by name; one that just fits is served."""
    async with serve(verifier={"page_size": 4, "num_kv_pages": 8}) as services:
        with pytest.raises(PoolFull, match="there are 8"):
            await services.complete([1] * 20, max_tokens=13)
        answer = await services.complete([1] * 20, max_tokens=12, speculation=drafts("Part", 8))
        assert answer.ids == services.greedy([1] * 20, 12)
        many = await asyncio.gather(
            *(services.complete([i] * 20, max_tokens=12, speculation=drafts("Fork", 8)) for i in range(6))
        )
        assert [each.ids for each in many] == [services.greedy([i] * 20, 12) for i in range(6)]


async def test_more_than_may_run_are_refused_to_come_again(serve: Serve) -> None:
    """Requests over the coordinator's most are refused as overload with a delay, and those that run are not touched."""
    async with serve(SLOW, coordinator={"max_requests": 3}) as services:
        running = [
            asyncio.create_task(services.complete([i], max_tokens=60, speculation=drafts("Part", 3))) for i in range(3)
        ]
        await until(lambda: services.coordinator.service.num_running == 3)
        with pytest.raises(Overloaded) as refused:
            await services.complete()
        assert refused.value.retry_after_s is not None
        assert [(await task).ids for task in running] == [services.greedy([i], 60) for i in range(3)]
        assert (await services.complete()).ids == services.greedy("abc", 20)


async def test_more_than_the_verifier_takes_are_refused(serve: Serve) -> None:
    """Sessions over the verifier's most are refused as overload; the drafter's most only costs drafts."""
    async with serve(SLOW, verifier={"max_sessions": 4}, drafter={"max_sessions": 2}) as services:
        asked = [services.complete([i], max_tokens=40, speculation=drafts("Perfect", 3)) for i in range(9)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        served = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert all(isinstance(answer, Overloaded) for answer in answers if isinstance(answer, BaseException))
        assert len(served) >= 4
        for i, answer in enumerate(answers):
            assert isinstance(answer, BaseException) or answer.ids == services.greedy([i], 40)


async def test_a_long_prompt_is_taken_in_parts(serve: Serve) -> None:
    """A prompt of many frames, drafted while others decode, is continued exactly, and they do not wait for its end."""
    table = dict(RANDOM) | {"context_length": 60_000, "pass_us": [[1, 500]]}
    async with serve(table, verifier={"num_kv_pages": 4000}) as services:
        prompt = [(i * i) % 16 for i in range(50_000)]
        long = asyncio.create_task(services.complete(prompt, max_tokens=20, speculation=drafts("Perfect", 4)))
        short = await services.complete("abc", max_tokens=20, speculation=drafts("Part", 4))
        assert short.ids == services.greedy("abc", 20)
        assert (await long).ids == services.greedy(prompt, 20)


async def test_a_text_far_too_long_holds_up_nobody(serve: Serve) -> None:
    """While a text of megabytes is put into tokens, only to be refused, other requests come to their end."""
    async with serve() as services:
        done: list[str] = []

        async def refused() -> None:
            with pytest.raises(PromptTooLong, match="5000000 tokens"):
                await services.complete("a" * 5_000_000)
            done.append("refused")

        async def served() -> None:
            assert (await services.complete(max_tokens=10)).ids == services.greedy("abc", 10)
            done.append("served")

        await asyncio.gather(refused(), served(), served())
        assert done == ["served", "served", "refused"]


async def test_a_speculator_that_nobody_has_any_more_is_done_without(serve: Serve) -> None:
    """A request for a drafter that has died meanwhile is served without it."""
    async with serve(SLOW) as services:
        stream = services.generate("ab", max_tokens=80, speculation=drafts("Perfect", 3))
        ids = list((await anext(stream)).ids)
        await services.drafter.server.stop(0.0)
        ids += [token async for chunk in stream for token in chunk.ids]
        assert tuple(ids) == services.greedy("ab", 80)
        plain = await services.complete("ab", max_tokens=30, speculation=drafts("Perfect", 3))
        assert plain.ids == services.greedy("ab", 30)
        assert plain.statistics.num_drafts == 0
        services.drafter.service.drafter.stop()


async def test_a_drafter_that_reads_no_more_costs_drafts_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what waits for a drafter has no more room requests go on without it, and with it when it reads again."""

    def full(message: object) -> None:
        raise Overloaded("it does not read")

    async with serve(SLOW) as services:
        stream = services.generate("ab", max_tokens=120, speculation=drafts("Perfect", 3))
        ids = list((await anext(stream)).ids)
        (peer,) = services.coordinator.service.roster.drafters.values()
        with monkeypatch.context() as patched:
            patched.setattr(peer, "send", full)
            for _ in range(10):
                ids += (await anext(stream)).ids
            plain = await services.complete("ac", max_tokens=30, speculation=drafts("Perfect", 3))
            assert plain.ids == services.greedy("ac", 30)
            assert plain.statistics.num_drafts == 0
        chunks = [chunk async for chunk in stream]
        ids += [token for chunk in chunks for token in chunk.ids]
        assert tuple(ids) == services.greedy("ab", 120)
        assert any(TokenKind.ACCEPTED in chunk.kinds for chunk in chunks)
        left = services.drafter.service.drafter
        left.stop()  # the session it was not told the end of, else there by lease


async def test_a_verifier_that_reads_no_more_is_overload(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what waits for the only verifier has no more room a request is told to come again, and leaves nothing."""

    def full(message: object) -> None:
        raise Overloaded("it does not read")

    async with serve() as services:
        (peer,) = services.coordinator.service.roster.verifiers.values()
        with monkeypatch.context() as patched:
            patched.setattr(peer, "send", full)
            with pytest.raises(Overloaded):
                await services.complete(speculation=drafts("Perfect", 3))
        assert (await services.complete()).ids == services.greedy("abc", 20)


async def test_passes_that_take_no_time_are_served(serve: Serve) -> None:
    """A table model whose passes are said to take 0 µs is as good as any."""
    async with serve(dict(RANDOM) | {"pass_us": [[1, 0]]}) as services:
        assert (await services.complete(speculation=drafts("Part", 3))).ids == services.greedy("abc", 20)


async def test_a_stop_never_seen_is_no_burden(serve: Serve) -> None:
    """As many and as long stop strings as are taken end no request late and change no text."""
    stops = ["abcdefgh" * 200 + str(i % 8) for i in range(64)]
    async with serve() as services:
        answer = await services.complete(max_tokens=300, stop=stops, speculation=drafts("Perfect", 4))
        assert answer.ids == services.greedy("abc", 300)
        assert answer.text == services.table.decode(answer.ids)


async def test_off_needs_no_drafter(serve: Serve) -> None:
    """Without any drafter requests are served plainly, whatever they wish."""
    async with serve(speculators=[]) as services:
        answer = await services.complete(max_tokens=30, speculation=Speculation(gamma=4))
        assert answer.ids == services.greedy("abc", 30)
        assert answer.started.drafter is None
