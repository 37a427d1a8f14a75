"""What a span is, and a tracer that makes none. `spans` has the one that does.

Spans are made by hand: one stream serves many requests, so no library can tell where a request begins and ends. Times
are `time.monotonic_ns()` of this process; they are put on the wall clock once, so durations stay true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

from pilotfish.messages import TraceContext

AttributeValue: TypeAlias = str | int | float | bool

SAMPLED: Final = 1  # the bit among a context's flags that says: whoever takes part sends its spans


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
    """Makes spans. Belongs to one event loop."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """A span that has begun, now or at `start_ns`; without a parent, the root of a trace."""

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AttributeValue] | None = None,
        link: Span | None = None,
    ) -> Span:
        """A span that is over already.

        Args:
            link: made by `aside`.
        """

    def aside(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, AttributeValue]) -> Span:
        """A span that is over already, in a trace of its own: it is sent with the first span sent that links to it."""

    def keep(self, context: TraceContext) -> None:
        """Send what is held back of a trace that was not sampled, and what comes of it from now on."""

    def shutdown(self) -> None:
        """Send what waits, and stop."""


def ids_of(context: TraceContext) -> tuple[int, int, int]:
    """Trace id, span id and flags of a context."""
    _, trace_id, span_id, flags = context.traceparent.split("-")
    return int(trace_id, 16), int(span_id, 16), int(flags, 16)


def context_of(trace_id: int, span_id: int, flags: int, state: str) -> TraceContext:
    """The context with these ids, flags and trace state."""
    return TraceContext(f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}", state)


def trace_id_of(context: TraceContext) -> str:
    """The trace id of a context, 32 hex digits."""
    return context.traceparent.split("-")[1]


def sampled(context: TraceContext) -> TraceContext:
    """The same context, with word that its trace is sampled."""
    trace_id, span_id, flags = ids_of(context)
    return context_of(trace_id, span_id, flags | SAMPLED, context.tracestate)


class _NoSpan:
    """Passes on the trace of whoever traces around us."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None) -> None:
        self.context = context

    @property
    def trace_id(self) -> str | None:
        return None if self.context is None else trace_id_of(self.context)

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Nothing."""

    def end(self, end_ns: int | None = None, problem: str | None = None) -> None:
        """Nothing."""


_NO_SPAN: Final = _NoSpan(None)


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
        link: Span | None = None,
    ) -> Span:
        return _NO_SPAN if parent is None else _NoSpan(parent)

    def aside(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, AttributeValue]) -> Span:
        return _NO_SPAN

    def keep(self, context: TraceContext) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""
