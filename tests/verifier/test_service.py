"""A verifier through its door: gRPC on one side, a table model on the other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import Tensor

from pilotfish import models
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.engine.batch import Batch
from pilotfish.engine.table import TableBackend
from pilotfish.messages import Close, FinishReason, Opened, Refusal, Rule, Sampling, TokenKind, Verdict
from pilotfish.rpc import channel
from pilotfish.server import Server
from pilotfish.tablefile import TableFile
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.tokenizer import load_tokenizer
from pilotfish.v1 import peer_pb2, verifier_pb2, verifier_pb2_grpc
from pilotfish.wire import verifier as wire
from tests.verifier.stream import Caller, greedy, table_file, verifier
from verifier.service import SERVICE, VerifierService
from verifier.settings import VerifierSettings
from verifier.target import Target

PROMPT = [1, 2, 3]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return table_file(tmp_path, {"random": {"seed": 1, "order": 2}, "end_ids": [15]})


def count(telemetry: Telemetry, metric: Metric, *labels: str) -> float:
    return telemetry.value(metric, *labels)


async def is_serving(to: Any, service: str) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(to)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


# -- text ----------------------------------------------------------------------------------------------------------


async def test_info_says_what_a_coordinator_must_know(model: str) -> None:
    """Info names the model, its vocabulary, context, end ids and the effective settings."""
    async with verifier(model, max_nodes=12) as running:
        info = running.info
        table = TableFile.load(model.removeprefix("table:"))
        assert (info.model, info.vocabulary_hash, info.vocabulary_size) == (model, table.vocabulary_hash, 16)
        assert (info.context_length, info.end_ids, info.max_nodes, info.dtype) == (4096, (15,), 12, "float64")
        assert info.settings["max_nodes"] == "12"


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_right", [0, 2, 8])
async def test_the_text_is_the_targets_whatever_the_drafts(model: str, gamma: int, num_right: int) -> None:
    """At T = 0 adverse, partly right and perfect drafts of every length give the ids of the table's greedy text."""
    text = greedy(model, PROMPT, 60)
    async with verifier(model) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        if gamma == 0:
            await caller.run_free(40)
        while len(caller.output) < 40:
            done = len(caller.output)
            right = text[done : done + min(gamma, num_right)]
            wrong = [(token + 1) % 16 for token in text[done + len(right) : done + gamma]]
            verdict = await caller.verify(right + wrong)
            assert (verdict.num_drafted, verdict.num_accepted) == (gamma, len(right))
            assert len(verdict.tokens) == len(right) + 1
        assert caller.output == text[: len(caller.output)]


async def test_perfect_drafts_stay_perfect_for_two_thousand_tokens(model: str) -> None:
    """Acceptance is 1 to the end of a long answer: nothing rolled back too far, nothing kept too long."""
    text = greedy(model, PROMPT, 2100)
    async with verifier(model) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        while len(caller.output) < 2000:
            done = len(caller.output)
            verdict = await caller.verify(text[done : done + 20])
            assert verdict.num_accepted == verdict.num_drafted == 20
        assert caller.output == text[: len(caller.output)]


async def test_speculation_resumes_fully_after_a_free_spell(model: str) -> None:
    """γ 4, then 50 tokens free, then 4 again: the first round after the spell is fully accepted."""
    text = greedy(model, PROMPT, 100)
    async with verifier(model) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        await caller.verify(text[:4])
        await caller.run_free(50)
        verdict = await caller.verify(text[55:59])
        assert verdict.kinds == (TokenKind.ACCEPTED,) * 4 + (TokenKind.BONUS,)
        assert caller.output == text[:60]


async def test_eight_copies_at_once_say_the_same(model: str) -> None:
    """Eight sessions of one prompt on one stream get equal answers, equal to the table's."""
    async with verifier(model) as running:
        stream = running.stream()
        callers = [Caller(stream, running.info, PROMPT, number, max_tokens=30, grant=30) for number in range(8)]
        stream.send(*(caller.opened for caller in callers))
        texts: dict[bytes, list[int]] = {caller.opened.session: [] for caller in callers}
        ended = 0
        while ended < 8:
            answer = await asyncio.wait_for(stream._answers.get(), 20)  # of any kind
            if isinstance(answer, Verdict):
                texts[answer.session] += answer.tokens
                ended += answer.finish is FinishReason.LENGTH
        assert list(texts.values()) == [greedy(model, PROMPT, 30)] * 8


async def test_one_token_draft_that_holds_commits_two(model: str) -> None:
    """γ = 1 with a perfect draft: two tokens a round, the second follows the first."""
    text = greedy(model, PROMPT, 20)
    async with verifier(model) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        for _ in range(8):
            verdict = await caller.verify(text[len(caller.output) :][:1])
            assert len(verdict.tokens) == 2
        assert caller.output == text[:16]


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
async def test_a_seeded_request_repeats_itself_under_every_rule(model: str, rule: Rule) -> None:
    """The same seed, drafts and q give the same text again, in one batch with unseeded others or alone."""
    q = Distribution((1, 2, 3, 4), (5, 5, 5, 5))
    draft = Draft((1, 2, 3), (-1, 0, 1), (q, q, q))

    async def run(running: Any, number: int) -> list[int]:
        caller = Caller(
            running.stream(), running.info, PROMPT, number, rule=rule, sampling=Sampling(1.0), seed=number // 10
        )
        await caller.open()
        for _ in range(10):
            await caller.verify(draft)
        return caller.output

    async with verifier(model) as running:
        alone = await run(running, 11)
        together = await asyncio.gather(*(run(running, number) for number in (12, 21, 31, 41, 51)))
        assert together[0] == alone
        assert any(text != alone for text in together[1:])


# -- what peers get wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [16, 2**31 - 1, 2**32 - 1])
async def test_ids_that_do_not_exist_cut_the_draft_there(model: str, bad: int) -> None:
    """A draft with an impossible id is verified up to it and counted; the text is the target's."""
    text = greedy(model, PROMPT, 20)
    telemetry = Telemetry("verifier")
    async with verifier(model, telemetry=telemetry) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        verdict = await caller.verify([*text[:2], bad, text[3]])
        assert verdict.num_drafted == 2
        verdict = await caller.verify([bad], grant=1)
        assert (verdict.round, verdict.num_drafted) == (1, 0)
        assert caller.output == text[:4]
        assert count(telemetry, Metric.DRAFTS_DROPPED, "token") == 2


async def test_a_bad_item_does_not_break_the_stream_for_the_others(model: str) -> None:
    """Items without session, kind, round or sense are refused one by one; the good one in the same frame is served."""
    text = greedy(model, PROMPT, 20)
    async with verifier(model) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT)
        await caller.open()
        session = caller.opened.session
        no_round = wire.write_items(caller.work(text[:2]))[0]
        no_round.header.ClearField("round")
        stream.send_items(
            [
                verifier_pb2.VerifyItem(),
                verifier_pb2.VerifyItem(header=peer_pb2.Header(session=session)),
                verifier_pb2.VerifyItem(header=peer_pb2.Header(session=b"short"), close=peer_pb2.Close()),
                verifier_pb2.VerifyItem(
                    header=peer_pb2.Header(session=session), chunk=peer_pb2.TokenChunk(offset=7, tokens=[1])
                ),
                no_round,
                *wire.write_items(caller.work(text[:2])),
            ]
        )
        reasons = [(await stream.answer(Refusal)).reason for _ in range(3)]
        assert reasons == ["argument", "unknown_session", "argument"]
        await caller.hear()
        assert caller.output == text[:3]


async def test_duplicate_stale_and_reordered_items_are_counted_and_the_session_goes_on(model: str) -> None:
    """An old position, an old incarnation, a repeated round and a part too early do no harm."""
    text = greedy(model, PROMPT, 40)
    telemetry = Telemetry("verifier")
    async with verifier(model, telemetry=telemetry) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT)
        await caller.open()
        first = caller.work(text[:3])
        stream.send(first)
        await caller.hear()
        stream.send(first)
        assert await stream.answer(Verdict) == caller.verdicts[0]
        stream.send(caller.work(text[4:6], incarnation=running.info.incarnation ^ 1))
        assert (await stream.answer(Refusal)).reason == "incarnation"
        stream.send(caller.work(text[6:8], first_node=2))
        assert (await stream.answer(Refusal)).reason == "position"
        await caller.verify(text[4:8])
        stream.send(first)
        await caller.verify(text[9:11])
        assert caller.output == text[:12]
        assert count(telemetry, Metric.DRAFTS_DROPPED, "resend") == 1
        assert count(telemetry, Metric.DRAFTS_DROPPED, "late") == 1


async def test_an_opening_in_chunks_may_be_interrupted_by_others(model: str) -> None:
    """A long prompt travels in several frames while another session is served in between."""
    text = greedy(model, PROMPT, 5)
    async with verifier(model) as running:
        stream = running.stream()
        long = Caller(stream, running.info, [i % 15 for i in range(3000)], 2)
        head, chunk = wire.write_items(long.opened)
        stream.send_items([head])
        caller = Caller(stream, running.info, PROMPT)
        await caller.open()
        await caller.verify(text[:2])
        for offset in (0, 1500):
            part = verifier_pb2.VerifyItem(header=chunk.header)
            part.chunk.offset = offset
            part.chunk.tokens.extend(chunk.chunk.tokens[offset : offset + 1500])
            stream.send_items([part])
        assert (await stream.answer(Opened)).position == 3000
        await long.run_free(3)
        assert long.output == greedy(model, long.opened.prompt, 3)


# -- life ------------------------------------------------------------------------------------------------------------


async def test_a_session_outlives_its_stream(model: str) -> None:
    """A coordinator whose stream broke hears on the next one what it missed, and goes on."""
    text = greedy(model, PROMPT, 40)
    async with verifier(model) as running:
        first = running.stream()
        caller = Caller(first, running.info, PROMPT)
        await caller.open()
        await caller.verify(text[:3])
        first.send(caller.work(text[4:7], grant=4))
        await first.answer(Verdict)  # heard by nobody: the caller does not take it in
        await first.cut()
        caller.stream = second = running.stream()
        second.send(caller.work(grant=len(caller.output) + 6))
        while len(caller.output) < 10:
            await caller.hear()
        assert caller.output == text[:10]


async def test_a_caller_with_a_name_is_answered_on_its_newest_stream(model: str) -> None:
    """Verdicts of a session whose stream broke come on the same caller's next stream, without being asked for."""
    name = [("pilotfish-caller", "a")]
    async with verifier(model) as running:
        first, second = running.stream(name), running.stream(name)
        other = running.stream([("pilotfish-caller", "b")])
        for stream in (second, other):  # both are open once they are answered
            stream.send(Close(b"0" * 16, 0), Caller(stream, running.info, PROMPT, 9, incarnation=1).opened)
            await stream.answer(Refusal)
        caller = Caller(first, running.info, PROMPT, grant=500, patience_us=200_000)
        await caller.open()
        await first.cut()
        caller.stream = second
        await caller.hear()
        assert caller.output == greedy(model, PROMPT, 1)


async def test_closing_frees_a_session_and_the_load_says_so(model: str) -> None:
    """After a close the session gauge and the pages in use are down with the next thing the engine does."""
    telemetry = Telemetry("verifier")
    async with verifier(model, telemetry=telemetry) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT)
        await caller.open()
        await caller.run_free(3)
        assert count(telemetry, Metric.SESSIONS) == 1
        stream.send(Close(caller.opened.session, running.info.incarnation))
        other = Caller(stream, running.info, [4, 5], 2)
        await other.open()
        stream.send(Close(other.opened.session, running.info.incarnation))
        last = Caller(stream, running.info, [4, 5], 3)
        await last.open()
        assert count(telemetry, Metric.SESSIONS) == 1
        assert stream.load.num_sessions == 1


class Gate(TableBackend):
    """A table whose passes wait for a gate."""

    def __init__(self, table: TableFile) -> None:
        super().__init__(table)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def forward(self, batch: Batch) -> Tensor:
        self.entered.set()
        self.gate.wait()
        return super().forward(batch)


def gated(backends: list[Gate]) -> Any:
    def load(settings: VerifierSettings) -> Target:
        source = models.resolve(settings.model)
        backends.append(Gate(TableFile.load(models.provide(source))))
        return Target.of(backends[0], load_tokenizer(source), settings)

    return load


async def test_health_and_info_answer_while_a_pass_runs(model: str) -> None:
    """While a forward pass hangs the service still answers health, Info and openings."""
    backends: list[Gate] = []
    async with verifier(model, load=gated(backends)) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT, grant=2)
        await caller.open()
        await caller.hear()
        await caller.hear()
        backends[0].gate.clear()
        backends[0].entered.clear()
        try:
            stream.send(caller.work(grant=3))
            assert await asyncio.to_thread(backends[0].entered.wait, 20)
            assert await is_serving(running.channel, SERVICE)
            assert await running.stub.Info(verifier_pb2.VerifierInfoRequest())
        finally:
            backends[0].gate.set()
        await caller.hear()


async def test_a_flood_is_refused_while_the_engine_does_not_read(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a pass hangs, frames beyond the bound are refused as overload, and closing is still taken."""
    monkeypatch.setattr("verifier.service.MAX_UNREAD_FRAMES", 3)
    backends: list[Gate] = []
    async with verifier(model, load=gated(backends)) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT)
        await caller.open()
        backends[0].gate.clear()
        backends[0].entered.clear()
        try:
            stream.send(caller.work(grant=1))
            assert await asyncio.to_thread(backends[0].entered.wait, 20)
            for _ in range(6):
                stream.send(caller.work(grant=1))
            refusals = [await stream.answer(Refusal) for _ in range(2)]
            assert [refusal.reason for refusal in refusals] == ["full"] * 2
            stream.send(Close(caller.opened.session, running.info.incarnation))
        finally:
            backends[0].gate.set()
        await caller.hear()
        engine = running.service.engine
        while engine.num_unread:  # noqa: ASYNC110 - the engine's thread has no event to wait for
            await asyncio.sleep(0.001)
        other = Caller(stream, running.info, PROMPT, 2)
        await other.open()
        assert [key.session for key in running.service.engine.sessions] == [other.opened.session]


async def test_readiness_goes_while_the_engine_is_stuck_and_comes_back(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that does not return turns readiness off, liveness not; when it returns the service is ready again."""
    monkeypatch.setattr("verifier.service.WATCH_S", 0.01)
    backends: list[Gate] = []
    changes: asyncio.Queue[bool] = asyncio.Queue()
    async with verifier(model, load=gated(backends), stall_s=0.05) as running:

        async def set_ready(is_ready: bool) -> None:
            await running.server.set_ready(is_ready)
            changes.put_nowait(is_ready)

        watcher = asyncio.create_task(running.service.watch(set_ready))
        backends[0].gate.clear()
        try:
            caller = Caller(running.stream(), running.info, PROMPT, grant=2)
            await caller.open()
            assert await asyncio.wait_for(changes.get(), 20) is False
            assert not await is_serving(running.channel, SERVICE)
            assert await is_serving(running.channel, "")
        finally:
            backends[0].gate.set()
        assert await asyncio.wait_for(changes.get(), 20) is True
        watcher.cancel()


async def test_draining_finishes_what_runs_and_takes_nothing_new(model: str) -> None:
    """A drain refuses new sessions, lets the open one run to its end, and then ends the streams."""
    async with verifier(model) as running:
        stream = running.stream()
        caller = Caller(stream, running.info, PROMPT, max_tokens=6)
        await caller.open()
        drain = asyncio.create_task(running.service.drain())
        await asyncio.sleep(0)
        late = Caller(stream, running.info, PROMPT, 2)
        stream.send(late.opened)
        assert (await stream.answer(Refusal)).reason == "unavailable"
        await caller.run_free(6)
        assert caller.verdicts[-1].finish is FinishReason.LENGTH
        await asyncio.wait_for(drain, 20)
        await stream.ended()


async def test_before_the_target_is_loaded_calls_are_unavailable(model: str) -> None:
    """While the target loads the service is alive and not ready, and says that it is loading."""
    gate = threading.Event()

    def load(settings: VerifierSettings) -> Target:
        gate.wait()
        return Target.load(settings)

    service = VerifierService(VerifierSettings(model=model), load=load)
    server = Server(SERVICE, "127.0.0.1", 0)
    verifier_pb2_grpc.add_VerifierServicer_to_server(service, server.grpc)
    await server.start()
    loading = asyncio.create_task(service.start())
    async with channel(server.address) as to:
        stub: Any = verifier_pb2_grpc.VerifierStub(to)
        assert await is_serving(to, "")
        assert not await is_serving(to, SERVICE)
        with pytest.raises(grpc.aio.AioRpcError, match="still loading"):
            await stub.Info(verifier_pb2.VerifierInfoRequest())
        gate.set()
        await loading
        assert await stub.Info(verifier_pb2.VerifierInfoRequest())
    await service.stop()
    await server.stop(0.0)
