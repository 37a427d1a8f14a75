"""What a verifier tells of itself: metrics of passes and verdicts, spans of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilotfish.messages import Close, TraceContext
from pilotfish.spans import SdkTracer
from pilotfish.telemetry import Metric, Telemetry
from tests.verifier.stream import Caller, greedy, table_file, verifier

PROMPT = [1, 2, 3]
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return table_file(tmp_path, {"random": {"seed": 1, "order": 2}})


async def test_each_round_is_a_verify_span_with_its_queue_and_pass(model: str) -> None:
    """A traced round becomes `verify` below the round's own span, with `queue` and `pass` inside it, end to end."""
    exporter = InMemorySpanExporter()
    telemetry = Telemetry("verifier", SdkTracer("verifier", "0", SimpleSpanProcessor(exporter)))
    text = greedy(model, PROMPT, 20)
    async with verifier(model, telemetry=telemetry) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        await caller.verify([*text[:2], (text[2] + 1) % 16], trace=TraceContext(f"00-{TRACE_ID}-{SPAN_ID}-01"))
        await caller.verify(text[3:5])  # not traced
    spans: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    assert sorted(spans) == ["pass", "queue", "verify", "whole_pass"]
    verify, queue, passed, whole = spans["verify"], spans["queue"], spans["pass"], spans["whole_pass"]
    assert f"{verify.parent.trace_id:032x}-{verify.parent.span_id:016x}" == f"{TRACE_ID}-{SPAN_ID}"
    assert queue.parent.span_id == passed.parent.span_id == verify.context.span_id
    assert verify.start_time == queue.start_time <= queue.end_time == passed.start_time
    assert passed.end_time == verify.end_time
    assert verify.attributes["pilotfish.round.drafted"] == 3
    assert verify.attributes["pilotfish.round.accepted"] == 2
    assert verify.attributes["pilotfish.round.index"] == 0
    assert passed.attributes["pilotfish.pass.positions"] == 4
    assert [link.context.span_id for link in passed.links] == [whole.context.span_id]
    assert whole.parent is None
    assert whole.context.trace_id != verify.context.trace_id
    assert (whole.start_time, whole.end_time) == (passed.start_time, passed.end_time)
    assert dict(whole.attributes) == {
        "pilotfish.pass.positions": 4,
        "pilotfish.pass.sequences": 1,
        "pilotfish.pass.prefill_positions": 0,
        "pilotfish.pass.saturation": 0.0,
    }


async def test_a_close_may_ask_for_what_was_held_back(model: str) -> None:
    """Spans of a trace that is not sampled are sent once the close of the session says that they are wanted."""
    exporter = InMemorySpanExporter()
    telemetry = Telemetry("verifier", SdkTracer("verifier", "0", SimpleSpanProcessor(exporter)))
    text = greedy(model, PROMPT, 20)
    async with verifier(model, telemetry=telemetry) as running:
        caller = Caller(running.stream(), running.info, PROMPT)
        await caller.open()
        await caller.verify(text[:2], trace=TraceContext(f"00-{TRACE_ID}-{SPAN_ID}-00"))
        assert exporter.get_finished_spans() == ()
        kept = TraceContext(f"00-{TRACE_ID}-{SPAN_ID}-01")
        caller.stream.send(Close(caller.opened.session, caller.opened.incarnation, kept))
        other = Caller(running.stream(), running.info, PROMPT, number=2)
        while not exporter.get_finished_spans():
            await other.open()  # whenever it is answered, the close may have been read
    assert {span.name for span in exporter.get_finished_spans()} == {"verify", "queue", "pass", "whole_pass"}


async def test_positions_and_tokens_are_counted(model: str) -> None:
    """Prompt positions, verified positions and committed tokens by kind add up to what was done."""
    telemetry = Telemetry("verifier")
    text = greedy(model, PROMPT, 20)
    async with verifier(model, telemetry=telemetry) as running:
        caller = Caller(running.stream(), running.info, PROMPT, grant=2)
        await caller.open()
        await caller.hear()
        await caller.hear()
        await caller.verify([*text[2:5], (text[5] + 1) % 16])
    assert telemetry.value(Metric.PASSES) == 3
    assert telemetry.value(Metric.PREFILL_POSITIONS) == 2
    assert telemetry.value(Metric.VERIFIED_POSITIONS) == 1 + 1 + 5
    by_kind = {kind: telemetry.value(Metric.COMMITTED_TOKENS, kind) for kind in ("plain", "accepted", "correction")}
    assert by_kind == {"plain": 2, "accepted": 3, "correction": 1}
    assert telemetry.value(Metric.KV_PAGES) > 0


async def test_a_scrape_before_the_first_draft_works(model: str) -> None:
    """Right after the start every metric without labels is there, at 0."""
    telemetry = Telemetry("verifier")
    async with verifier(model, telemetry=telemetry):
        exposition = telemetry.exposition()
    assert "pilotfish_passes_total 0.0" in exposition
    assert "pilotfish_leases_expired_total 0.0" in exposition
