"""Spans that the OpenTelemetry SDK sends: which of them is decided at the root, and for some only at the end.

A request is sampled by its trace id, so that whoever samples by the same ratio decides alike; one that comes with a
trace follows whoever began that, unless the tracer is told not to. Spans of the others are *held*, bounded in memory,
until somebody says that the trace is to be kept after all (the request was slow, or failed):

    sampled        sent as it ends
    not sampled    held · `keep` sends what is held and all that follows · the oldest traces go where room is needed

That is why the spans are our own until they are sent: the SDK's are dropped at their beginning where they are not
sampled, and cost several times as much to make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState

from pilotfish.messages import TraceContext
from pilotfish.tracing import SAMPLED, AttributeValue, Span, context_of, ids_of

MAX_HELD_SPANS: Final = 32_768  # some 20 MB
MAX_KEPT_TRACES: Final = 4_096  # that are remembered as kept, for spans that end later


class RecordedSpan:
    """A span until it is sent, dropped or forgotten."""

    __slots__ = (
        "_finish", "attributes", "end_ns", "flags", "is_sent", "link", "name", "parent_id", "problem", "span_id",
        "start_ns", "state", "trace",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        ids: tuple[int, int | None, int],
        flags: int,
        state: str,
        start_ns: int,
        attributes: Mapping[str, AttributeValue] | None,
        finish: Callable[[RecordedSpan], None],
    ) -> None:
        """Begin it.

        Args:
            ids: of its trace, its parent (None: it is a root) and itself.
            flags: of its trace.
            state: W3C trace state, as it came.
            finish: is called once, when it has ended.
        """
        self.name = name
        self.trace, self.parent_id, self.span_id = ids
        self.flags = flags
        self.state = state
        self.start_ns = start_ns
        self.end_ns = start_ns
        self.attributes: dict[str, AttributeValue] = dict(attributes) if attributes else {}
        self.problem: str | None = None
        self.link: RecordedSpan | None = None
        self.is_sent = False
        self._finish = finish

    @property
    def context(self) -> TraceContext:
        return context_of(self.trace, self.span_id, self.flags, self.state)

    @property
    def trace_id(self) -> str:
        return f"{self.trace:032x}"

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        self.attributes.update(attributes)

    def end(self, end_ns: int | None = None, problem: str | None = None) -> None:
        self.end_ns = time.monotonic_ns() if end_ns is None else end_ns
        self.problem = problem
        self._finish(self)


class Held:
    """Ended spans of traces that are not sampled, the oldest trace first."""

    def __init__(self, max_spans: int = MAX_HELD_SPANS) -> None:
        self.num_spans = 0
        self._max_spans = max_spans
        self._traces: dict[int, list[RecordedSpan]] = {}

    def add(self, span: RecordedSpan) -> None:
        """Hold one more; where there is no room the oldest traces are forgotten."""
        self._traces.setdefault(span.trace, []).append(span)
        self.num_spans += 1
        while self.num_spans > self._max_spans:
            self.take(next(iter(self._traces)))

    def take(self, trace: int) -> list[RecordedSpan]:
        """What is held of a trace; it is held no longer."""
        spans = self._traces.pop(trace, [])
        self.num_spans -= len(spans)
        return spans


class SdkTracer:
    """Makes spans, and hands those that are to be sent to a processor of the OpenTelemetry SDK."""

    def __init__(
        self,
        service: str,
        version: str,
        processor: SpanProcessor,
        *,
        ratio: float = 1.0,
        follows_parent: bool = True,
        resource: Resource | None = None,
        max_held_spans: int = MAX_HELD_SPANS,
    ) -> None:
        """Make one that has sent nothing.

        Args:
            ratio: of the traces that begin here, how many are sampled; 0 to 1.
            follows_parent: a span with a parent is sampled where that is; else by its trace id, as one without.
            resource: what the spans are of; None: what `resource_of` says.
        """
        self._processor = processor
        self._resource = resource or resource_of(service, version)
        self._scope = InstrumentationScope("pilotfish", version)
        self._ids = RandomIdGenerator()
        self._id_mask = TraceIdRatioBased.TRACE_ID_LIMIT
        self._id_bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self._follows_parent = follows_parent
        self._held = Held(max_held_spans)
        self._kept: dict[int, None] = {}
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()

    @property
    def num_held_spans(self) -> int:
        """Spans that are neither sent nor forgotten."""
        return self._held.num_spans

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_ns: int | None = None,
    ) -> RecordedSpan:
        start_ns = time.monotonic_ns() if start_ns is None else start_ns
        span_id = self._ids.generate_span_id()
        if parent is None:
            trace = self._ids.generate_trace_id()
            flags = self._flags_of(trace)
            return RecordedSpan(name, (trace, None, span_id), flags, "", start_ns, attributes, self._finish)
        trace, parent_id, flags = ids_of(parent)
        flags = flags & SAMPLED if self._follows_parent else self._flags_of(trace)
        ids = trace, parent_id, span_id
        return RecordedSpan(name, ids, flags, parent.tracestate, start_ns, attributes, self._finish)

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
        link: Span | None = None,
    ) -> RecordedSpan:
        span = self.begin(name, parent, attributes, start_ns)
        span.link = link if isinstance(link, RecordedSpan) else None
        span.end(end_ns)
        return span

    def aside(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, AttributeValue]) -> RecordedSpan:
        ids = self._ids.generate_trace_id(), None, self._ids.generate_span_id()
        span = RecordedSpan(name, ids, SAMPLED, "", start_ns, attributes, self._send)
        span.end_ns = end_ns
        return span

    def keep(self, context: TraceContext) -> None:
        trace, _, _ = ids_of(context)
        self._kept[trace] = None
        if len(self._kept) > MAX_KEPT_TRACES:
            del self._kept[next(iter(self._kept))]
        for span in self._held.take(trace):
            self._send(span)

    def shutdown(self) -> None:
        self._processor.shutdown()

    def _flags_of(self, trace: int) -> int:
        """What the trace's id says; every service with the same ratio finds the same."""
        return SAMPLED if trace & self._id_mask < self._id_bound else 0

    def _finish(self, span: RecordedSpan) -> None:
        if span.flags & SAMPLED or span.trace in self._kept:
            self._send(span)
        else:
            self._held.add(span)

    def _send(self, span: RecordedSpan) -> None:
        """Give a span to the SDK, once, and before it the one it links to."""
        if span.is_sent:
            return
        span.is_sent = True
        if span.link is not None:
            self._send(span.link)
        self._processor.on_end(self._readable(span))

    def _readable(self, span: RecordedSpan) -> ReadableSpan:
        """The span as the SDK's exporters want it."""
        state = TraceState.from_header([span.state]) if span.state else None

        def context(trace: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
            return SpanContext(trace, span_id, is_remote, TraceFlags(SAMPLED), state)

        link, problem = span.link, span.problem
        return ReadableSpan(
            span.name,
            context(span.trace, span.span_id),
            None if span.parent_id is None else context(span.trace, span.parent_id, is_remote=True),
            self._resource,
            span.attributes,
            links=() if link is None else (Link(context(link.trace, link.span_id)),),
            status=Status(StatusCode.UNSET) if problem is None else Status(StatusCode.ERROR, problem),
            start_time=span.start_ns + self._wall_offset_ns,
            end_time=span.end_ns + self._wall_offset_ns,
            instrumentation_scope=self._scope,
        )


def resource_of(service: str, version: str) -> Resource:
    """What spans and metrics of this process are of; OTEL_RESOURCE_ATTRIBUTES adds to it."""
    attributes = {"service.name": service, "service.version": version, "service.instance.id": str(uuid4())}
    return Resource.create(attributes)
