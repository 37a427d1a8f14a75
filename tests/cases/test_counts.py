"""What is counted of speculation: per request, per round and for Prometheus."""

from __future__ import annotations

import asyncio

import pytest

from pilotfish.messages import Speculation, TokenKind
from pilotfish.telemetry import Metric
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, Services, drafts
from tests.cases.test_greedy import Given


def counters(services: Services) -> tuple[float, float, float]:
    """Drafts, drafted and accepted tokens, as Prometheus has them."""
    value = services.coordinator.telemetry.value
    return value(Metric.DRAFTS), value(Metric.DRAFT_TOKENS), value(Metric.ACCEPTED_TOKENS)


async def test_a_scrape_before_the_first_draft_works(serve: Serve) -> None:
    """Before anything was drafted, and after a plain request, the counters are there at 0 and no rate is claimed."""
    async with serve() as services:
        for _ in range(2):
            lines = services.coordinator.telemetry.exposition().splitlines()
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                assert f"vllm:spec_decode_num_{name}_total 0.0" in lines
            answer = await services.plain()
            assert (answer.statistics.acceptance_rate, answer.statistics.mean_length) == (None, None)
            assert answer.statistics.num_drafts == answer.statistics.num_drafted_tokens == 0
            assert answer.statistics.num_plain_tokens == 20
            for side in (services.verifier, services.drafter):
                assert "pilotfish_sessions" in side.telemetry.exposition()


async def test_half_right_is_one_half(serve: Serve) -> None:
    """Two of four right is a rate of exactly 0.5 and a length of exactly 3, whatever the order of events."""
    # seen in llama.cpp PR#22506
    async with serve(speculators=["Part"]) as services:
        answer = await services.complete(max_tokens=30, speculation=drafts("Part", 4))  # the last round has γ 2
        assert services.greedy("abc", 30) == answer.ids
        answer = await services.complete(max_tokens=33, speculation=drafts("Part", 4), include_rounds=True)
        full = [entry for entry in answer.rounds if entry.num_drafted == 4]
        assert sum(entry.num_accepted for entry in full) / sum(entry.num_drafted for entry in full) == 0.5
        assert sum(entry.num_committed for entry in full) / len(full) == 3.0


async def test_drafted_is_what_was_verified(serve: Serve) -> None:
    """γ of 1, 3, 0 and 5 are nine drafted tokens in three drafts; the free round is none."""
    async with serve(policy=Given([1, 3, 0, 5, 0, 0, 0, 0])) as services:
        answer = await services.complete(max_tokens=13, speculation=drafts("Perfect"), include_rounds=True)
        assert answer.ids == services.greedy("abc", 13)
        drafted = [entry.num_drafted for entry in answer.rounds]
        assert drafted[:3] == [1, 3, 0]
        assert answer.statistics.num_drafted_tokens == sum(drafted) <= 9
        assert answer.statistics.num_drafts == sum(number > 0 for number in drafted)


@pytest.mark.parametrize("gamma", GAMMAS[1:])
async def test_a_bonus_is_not_accepted(serve: Serve, gamma: int) -> None:
    """K of K accepted counts K accepted and K + 1 committed; plain rounds count no draft."""
    # seen in tokenspeed#1443
    async with serve() as services:
        answer = await services.complete(max_tokens=3 * (gamma + 1), speculation=drafts("Perfect", gamma))
        statistics = answer.statistics
        assert (statistics.num_drafts, statistics.num_drafted_tokens) == (3, 3 * gamma)
        assert statistics.num_accepted_tokens == 3 * gamma
        assert statistics.num_accepted_by_depth == (3,) * gamma
        assert answer.kinds.count(TokenKind.ACCEPTED) == 3 * gamma
        assert answer.kinds.count(TokenKind.BONUS) == 3
        assert counters(services) == (3, 3 * gamma, 3 * gamma)
        await services.complete(max_tokens=20, speculation=Speculation(gamma=0))
        assert counters(services) == (3, 3 * gamma, 3 * gamma)


async def test_a_request_tells_what_load_clients_check(serve: Serve) -> None:
    """The identities that load clients hold a server to are true of every request, whatever drafted it."""
    # seen in sglang PR#33518, vllm PR#48915
    async with serve() as services:
        for name in ("Perfect", "Adverse", "Part"):
            for gamma in (0, 1, 4):
                answer = await services.complete(max_tokens=23, speculation=drafts(name, gamma), include_rounds=True)
                told, histogram = answer.statistics, answer.statistics.num_drafts_by_accepted
                assert sum(histogram) == told.num_drafts
                assert sum(held * number for held, number in enumerate(histogram)) == told.num_accepted_tokens
                drafted = [entry for entry in answer.rounds if entry.num_drafted]
                assert list(histogram) == [
                    sum(entry.num_accepted == held for entry in drafted) for held in range(len(histogram))
                ]
                assert told.max_drafted_tokens == max((entry.num_drafted for entry in drafted), default=0) <= gamma
                assert sum(told.num_rounds_by_reason.values()) == told.num_verdicts == len(answer.rounds)
                assert told.num_correction_tokens == answer.kinds.count(TokenKind.CORRECTION)
                assert told.num_bonus_tokens == answer.kinds.count(TokenKind.BONUS)
                assert told.num_plain_tokens == answer.kinds.count(TokenKind.PLAIN)
                assert told.queue_us == sum(entry.queue_us for entry in answer.rounds)
                assert told.pass_us == sum(entry.pass_us for entry in answer.rounds)


async def test_requests_are_pooled_as_sums(serve: Serve) -> None:
    """Over requests of different luck counters are sums, never means of rates, and they never fall."""
    # seen in slime#2240, vllm#33729
    async with serve() as services:
        before = counters(services)
        total = [0, 0, 0]
        for name in ("Perfect", "Adverse", "Part"):
            answers = await asyncio.gather(
                *(services.complete(max_tokens=31, speculation=drafts(name, gamma)) for gamma in GAMMAS)
            )
            for answer in answers:
                statistics = answer.statistics
                assert statistics.num_accepted_tokens <= statistics.num_drafted_tokens
                assert sum(statistics.num_accepted_by_depth) == statistics.num_accepted_tokens
                total[0] += statistics.num_drafts
                total[1] += statistics.num_drafted_tokens
                total[2] += statistics.num_accepted_tokens
            now = counters(services)
            assert all(late >= early for early, late in zip(before, now, strict=True))
            before = now
        assert counters(services) == tuple(total)
        kinds = sum(services.coordinator.telemetry.value(Metric.COMMITTED_TOKENS, kind.value) for kind in TokenKind)
        assert kinds == 31 * 18
