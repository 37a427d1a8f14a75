"""Spans: whose children they are, which are sent, which are held and for how long."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilotfish.messages import TraceContext
from pilotfish.spans import SdkTracer
from pilotfish.tracing import sampled

UNSAMPLED = TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-00")


def recording(**options: Any) -> tuple[SdkTracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return SdkTracer("pilotfish-test", "1", SimpleSpanProcessor(exporter), **options), exporter


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def test_spans_of_several_services_make_one_trace() -> None:
    """A child that is begun elsewhere, from the context alone, hangs below its parent in the same trace."""
    coordinator, here = recording()
    verifier, there = recording()
    request = coordinator.begin("generate")
    start_ns = time.monotonic_ns()
    verify = verifier.record("verify", request.context, start_ns, start_ns + 1000, {"pilotfish.round.accepted": 2})
    verifier.record("pass", verify.context, start_ns + 100, start_ns + 900)
    request.end()
    (generate,) = here.get_finished_spans()
    verified, passed = there.get_finished_spans()
    assert request.trace_id == f"{generate.context.trace_id:032x}"
    assert {span.context.trace_id for span in (generate, verified, passed)} == {generate.context.trace_id}
    assert generate.parent is None
    assert verified.parent is not None
    assert passed.parent is not None
    assert (verified.parent.span_id, passed.parent.span_id) == (generate.context.span_id, verified.context.span_id)
    assert (verified.end_time or 0) - (verified.start_time or 0) == 1000
    assert dict(verified.attributes or {}) == {"pilotfish.round.accepted": 2}
    assert abs((generate.start_time or 0) - time.time_ns()) < 60e9  # on the wall clock


def test_a_trace_of_the_caller_goes_on() -> None:
    """The trace that a client began is the one that the request belongs to."""
    tracer, exporter = recording()
    span = tracer.begin("generate", TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "vendor=x"))
    span.end(problem="it broke")
    (finished,) = exporter.get_finished_spans()
    assert f"{finished.context.trace_id:032x}" == "ab" * 16
    assert span.context.tracestate == "vendor=x"
    assert finished.context.trace_state.get("vendor") == "x"
    assert not finished.status.is_ok
    assert finished.status.description == "it broke"


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 400)])
def test_none_or_all_are_sampled(ratio: float, expected: int) -> None:
    """Ratio 0 sends no trace, ratio 1 all."""
    tracer, exporter = recording(ratio=ratio)
    for _ in range(400):
        tracer.begin("generate").end()
    assert len(names(exporter)) == expected


@pytest.mark.parametrize(("follows_parent", "num_sent"), [(True, 0), (False, 2)])
def test_a_tracer_may_be_told_not_to_follow_the_parent(follows_parent: bool, num_sent: int) -> None:
    """Then the trace's id decides in a span with a parent too, and its own children hear of it."""
    tracer, exporter = recording(ratio=1.0, follows_parent=follows_parent)
    generate = tracer.begin("generate", UNSAMPLED)
    tracer.begin("round", generate.context).end()
    generate.end()
    assert len(names(exporter)) == num_sent
    assert generate.context.traceparent.endswith("-01" if num_sent else "-00")


def test_services_sample_the_same_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a trace is sampled is in its id: whoever samples by the same ratio, or follows the flag, decides alike.

    The share of 2,000 ids drawn with a fixed seed is within four standard deviations (0.027) of the ratio.
    """
    chance = random.Random(1)
    monkeypatch.setattr(random, "getrandbits", chance.getrandbits)  # where the SDK draws ids from
    one, sent = recording(ratio=0.1)
    peer, followed = recording(ratio=1.0)
    for _ in range(2000):
        root = one.begin("generate")
        peer.begin("draft", root.context).end()
        root.end()
    ours = {span.context.trace_id for span in sent.get_finished_spans()}
    assert ours == {span.context.trace_id for span in followed.get_finished_spans()}
    assert ours == {trace for trace in ours if trace & 0xFFFFFFFFFFFFFFFF < round(0.1 * 2**64)}
    assert abs(len(ours) / 2000 - 0.1) < 0.027


def test_what_is_not_sampled_is_sent_only_if_kept() -> None:
    """Spans of a trace that is not sampled are held; `keep` sends them and those that end after it, marked sampled."""
    tracer, exporter = recording()
    early, late = tracer.begin("draft", UNSAMPLED), tracer.begin("draft", UNSAMPLED)
    assert early.context.traceparent.endswith("-00")
    early.end()
    assert names(exporter) == []
    tracer.keep(sampled(UNSAMPLED))
    assert names(exporter) == ["draft"]
    late.end()
    assert names(exporter) == ["draft", "draft"]
    assert all(span.context.trace_flags.sampled for span in exporter.get_finished_spans())
    assert tracer.num_held_spans == 0
    tracer.keep(sampled(UNSAMPLED))
    assert len(names(exporter)) == 2


def test_the_oldest_traces_make_room() -> None:
    """No more spans are held than allowed: those of the oldest trace go first, and `keep` finds them no more."""
    tracer, exporter = recording(ratio=0.0, max_held_spans=5)
    contexts = []
    for number in range(4):
        root = tracer.begin(f"root {number}")
        tracer.begin(f"child {number}", root.context).end()
        root.end()
        contexts.append(root.context)
    assert tracer.num_held_spans == 4  # a sixth span twice made the oldest trace go
    for context in contexts:
        tracer.keep(context)
    assert names(exporter) == ["child 2", "root 2", "child 3", "root 3"]


def test_a_pass_is_sent_once_with_the_first_round_that_is() -> None:
    """What several spans link to is in a trace of its own, sent once, and not at all where none of them is sent."""
    tracer, exporter = recording()
    whole = tracer.aside("whole_pass", 10, 20, {"pilotfish.pass.sequences": 3})
    tracer.record("pass", UNSAMPLED, 10, 20, link=whole)
    assert names(exporter) == []
    one, other = tracer.begin("generate"), tracer.begin("generate")
    tracer.record("pass", one.context, 10, 20, link=whole)
    tracer.record("pass", other.context, 10, 20, link=whole)
    tracer.keep(UNSAMPLED)
    assert names(exporter) == ["whole_pass", "pass", "pass", "pass"]
    passed, *riders = exporter.get_finished_spans()
    assert passed.parent is None
    assert passed.context.trace_id not in {rider.context.trace_id for rider in riders}
    assert [rider.links[0].context.span_id for rider in riders] == [passed.context.span_id] * 3
