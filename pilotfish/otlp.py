"""Spans and metrics on their way to a collector, by OTLP over gRPC or HTTP."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pilotfish.errors import ConfigurationError
from pilotfish.metrics import Definition, Instruments, Point
from pilotfish.settings import OtlpProtocol
from pilotfish.spans import SdkTracer

Signal: TypeAlias = Literal["traces", "metrics"]

_TIMEOUT_S: Final = 3.0  # of one export: a collector that is away must not hold up a shutdown
_SPANS_EVERY_MS: Final = 500.0
_METRICS_EVERY_S: Final = 60.0  # where OTEL_METRIC_EXPORT_INTERVAL says nothing
_SAMPLER: Final = "OTEL_TRACES_SAMPLER"
_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}  # None: OTEL_TRACES_SAMPLER_ARG says it
_BY_PARENT: Final = "parentbased_"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one kind of telemetry goes."""

    signal: Signal
    protocol: OtlpProtocol
    url: str | None  # None: as the exporter reads it from the environment

    def span_exporter(self) -> SpanExporter:
        if self.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            return GrpcExporter(self.url, timeout=_TIMEOUT_S)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter: SpanExporter = HttpExporter(self.url, timeout=_TIMEOUT_S)
        return exporter

    def metric_exporter(self) -> MetricExporter:
        if self.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

            return GrpcExporter(self.url, timeout=_TIMEOUT_S)
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        exporter: MetricExporter = HttpExporter(self.url, timeout=_TIMEOUT_S)
        return exporter


def destination(
    signal: Signal, endpoint: str | None, protocol: OtlpProtocol | None, environment: Mapping[str, str]
) -> Destination | None:
    """Where a service's telemetry of one kind goes, by its settings or OpenTelemetry's variables; None: nowhere.

    Args:
        endpoint: of the settings, for both kinds: http://host:4317, or :4318 over HTTP.
        protocol: of the settings.
        environment: of the process.

    Raises:
        ConfigurationError: the environment names a protocol that is not known.
    """
    name = signal.upper()
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get(f"OTEL_{name}_EXPORTER") == "none":
        return None
    own, both = f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    if endpoint is None and not environment.get(own) and not environment.get(both):
        return None
    chosen = protocol or _protocol_of(environment, f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL")
    url = endpoint
    if endpoint is not None and chosen == "http/protobuf":
        url = f"{endpoint.rstrip('/')}/v1/{signal}"  # as the exporter does with a base from the environment
    return Destination(signal, chosen, url)


def _protocol_of(environment: Mapping[str, str], own: str) -> OtlpProtocol:
    key = own if environment.get(own) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    value = environment.get(key) or "grpc"
    known: dict[str, OtlpProtocol] = {protocol: protocol for protocol in get_args(OtlpProtocol)}
    if value not in known:
        raise ConfigurationError.of(key, value, f"known are {', '.join(known)}")
    return known[value]


class Sampling(NamedTuple):
    """Which traces are sampled, as `SdkTracer` has it."""

    ratio: float = 1.0
    follows_parent: bool = True


def sampling(environment: Mapping[str, str]) -> Sampling:
    """Which traces are sampled by OpenTelemetry's variables: all that begin here, where they say nothing.

    The SDK reads them too, but takes what it does not know for "all", with a line in the log.

    Raises:
        ConfigurationError: the sampler is not known, or its argument is no share.
    """
    name = environment.get(_SAMPLER) or f"{_BY_PARENT}always_on"
    kind = name.lower().removeprefix(_BY_PARENT)
    if kind not in _RATIOS:
        known = ", ".join([*_RATIOS, *(_BY_PARENT + each for each in _RATIOS)])
        raise ConfigurationError.of(_SAMPLER, name, f"known are {known}")
    ratio = _RATIOS[kind]
    return Sampling(_share_of(environment) if ratio is None else ratio, name.lower().startswith(_BY_PARENT))


def _share_of(environment: Mapping[str, str]) -> float:
    key = f"{_SAMPLER}_ARG"
    text = environment.get(key) or "1.0"
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise ConfigurationError.of(key, text, "a share from 0 to 1 is needed, such as 0.1")
    return share


def sdk_tracer(to: Destination, service: str, version: str, resource: Resource, ratio: float | None) -> SdkTracer:
    """A tracer whose spans go there.

    Args:
        ratio: of the traces that begin here, how many are sampled; None: as OpenTelemetry's variables say.

    Raises:
        ConfigurationError: they say what cannot be.
    """
    chosen = sampling(os.environ) if ratio is None else Sampling(ratio)
    processor = BatchSpanProcessor(to.span_exporter(), schedule_delay_millis=_SPANS_EVERY_MS)
    return SdkTracer(
        service, version, processor, ratio=chosen.ratio, follows_parent=chosen.follows_parent, resource=resource
    )


class MetricSender:
    """Sends metrics now and then, from a thread of its own, and once more at the end."""

    def __init__(self, read: Callable[[], MetricsData], exporter: MetricExporter, interval_s: float) -> None:
        """Start.

        Args:
            read: what there is to send.
            interval_s: between two sendings.
        """
        self._read = read
        self._exporter = exporter
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Send what stands, and stop."""
        self._is_over.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(self._interval_s)
            self._exporter.export(self._read())  # says itself in the log where it fails


def metric_sender(to: Destination, instruments: Instruments, resource: Resource, version: str) -> MetricSender:
    """A sender of what the instruments stand at, every OTEL_METRIC_EXPORT_INTERVAL milliseconds.

    Raises:
        ConfigurationError: that is no such number.
    """
    started_ns = time.time_ns()
    scope = InstrumentationScope("pilotfish", version)

    def read() -> MetricsData:
        metrics = _metrics(instruments, started_ns, time.time_ns())
        return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])

    return MetricSender(read, to.metric_exporter(), _interval_s(os.environ))


def _interval_s(environment: Mapping[str, str]) -> float:
    key = "OTEL_METRIC_EXPORT_INTERVAL"
    text = environment.get(key)
    if not text:
        return _METRICS_EVERY_S
    if not text.isdecimal() or not int(text):
        raise ConfigurationError.of(key, text, "a number of milliseconds is needed, such as 60000")
    return int(text) / 1e3


def _metrics(instruments: Instruments, started_ns: int, now_ns: int) -> list[Metric]:
    """What the instruments stand at; a metric for which nothing was counted yet is left out."""
    metrics: list[Metric] = []
    for definition in instruments.definitions:
        points = instruments.points(definition)
        if points:
            data = _data(definition, points, started_ns, now_ns)
            metrics.append(Metric(definition.otlp_name, definition.description, definition.unit, data))
    return metrics


def _data(definition: Definition, points: list[Point], started_ns: int, now_ns: int) -> Sum | Gauge | Histogram:
    since_start = AggregationTemporality.CUMULATIVE
    if definition.kind == "histogram":
        return Histogram([_spread(definition, point, started_ns, now_ns) for point in points], since_start)
    values = [NumberDataPoint(_attributes(definition, point), started_ns, now_ns, point.value) for point in points]
    return Gauge(values) if definition.kind == "gauge" else Sum(values, since_start, is_monotonic=True)


def _spread(definition: Definition, point: Point, started_ns: int, now_ns: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=_attributes(definition, point),
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=sum(point.buckets),
        sum=point.value,
        bucket_counts=point.buckets,
        explicit_bounds=definition.buckets,
        min=None,  # type: ignore[arg-type] # nobody has kept them, and OTLP lets them be absent
        max=None,  # type: ignore[arg-type]
    )


def _attributes(definition: Definition, point: Point) -> dict[str, str]:
    """The labels; an empty one is none."""
    return {label: value for label, value in zip(definition.labels, point.labels, strict=True) if value}
