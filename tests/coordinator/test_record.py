"""What is recorded of one request."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinator.record import Record
from pilotfish.messages import TokenKind, TraceContext, Verdict
from pilotfish.price import Plan
from pilotfish.spans import SdkTracer
from pilotfish.telemetry import Metric, Telemetry

CLIENT = "00-" + "ab" * 16 + "-" + "cd" * 8


class Clock:
    """Time that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


def verdict(num_drafted: int = 4, num_accepted: int = 2) -> Verdict:
    kinds = (TokenKind.ACCEPTED,) * num_accepted + (TokenKind.CORRECTION,)
    return Verdict(b"v" * 16, 3, tuple(range(len(kinds))), kinds, 0, num_drafted, num_accepted)


class Traced:
    """A record whose spans are kept here, of a client that does not sample unless told."""

    def __init__(self, flags: str = "00", slow_s: float | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.telemetry = Telemetry("coordinator", SdkTracer("c", "0", SimpleSpanProcessor(self._exporter)))
        self.clock = Clock()
        self.record = Record(self.telemetry, self.clock, TraceContext(f"{CLIENT}-{flags}"), slow_s)

    @property
    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())


@pytest.mark.parametrize(
    ("plan", "price"),
    [(Plan(0.25, 0.02, 0.02, 90.0), 0.25), (Plan.plain(3, 0.02), None), (None, None)],
)
def test_a_round_names_the_price_it_was_decided_at(plan: Plan | None, price: float | None) -> None:
    """The price is that of the decision, not of a plan that came later; where no position has one it is absent."""
    traced = Traced("01")
    traced.record.decided_at(plan)
    round_ = traced.record.begin_round(0, 4, "acceptance", 3, 0, traced.clock())
    traced.record.decided_at(Plan(9.0, 0.02, 0.02, 90.0))
    traced.record.end_round(round_, verdict())
    (span,) = traced.spans
    assert span.attributes.get("pilotfish.round.price") == price
    assert {key: span.attributes[f"pilotfish.round.{key}"] for key in ("index", "gamma", "drafted", "accepted")} == {
        "index": 0, "gamma": 4, "drafted": 4, "accepted": 2
    }  # fmt: skip
    assert span.attributes["pilotfish.round.gamma.reason"] == "acceptance"
    assert math.isfinite(span.attributes.get("pilotfish.round.price", 0.0))


@pytest.mark.parametrize(
    ("flags", "slow_s", "took_s", "problem", "is_sent", "are_peers_told"),
    [
        ("00", None, 5.0, None, False, False),
        ("00", 1.0, 0.9, None, False, False),
        ("00", 1.0, 1.1, None, True, True),
        ("00", None, 0.1, "it broke", True, True),
        ("01", None, 0.1, None, True, False),  # they send by themselves
        ("01", 1.0, 5.0, "it broke", True, False),
    ],
)
def test_slow_or_failed_requests_are_kept(
    flags: str, slow_s: float | None, took_s: float, problem: str | None, is_sent: bool, are_peers_told: bool
) -> None:
    """Spans are sent if sampled, slow or failed; peers are told exactly where they would not send by themselves."""
    traced = Traced(flags, slow_s)
    round_ = traced.record.begin_round(0, 4, "fixed", 3, 0, traced.clock())
    traced.record.end_round(round_, verdict())
    traced.clock.now_ns += round(took_s * 1e9)
    traced.record.has_failed = problem is not None
    kept = traced.record.kept
    assert (kept is not None) == are_peers_told
    assert kept is None or kept.traceparent.endswith("-01")
    traced.record.end("stop" if problem is None else "target", problem)
    assert [span.name for span in traced.spans] == (["round", "generate"] if is_sent else [])


def test_requests_are_counted_by_how_they_ended(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is counted by its word, in the conventions' histogram too, and is a warning with the trace's id."""
    caplog.set_level(logging.INFO, logger="coordinator.record")
    traced = Traced()
    traced.record.end("target", "no numbers")
    assert traced.telemetry.value(Metric.REQUESTS, "target") == 1
    assert 'gen_ai_server_request_duration_seconds_count{error_type="target"' in traced.telemetry.exposition()
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == ("WARNING", "request failed: no numbers")
    assert line.__dict__["pilotfish_fields"]["trace_id"] == "ab" * 16


def test_a_cancelled_request_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    """What its client breaks off is no error, and not sent for it."""
    caplog.set_level(logging.INFO, logger="coordinator.record")
    traced = Traced()
    traced.record.end("cancelled")
    assert traced.spans == []
    assert [line.levelname for line in caplog.records] == ["INFO"]
