"""Spans made by hand: one stream serves many requests, so no library can tell where a request begins and ends.

Times are `time.monotonic_ns()` of this process; they are put on the wall clock once, so durations stay true.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pilotfish.messages import TraceContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span as OtelSpan

AttributeValue: TypeAlias = str | int | float | bool

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORT_TIMEOUT_S = 5


class Span(Protocol):
    """A stretch of time with a name; `end` it once."""

    @property
    def context(self) -> TraceContext | None:
        """What children, here or in other services, name as their parent. None: nothing is traced."""

    @property
    def trace_id(self) -> str | None:
        """32 hex digits; None: nothing is traced."""

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes."""

    def end(self, end_ns: int | None = None, problem: str | None = None) -> None:
        """End it, now or at `end_ns`; with a problem, as failed."""


class Tracer(Protocol):
    """Makes spans."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """A span that has begun, now or at `start_ns`."""

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> TraceContext | None:
        """A span that is over already; its context, for children that are over as well."""

    def shutdown(self) -> None:
        """Send what waits, and stop."""


class _NoSpan:
    """Passes on the trace of whoever traces around us."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None) -> None:
        self.context = context

    @property
    def trace_id(self) -> str | None:
        return None

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Nothing."""

    def end(self, end_ns: int | None = None, problem: str | None = None) -> None:
        """Nothing."""


_NO_SPAN = _NoSpan(None)


class NoTracer:
    """Traces nothing, at the cost of a call."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        return _NO_SPAN if parent is None else _NoSpan(parent)

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> TraceContext | None:
        return parent

    def shutdown(self) -> None:
        """Nothing."""


class _RecordedSpan:
    """A span of the OpenTelemetry SDK."""

    __slots__ = ("_span", "_to_wall")

    def __init__(self, span: OtelSpan, to_wall: Callable[[int | None], int | None]) -> None:
        self._span = span
        self._to_wall = to_wall

    @property
    def context(self) -> TraceContext | None:
        own = self._span.get_span_context()
        state = own.trace_state.to_header() if own.trace_state else ""
        return TraceContext(f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}", state)

    @property
    def trace_id(self) -> str | None:
        return f"{self._span.get_span_context().trace_id:032x}"

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        self._span.set_attributes(attributes)

    def end(self, end_ns: int | None = None, problem: str | None = None) -> None:
        if problem is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, problem))
        self._span.end(self._to_wall(end_ns))


class SdkTracer:
    """Makes spans with the OpenTelemetry SDK and hands them to a processor."""

    def __init__(self, service: str, version: str, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": service, "service.version": version})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("pilotfish", version)
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        span = self._tracer.start_span(name, _parent(parent), attributes=attributes, start_time=self._to_wall(start_ns))
        return _RecordedSpan(span, self._to_wall)

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> TraceContext | None:
        span = self.begin(name, parent, attributes, start_ns)
        span.end(end_ns)
        return span.context

    def shutdown(self) -> None:
        self._provider.shutdown()

    def _to_wall(self, monotonic_ns: int | None) -> int:
        return (time.monotonic_ns() if monotonic_ns is None else monotonic_ns) + self._wall_offset_ns


def _parent(context: TraceContext | None) -> Context:
    """The OpenTelemetry context in which a child of `context` begins; an empty one for the root of a trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    if context is None:
        return Context()
    _, trace_id, span_id, flags = context.traceparent.split("-")
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def tracer_to(endpoint: str | None, service: str, version: str) -> Tracer:
    """A tracer that sends its spans by OTLP over gRPC; one that does nothing where no endpoint is set.

    Args:
        endpoint: `http://host:4317`. None: what OTEL_EXPORTER_OTLP_ENDPOINT says.
    """
    endpoint = endpoint or next((os.environ[name] for name in ENDPOINT_VARIABLES if os.environ.get(name)), None)
    if endpoint is None:
        return NoTracer()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    is_insecure = not endpoint.startswith("https://")
    exporter = OTLPSpanExporter(endpoint, insecure=is_insecure, timeout=_EXPORT_TIMEOUT_S)
    return SdkTracer(service, version, BatchSpanProcessor(exporter, schedule_delay_millis=500))
