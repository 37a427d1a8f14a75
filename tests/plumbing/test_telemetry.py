from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilotfish.errors import PortTaken
from pilotfish.messages import TraceContext
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.tracing import NoTracer, SdkTracer, tracer_to

FOUR = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry("coordinator")
    yield telemetry
    telemetry.shutdown()


def samples(telemetry: Telemetry) -> dict[str, float]:
    """Every sample of an exposition by its name and labels."""
    lines = [line for line in telemetry.exposition().splitlines() if not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_a_scrape_works_before_the_first_draft(telemetry: Telemetry) -> None:
    """Everything without labels is there, at 0, and no number is NaN."""
    port = telemetry.serve_metrics("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    for metric in Metric:
        definition = metric.value
        if "coordinator" in definition.roles and not definition.labels and definition.kind != "histogram":
            assert f"\n{definition.name} 0.0\n" in text
    assert "nan" not in text.lower()


def test_the_four_counters_have_exactly_their_names(telemetry: Telemetry) -> None:
    """The names that the field's tools read are there, and nothing else begins as they do."""
    telemetry.add(Metric.DRAFTS)
    telemetry.add(Metric.DRAFT_TOKENS, 4)
    telemetry.add(Metric.ACCEPTED_TOKENS, 2)
    telemetry.add(Metric.ACCEPTED_BY_POSITION, 1, "0")
    telemetry.add(Metric.ACCEPTED_BY_POSITION, 1, "1")
    names = {re.split(r"[ {]", line)[0] for line in telemetry.exposition().splitlines() if line.startswith("vllm:")}
    assert names == FOUR
    assert samples(telemetry)['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] == 1.0
    assert telemetry.value(Metric.DRAFT_TOKENS) == 4.0


@pytest.mark.parametrize("role", ["drafter", "verifier"])
def test_only_a_coordinator_counts_drafts_for_the_tools(role: str) -> None:
    """Where all three services are scraped nothing is counted twice."""
    assert "vllm:" not in Telemetry(role).exposition()  # type: ignore[arg-type]


def test_counters_never_fall(telemetry: Telemetry) -> None:
    """A counter refuses to be taken back."""
    with pytest.raises(ValueError, match="can only be incremented"):
        telemetry.add(Metric.DRAFTS, -1)


def test_what_a_role_does_not_have_is_not_counted(telemetry: Telemetry) -> None:
    """Counting a metric of another role does nothing, so shared code need not ask."""
    telemetry.add(Metric.PASSES)
    telemetry.set(Metric.KV_PAGES, 3)
    telemetry.observe(Metric.PASS_SECONDS, 0.1)
    assert "pilotfish_pass" not in telemetry.exposition()
    assert telemetry.value(Metric.PASSES) == 0.0


def test_names_follow_the_conventions_and_stand_alone() -> None:
    """Names are unique, counters end in _total, durations are in seconds, and every one says what it is."""
    definitions = [metric.value for metric in Metric]
    assert len({definition.name for definition in definitions}) == len(definitions)
    for definition in definitions:
        assert definition.name.startswith("pilotfish_") or definition.name in FOUR
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.description
        assert definition.roles
        assert not re.search(r"_(ms|us|millis|percent|ratio)(_|$)", definition.name)


def test_a_metrics_port_that_is_taken_is_refused(telemetry: Telemetry) -> None:
    """Two services on one metrics port: the second says which."""
    port = telemetry.serve_metrics("127.0.0.1", 0)
    with pytest.raises(PortTaken, match=str(port)):
        Telemetry("drafter").serve_metrics("127.0.0.1", port)


def test_two_services_in_one_process_do_not_share_counters() -> None:
    """Telemetry has no global state."""
    one, other = Telemetry("coordinator"), Telemetry("coordinator")
    one.add(Metric.DRAFTS)
    assert (one.value(Metric.DRAFTS), other.value(Metric.DRAFTS)) == (1.0, 0.0)


# ---- spans -------------------------------------------------------------------------------------------------------


def recording() -> tuple[SdkTracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return SdkTracer("pilotfish-test", "1", SimpleSpanProcessor(exporter)), exporter


def test_spans_of_several_services_make_one_trace() -> None:
    """A child that is begun elsewhere, from the context alone, hangs below its parent in the same trace."""
    coordinator, here = recording()
    verifier, there = recording()
    request = coordinator.begin("generate")
    context = request.context
    assert context is not None
    start_ns = time.monotonic_ns()
    verify = verifier.record("verify", context, start_ns, start_ns + 1000, {"pilotfish.accepted": 2})
    verifier.record("pass", verify, start_ns + 100, start_ns + 900)
    request.end()
    (generate,) = here.get_finished_spans()
    verified, passed = there.get_finished_spans()
    assert request.trace_id == f"{generate.context.trace_id:032x}"
    assert {span.context.trace_id for span in (generate, verified, passed)} == {generate.context.trace_id}
    assert verified.parent is not None
    assert passed.parent is not None
    assert (verified.parent.span_id, passed.parent.span_id) == (generate.context.span_id, verified.context.span_id)
    assert (verified.end_time or 0) - (verified.start_time or 0) == 1000
    assert dict(verified.attributes or {}) == {"pilotfish.accepted": 2}
    assert abs((generate.start_time or 0) - time.time_ns()) < 60e9  # on the wall clock


def test_a_trace_of_the_caller_goes_on() -> None:
    """The trace that a client began is the one that the request belongs to."""
    tracer, exporter = recording()
    parent = TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "vendor=x")
    span = tracer.begin("generate", parent)
    span.end(problem="it broke")
    (finished,) = exporter.get_finished_spans()
    assert f"{finished.context.trace_id:032x}" == "ab" * 16
    assert span.context is not None
    assert span.context.tracestate == "vendor=x"
    assert not finished.status.is_ok
    assert finished.status.description == "it broke"


def test_what_the_caller_does_not_sample_is_not_recorded() -> None:
    """The decision whether to record a trace is made once, at its root."""
    tracer, exporter = recording()
    span = tracer.begin("generate", TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-00"))
    span.end()
    assert exporter.get_finished_spans() == ()
    assert span.context is not None
    assert span.context.traceparent.endswith("-00")


def test_without_an_endpoint_nothing_is_traced_but_contexts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that traces nothing hands on the context it was given."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    tracer = tracer_to(None, "pilotfish-test", "1")
    assert isinstance(tracer, NoTracer)
    parent = TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")
    assert tracer.begin("round", parent).context == parent
    assert tracer.record("draft", parent, 0, 1) == parent
    assert tracer.begin("round").context is None
    assert tracer.begin("round").trace_id is None


class Collector(TraceServiceServicer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.service = ""

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802 - gRPC's name
        for resource in request.resource_spans:
            attributes = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
            self.service = attributes["service.name"]
            self.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse()


def test_spans_arrive_at_a_collector() -> None:
    """With an endpoint set, spans leave by OTLP, at the latest when the service shuts down."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    telemetry = Telemetry.of_service("verifier", "1.2.3", f"http://127.0.0.1:{port}")
    telemetry.tracer.record("pass", None, 1, 2)
    telemetry.tracer.begin("verify").end()
    telemetry.shutdown()
    server.stop(None)
    assert (collector.service, collector.names) == ("pilotfish-verifier", ["pass", "verify"])


def test_an_endpoint_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_ENDPOINT turns tracing on."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    tracer = tracer_to(None, "pilotfish-test", "1")
    assert isinstance(tracer, SdkTracer)
    assert tracer.begin("generate").context is not None
    tracer.shutdown()
