"""KV that is shared, short, rolled back or given away changes no token, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from pilotfish.messages import Speculation
from pilotfish.telemetry import Metric
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, RANDOM, drafts, until

SLOW = dict(RANDOM) | {"pass_us": [[1, 2000]]}


async def test_the_second_run_of_a_prompt_is_the_first(serve: Serve) -> None:
    """A prompt that is there again finds its KV, and gives the same ids with the same acceptance."""
    # seen in vllm#47930
    async with serve(verifier={"page_size": 4}) as services:
        prompt = [i * 5 % 16 for i in range(50)]
        first = await services.complete(prompt, max_tokens=80, speculation=drafts("Part", 4))
        for gamma in GAMMAS[1:]:
            again = await services.complete(prompt, max_tokens=80, speculation=drafts("Part", gamma))
            assert again.ids == first.ids == services.greedy(prompt, 80)
            assert again.started.num_cached_tokens == 48
        again = await services.complete(prompt, max_tokens=80, speculation=drafts("Part", 4))
        assert again.statistics.acceptance_rate == first.statistics.acceptance_rate
        assert first.started.num_cached_tokens == 0


async def test_a_cancelled_request_leaves_the_others_and_the_next_alone(serve: Serve) -> None:
    """A is cancelled while B runs and C starts: B and C get their plain answers, and A's sessions are gone."""
    # seen in tt-plugin#118
    async with serve(SLOW, verifier={"page_size": 4}) as services:
        a = services.generate("aaab", max_tokens=2000, speculation=drafts("Part", 5))
        await anext(a)
        b = asyncio.create_task(services.complete("bbba", max_tokens=60, speculation=drafts("Part", 5)))
        await until(lambda: services.verifier.num_sessions == 2 and services.drafter.num_sessions == 2)
        await a.aclose()
        c = await services.complete("aaab", max_tokens=60, speculation=drafts("Perfect", 3))
        assert (await b).ids == services.greedy("bbba", 60)
        assert c.ids == services.greedy("aaab", 60)
        await services.until_idle()
        for side in (services.verifier, services.drafter):
            await until(lambda: side.telemetry.value(Metric.SESSIONS) == 0)  # noqa: B023 - awaited at once
        assert services.coordinator.telemetry.value(Metric.RUNNING) == 0


@pytest.mark.parametrize("name", ["Perfect", "Part", "Fork"])
async def test_sessions_that_lose_their_kv_lose_no_token(serve: Serve, name: str) -> None:
    """Twelve requests in a pool for three are preempted and computed again, and each gets its own text."""
    async with serve(verifier={"page_size": 4, "num_kv_pages": 60}) as services:
        chance = random.Random(6)
        prompts = [[chance.randrange(16) for _ in range(chance.randrange(1, 30))] for _ in range(12)]
        answers = await asyncio.gather(
            *(
                services.complete(prompt, max_tokens=50, speculation=drafts(name, GAMMAS[i % 6]))
                for i, prompt in enumerate(prompts)
            )
        )
        assert [answer.ids for answer in answers] == [services.greedy(prompt, 50) for prompt in prompts]
        assert services.verifier.telemetry.value(Metric.PREEMPTIONS) > 0


async def test_a_request_nobody_reads_holds_up_nobody(serve: Serve) -> None:
    """While one client takes its first piece and then nothing, others are served, and its answer is whole later."""
    async with serve() as services:
        slow = services.generate("aab", max_tokens=3000, speculation=drafts("Perfect", 4))
        ids = list((await anext(slow)).ids)
        others = await asyncio.gather(*(services.complete(max_tokens=40, speculation=drafts("Part", 3)) for _ in "abc"))
        assert {answer.ids for answer in others} == {services.greedy("abc", 40)}
        async for chunk in slow:
            ids += chunk.ids
        assert tuple(ids) == services.greedy("aab", 3000)


async def test_abandoned_sessions_end_with_their_lease(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of a coordinator that vanishes without a word are freed by both sides when their lease is over."""
    # seen in tt-inference-server#4691
    slow = dict(RANDOM) | {"pass_us": [[1, 20000]]}
    async with serve(slow, coordinator={"lease_s": 0.3, "patience_ms": 200.0, "draft_deadline_ms": 100.0}) as services:
        stuck = services.generate("ab", max_tokens=4000, speculation=Speculation(is_off=True))
        drafted = services.generate("ba", max_tokens=4000, speculation=drafts("Perfect", 2))
        await asyncio.gather(anext(stuck), anext(drafted))
        roster = services.coordinator.service.roster
        for peer in (*roster.verifiers.values(), *roster.drafters.values()):
            monkeypatch.setattr(peer, "send", lambda message: None)  # from now on nothing is said
        await services.until_idle()
        assert services.verifier.telemetry.value(Metric.LEASES_EXPIRED) == 2
        assert services.drafter.telemetry.value(Metric.LEASES_EXPIRED) == 1
        await stuck.aclose()
        await drafted.aclose()
