"""What a trace of a request shows, and which traces are sent."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilotfish.errors import PilotfishError
from pilotfish.metrics import Role
from pilotfish.spans import SdkTracer
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, RANDOM, Services, Tracing, drafts, until
from tests.cases.test_faults import UNLUCKY, Unsound
from verifier.settings import VerifierSettings
from verifier.target import Target

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traces:
    """Where the spans of all three services come together, as they do in a collector."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self._ratio = ratio

    @property
    def begin(self) -> Tracing:
        def tracer(role: Role) -> SdkTracer:
            return SdkTracer(role, "0", SimpleSpanProcessor(self._exporter), ratio=self._ratio)

        return tracer

    @property
    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Any) -> list[str]:
        """The children of a span: what they are, and whose."""
        children = [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]
        return sorted(f"{child.name} by {child.resource.attributes['service.name']}" for child in children)


async def ended(services: Services, traces: Traces, num_requests: int = 1) -> None:
    """The spans of the requests themselves are there: they end last at the coordinator."""
    await until(lambda: len(traces.named("generate")) == num_requests and services.coordinator.service.num_running == 0)


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_one_trace_a_request(serve: Serve, gamma: int) -> None:
    """Round spans are the rounds, each with a draft and a verify child from the other services where it drafted."""
    # seen in sglang#37128
    traces = Traces()
    async with serve(trace=traces.begin) as services:
        answer = await services.complete(max_tokens=23, speculation=drafts("Part", gamma), include_rounds=True)
        await ended(services, traces)
    (generate,) = traces.named("generate")
    rounds = traces.named("round")
    assert generate.parent is None
    assert f"{generate.context.trace_id:032x}" == answer.started.trace_id
    ours = [span for span in traces.spans if span.name != "whole_pass"]
    assert {span.context.trace_id for span in ours} == {generate.context.trace_id}
    assert traces.below(generate) == ["round by coordinator"] * len(answer.rounds)
    assert len(rounds) == answer.statistics.num_verdicts
    for span, told in zip(rounds, answer.rounds, strict=True):
        attributes = span.attributes
        assert attributes["pilotfish.round.index"] == told.index
        assert attributes["pilotfish.round.gamma"] == told.gamma
        assert attributes["pilotfish.round.gamma.reason"] == told.reason
        assert attributes["pilotfish.round.drafted"] == told.num_drafted
        assert attributes["pilotfish.round.accepted"] == told.num_accepted
        assert traces.below(span) == (["draft by drafter", "verify by verifier"] if told.num_drafted else [])
    for verify in traces.named("verify"):
        assert traces.below(verify) == ["pass by verifier", "queue by verifier"]
    assert len(traces.named("draft")) == len(traces.named("verify")) == answer.statistics.num_drafts


async def test_passes_are_shared_by_traces(serve: Serve) -> None:
    """Every round's pass links to the pass itself, which is one span in a trace of its own, however many share it."""
    traces = Traces()
    async with serve(trace=traces.begin) as services:
        await asyncio.gather(*(services.complete(max_tokens=20, speculation=drafts("Part", 4)) for _ in range(4)))
        await ended(services, traces, 4)
    wholes = {span.context.span_id: span for span in traces.named("whole_pass")}
    riders = Counter(span.links[0].context.span_id for span in traces.named("pass"))
    assert len(wholes) == len(traces.named("whole_pass"))
    assert set(riders) == set(wholes)
    requests = {span.context.trace_id for span in traces.named("generate")}
    for span_id, whole in wholes.items():
        assert whole.parent is None
        assert whole.context.trace_id not in requests
        assert riders[span_id] <= whole.attributes["pilotfish.pass.sequences"] <= 4
        assert whole.attributes["pilotfish.pass.positions"] >= whole.attributes["pilotfish.pass.sequences"]


async def test_what_is_not_sampled_is_not_sent(serve: Serve) -> None:
    """A request outside the ratio sends nothing, nor do its peers; one whose client traces follows the client."""
    traces = Traces(ratio=0.0)
    async with serve(trace=traces.begin) as services:
        await services.complete(speculation=drafts("Part", 4))
        await services.complete(speculation=drafts("Part", 4), traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00")
        await until(lambda: services.coordinator.service.num_running == 0)
        await services.until_idle()
        assert traces.spans == []
        answer = await services.complete(speculation=drafts("Part", 4), traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
        await ended(services, traces)
    assert answer.started.trace_id == TRACE_ID
    (generate,) = traces.named("generate")
    assert f"{generate.parent.span_id:016x}" == SPAN_ID
    assert len(traces.named("verify")) == len(traces.named("draft")) == answer.statistics.num_drafts > 0


async def test_a_trace_that_makes_no_sense_is_none(serve: Serve) -> None:
    """A header that W3C would not accept begins a new trace, and fails nothing."""
    traces = Traces()
    async with serve(trace=traces.begin) as services:
        for header in ("nonsense", f"00-{'0' * 32}-{SPAN_ID}-01", f"ff-{TRACE_ID}-{SPAN_ID}-01"):
            answer = await services.complete(traceparent=header)
            assert answer.ids == services.greedy("abc", 20)
        await ended(services, traces, 3)
    assert [span.parent for span in traces.named("generate")] == [None] * 3


async def test_slow_requests_are_always_sent(serve: Serve) -> None:
    """A request over the limit is sent whole, its peers' spans too, though it was not sampled."""
    traces = Traces(ratio=0.0)
    async with serve(trace=traces.begin, coordinator={"trace_slow_s": 1e-6}) as services:
        answer = await services.complete(max_tokens=23, speculation=drafts("Part", 4), include_rounds=True)
        await ended(services, traces)
        num_drafts = answer.statistics.num_drafts
        await until(lambda: len(traces.named("verify")) == len(traces.named("draft")) == num_drafts)
    assert len(traces.named("round")) == len(answer.rounds)
    for span, told in zip(traces.named("round"), answer.rounds, strict=True):
        assert traces.below(span) == (["draft by drafter", "verify by verifier"] if told.num_drafted else [])
    assert len(traces.named("pass")) == num_drafts
    assert traces.named("whole_pass")


async def test_failed_requests_are_always_sent(serve: Serve) -> None:
    """A request that fails on its way is sent with the error, its peers' spans too; one that goes well is not."""

    def load(settings: VerifierSettings) -> Target:
        target = Target.load(settings)
        return replace(target, backend=Unsound(target.backend))

    # 1 is followed by 2 and so on, and after the unlucky one there is no law: the second round fails
    law = {str(i): {str((i + 1) % 16): 1.0} for i in range(16)} | {"*": [1.0] * 16}
    table = {"vocabulary": RANDOM["vocabulary"], "law": law}
    traces = Traces(ratio=0.0)
    async with serve(table, verifier={"load": load}, trace=traces.begin) as services:
        await services.complete([1], max_tokens=4, speculation=drafts("Perfect", 3))
        with pytest.raises(PilotfishError, match="not numbers"):
            await services.complete([UNLUCKY - 7], max_tokens=12, speculation=drafts("Perfect", 3))
        await ended(services, traces)
        await until(lambda: bool(traces.named("verify")) and bool(traces.named("draft")))
    (generate,) = traces.named("generate")
    assert not generate.status.is_ok
    assert generate.attributes["error.type"] == "target"
    assert {span.context.trace_id for span in traces.spans if span.name != "whole_pass"} == {generate.context.trace_id}


async def test_a_request_that_is_refused_is_sent(serve: Serve) -> None:
    """A request that never began is a trace of one span, and an error by name."""
    traces = Traces(ratio=0.0)
    async with serve(trace=traces.begin) as services:
        with pytest.raises(PilotfishError):
            await services.complete("")
        await ended(services, traces)
    assert [span.name for span in traces.spans] == ["generate"]
    assert traces.spans[0].attributes["error.type"] == "argument"


async def test_the_log_names_request_trace_and_sessions(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The line of a request carries its name, its trace and its sessions, whether it is sampled or not."""
    caplog.set_level(logging.INFO, logger="coordinator.record")
    traces = Traces(ratio=0.0)
    async with serve(trace=traces.begin) as services:
        answer = await services.complete(speculation=drafts("Part", 4))
        await until(lambda: services.coordinator.service.num_running == 0)
    all_fields = [getattr(record, "pilotfish_fields", {}) for record in caplog.records]
    (fields,) = [fields for fields in all_fields if "tokens" in fields]
    assert fields["request_id"] == answer.started.request_id
    assert fields["trace_id"] == answer.started.trace_id
    assert (fields["end"], fields["tokens"]) == ("length", 20)
    assert fields["drafted"] == answer.statistics.num_drafted_tokens
    assert len(fields["verifier_session"]) == len(fields["drafter_session"]) == 32
