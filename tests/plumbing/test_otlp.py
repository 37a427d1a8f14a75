"""Telemetry on its way to a collector."""

from __future__ import annotations

import pytest

from pilotfish.errors import ConfigurationError
from pilotfish.messages import TraceContext
from pilotfish.otlp import Sampling, destination, sampling
from pilotfish.spans import SdkTracer
from pilotfish.telemetry import Attribute, Metric, Telemetry
from pilotfish.tracing import NoTracer
from tests.plumbing.collector import collect

PROTOCOLS = ["grpc", "http/protobuf"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment of the tests says of OpenTelemetry is not meant for them."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_arrive_at_a_collector(protocol: str) -> None:
    """With an endpoint set, spans leave by either protocol, at the latest when the service shuts down."""
    with collect(protocol) as collected:
        telemetry = Telemetry.of_service("verifier", "1.2.3", collected.url, protocol)  # type: ignore[arg-type]
        tracer = telemetry.tracer
        whole = tracer.aside("whole_pass", 1, 2, {"pilotfish.pass.positions": 7})
        tracer.record("pass", None, 1, 2, link=whole)
        tracer.begin("verify").end(problem="it broke")
        telemetry.shutdown()
    assert collected.services == {"pilotfish-verifier"}
    spans = {span.name: span for span in collected.spans}
    assert sorted(spans) == ["pass", "verify", "whole_pass"]
    assert spans["pass"].links[0].span_id == spans["whole_pass"].span_id
    assert spans["pass"].links[0].trace_id == spans["whole_pass"].trace_id != spans["pass"].trace_id
    assert spans["verify"].status.message == "it broke"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_metrics_arrive_at_a_collector(protocol: str) -> None:
    """What was counted arrives once more when the service shuts down, under names that OTLP allows."""
    with collect(protocol) as collected:
        telemetry = Telemetry.of_service("coordinator", "1.2.3", collected.url, protocol)  # type: ignore[arg-type]
        telemetry.add(Metric.DRAFTS, 3)
        telemetry.add(Metric.ACCEPTED_BY_POSITION, 2, "1")
        telemetry.set(Metric.RUNNING, 4)
        for seconds in (0.015, 0.03, 1000.0):
            telemetry.observe(Metric.REQUEST_SECONDS, seconds, "chat", "pilotfish", "some-model", "")
        telemetry.shutdown()
    metrics = collected.metrics
    drafts = metrics["vllm.spec_decode_num_drafts"].sum
    assert drafts.is_monotonic
    assert drafts.aggregation_temporality == 2  # cumulative
    assert [point.as_double for point in drafts.data_points] == [3.0]
    (by_position,) = metrics["vllm.spec_decode_num_accepted_tokens_per_pos"].sum.data_points
    assert {entry.key: entry.value.string_value for entry in by_position.attributes} == {"position": "1"}
    assert metrics["pilotfish_requests_running"].gauge.data_points[0].as_double == 4.0
    duration = metrics["gen_ai.server.request.duration"]
    assert duration.unit == "s"
    (point,) = duration.histogram.data_points
    assert list(point.explicit_bounds) == list(Metric.REQUEST_SECONDS.value.buckets)
    assert [number for number, count in enumerate(point.bucket_counts) if count] == [1, 2, len(point.explicit_bounds)]
    assert (point.count, point.sum) == (3, pytest.approx(1000.045))
    attributes = {entry.key: entry.value.string_value for entry in point.attributes}
    assert attributes == {
        Attribute.OPERATION: "chat", Attribute.PROVIDER: "pilotfish", Attribute.MODEL: "some-model"
    }  # fmt: skip
    assert not any(":" in name or name.endswith("_total") for name in metrics)


def test_every_metric_has_a_name_of_its_own_by_otlp() -> None:
    """No two metrics become one where a colon or a suffix is lost."""
    names = [metric.value.otlp_name for metric in Metric]
    assert len(set(names)) == len(names)


def test_without_an_endpoint_nothing_is_sent_but_contexts_pass() -> None:
    """A service that traces nothing hands on the context it was given."""
    tracer = Telemetry.of_service("coordinator", "1").tracer
    assert isinstance(tracer, NoTracer)
    parent = TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")
    assert tracer.begin("round", parent).context == parent
    assert tracer.begin("round", parent).trace_id == "ab" * 16
    assert tracer.record("draft", parent, 0, 1).context == parent
    assert tracer.begin("round").context is None
    assert tracer.begin("round").trace_id is None


def test_an_endpoint_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_ENDPOINT, or the one of traces alone, turns tracing on."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    telemetry = Telemetry.of_service("coordinator", "1")
    assert isinstance(telemetry.tracer, SdkTracer)
    assert telemetry.tracer.begin("generate").context is not None
    telemetry.shutdown()


@pytest.mark.parametrize(
    ("variables", "protocol", "url"),
    [
        ({}, "grpc", "http://c:4317"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf", "http://c:4317/v1/traces"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            "grpc",
            "http://c:4317",
        ),
    ],
)
def test_the_protocol_is_read_as_opentelemetry_says(variables: dict[str, str], protocol: str, url: str) -> None:
    """The signal's own variable wins over the one for all; over HTTP the path of the signal is added."""
    to = destination("traces", "http://c:4317/", None, variables)
    assert to is not None
    assert (to.protocol, (to.url or "").rstrip("/")) == (protocol, url)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_metrics_go_nowhere_unless_told(variables: dict[str, str]) -> None:
    """An endpoint of spans alone is none of metrics, and what is switched off by OpenTelemetry's variables is off."""
    assert destination("metrics", None, None, variables) is None


def test_a_protocol_that_is_not_known_is_refused() -> None:
    """The variable is named, and so is what may be said."""
    with pytest.raises(ConfigurationError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL.*grpc, http/protobuf"):
        destination("traces", "http://c:1", None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_an_interval_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the metrics' interval is a number of milliseconds."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
    with pytest.raises(ConfigurationError, match=r"OTEL_METRIC_EXPORT_INTERVAL.*often"):
        Telemetry.of_service("drafter", "1", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        (None, None, Sampling(1.0)),
        (None, "0.5", Sampling(1.0)),  # an argument of no sampler
        ("always_on", None, Sampling(1.0, follows_parent=False)),
        ("always_off", None, Sampling(0.0, follows_parent=False)),
        ("traceidratio", "0.25", Sampling(0.25, follows_parent=False)),
        ("parentbased_always_on", None, Sampling(1.0)),
        ("parentbased_always_off", "0.5", Sampling(0.0)),
        ("parentbased_traceidratio", "0.25", Sampling(0.25)),
        ("ParentBased_TraceIdRatio", None, Sampling(1.0)),
    ],
)
def test_the_sampler_is_read_as_opentelemetry_says(
    sampler: str | None, argument: str | None, expected: Sampling
) -> None:
    """Its samplers that need no service of their own are known, with the ratio of the argument where they have one."""
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert sampling({name: value for name, value in variables.items() if value is not None}) == expected


def test_a_sampler_that_is_not_known_is_refused() -> None:
    """The variable and its value are named, and so is what may be said."""
    with pytest.raises(ConfigurationError, match=r"OTEL_TRACES_SAMPLER.*jaeger_remote.*parentbased_traceidratio"):
        sampling({"OTEL_TRACES_SAMPLER": "jaeger_remote"})


@pytest.mark.parametrize("argument", ["often", "1.5", "-0.1", "nan"])
def test_a_share_that_is_none_is_refused(argument: str) -> None:
    """The argument of a sampler by ratio is a number from 0 to 1."""
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": argument}
    with pytest.raises(ConfigurationError, match=rf"OTEL_TRACES_SAMPLER_ARG.*{argument}"):
        sampling(variables)


@pytest.mark.parametrize(("ratio", "flag"), [(None, "00"), (1.0, "01")])
def test_the_setting_wins_over_the_sampler(monkeypatch: pytest.MonkeyPatch, ratio: float | None, flag: str) -> None:
    """OTEL_TRACES_SAMPLER holds only where our own setting says nothing."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    telemetry = Telemetry.of_service("drafter", "1", trace_ratio=ratio)
    context = telemetry.tracer.begin("draft").context
    assert context is not None
    assert context.traceparent.endswith(f"-{flag}")
    telemetry.shutdown()
