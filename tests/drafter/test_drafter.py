"""What a drafter does with what it is told: positions, deadlines, leases, faults. No gRPC, no waiting."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from drafter.speculators import Ask, Facts
from drafter.speculators.ngram import NgramSpeculator
from pilotfish.draft import Draft
from pilotfish.messages import Close, DraftEnd, DraftPart, Opened, Refusal, SessionId, TraceContext
from pilotfish.spans import SdkTracer
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.wire.drafter import FromDrafter
from tests.drafter.desk import Clock, Desk, Steps, only
from tests.drafter.openings import INCARNATION, opening, request

A, B = b"a" * 16, b"b" * 16
TEXT = [1, 2, 3, 4]


@pytest.fixture
async def desk() -> Desk:
    return Desk(Steps(Clock()))


async def test_draft_stops_before_the_first_draw_that_is_too_late(desk: Desk) -> None:
    """Steps of 10 ms under a deadline of 25: the draws at 0, 10 and 20 ms begin, the one at 30 does not."""
    desk.tell(opening(A, TEXT))
    parts = desk.tell(request(A, TEXT, 8, deadline_us=25_000))

    assert [part.draft.tokens for part in parts if isinstance(part, DraftPart)] == [(0,), (1,), (2,)]
    last = parts[-1]
    assert isinstance(last, DraftPart)
    assert (last.is_complete, last.end, last.draft_us) == (True, DraftEnd.DEADLINE, 30_000)


async def test_deadline_that_is_over_allows_no_draw() -> None:
    """A draft whose time is over when its step would begin is empty, and nothing was drawn for it."""
    times = itertools.count(100.0, 0.001)
    speculator = Steps(Clock())
    desk = Desk(speculator, clock=lambda: next(times))
    desk.tell(opening(A, TEXT))
    part = only(desk.tell(request(A, TEXT, 8, deadline_us=500)), DraftPart)

    assert (part.draft, part.end, speculator.num_draws) == (Draft.EMPTY, DraftEnd.DEADLINE, 0)


async def test_draft_ends_where_the_context_of_the_drafter_is_full() -> None:
    """With room for 6 tokens and 4 committed, two nodes can be read and a third drawn."""
    desk = Desk(Steps(Clock(), context_length=6))
    desk.tell(opening(A, TEXT))
    parts = desk.tell(request(A, TEXT, 8))

    assert [part.draft.tokens for part in parts if isinstance(part, DraftPart)] == [(0,), (1,), (2,)]
    assert isinstance(parts[-1], DraftPart)
    assert parts[-1].end is DraftEnd.CONTEXT


async def test_position_and_prefix_decide_what_a_request_is() -> None:
    """Overlaps are taken once; gaps, positions behind, other tokens and another hash are refused and change nothing."""
    speculator = Steps(Clock())
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    longer = [*TEXT, 5, 6]
    desk.tell(request(A, longer, 1, told=2))
    assert speculator.texts[A] == longer

    sound = request(A, [*longer, 7], 1, told=6)
    for wrong, reason in (
        (request(A, [*longer, 7, 8], 1, told=7), "position"),
        (request(A, longer[:5], 1), "position"),
        (replace(sound, tokens=(9, 7), prefix_hash=sound.prefix_hash), "prefix"),
        (replace(sound, prefix_hash=sound.prefix_hash ^ 1), "prefix"),
        (replace(sound, incarnation=1), "incarnation"),
    ):
        refusal = only(desk.tell(wrong), Refusal)
        assert (refusal.reason, refusal.position, refusal.incarnation) == (reason, 6, INCARNATION)
        assert speculator.texts[A] == longer
    assert desk.dropped("position") == desk.dropped("prefix") == 2
    assert only(desk.tell(sound), DraftPart).draft.tokens == (0,)
    assert speculator.texts[A] == [*longer, 7]


async def test_the_same_request_again_is_drafted_again(desk: Desk) -> None:
    """A resend at the committed position, as after a broken stream, gets the same draft."""
    desk.tell(opening(A, TEXT))
    first = desk.tell(request(A, TEXT, 3))

    assert [replace(part, draft_us=0) for part in desk.tell(request(A, TEXT, 3)) if isinstance(part, DraftPart)] == [
        replace(part, draft_us=0) for part in first if isinstance(part, DraftPart)
    ]


async def test_open_again_starts_anew(desk: Desk) -> None:
    """Opening a session that is open replaces it, whatever it had grown to."""
    desk.tell(opening(A, TEXT))
    desk.tell(request(A, [*TEXT, 5], 0, told=4))

    assert only(desk.tell(opening(A, [9, 9])), Opened) == Opened(A, 2)
    assert only(desk.tell(request(A, [9, 9], 1)), DraftPart).draft.tokens == (0,)


async def test_lease_frees_what_nobody_speaks_of() -> None:
    """A session is gone once its lease has passed without an item; one that is spoken of stays."""
    speculator = Steps(Clock())
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT, lease_s=2.0))
    desk.tell(opening(B, TEXT, lease_s=2.0))
    desk.clock.now_s += 1.5
    desk.tell(request(B, TEXT, 0))
    desk.clock.now_s += 1.0
    desk.drafter.expire()

    assert set(speculator.texts) == {B}
    assert only(desk.tell(request(A, TEXT, 1)), Refusal).reason == "unknown_session"
    assert only(desk.tell(request(B, TEXT, 1)), DraftPart).draft.tokens == (0,)
    assert desk.telemetry.value(Metric.LEASES_EXPIRED) == 1
    assert desk.telemetry.value(Metric.SESSIONS) == 1


async def test_more_sessions_than_allowed_are_refused_by_name() -> None:
    """The session beyond the limit is refused as an overload; closing one makes room."""
    desk = Desk(Steps(Clock()), max_sessions=1)
    desk.tell(opening(A, TEXT))
    refusal = only(desk.tell(opening(B, TEXT)), Refusal)
    assert (refusal.reason, "max_sessions" in refusal.message) == ("full", True)

    desk.tell(Close(A, INCARNATION))
    only(desk.tell(opening(B, TEXT)), Opened)


async def test_unknown_speculator_and_other_vocabulary_are_refused_by_name() -> None:
    """The refusal names what was asked for and what there is."""

    class OfModel(Steps):
        @property
        def facts(self) -> Facts:
            return Facts(model="small", vocabulary_hash="ours")

    desk = Desk(OfModel(Clock()))
    unknown = only(desk.tell(opening(A, TEXT, speculator="telepathy")), Refusal)
    other = only(desk.tell(opening(A, TEXT, vocabulary_hash="theirs")), Refusal)

    assert unknown.reason == "not_found"
    assert "telepathy" in unknown.message
    assert "has it" in unknown.message
    assert other.reason == "vocabulary"
    assert "theirs" in other.message
    assert "ours" in other.message
    only(desk.tell(opening(A, TEXT, vocabulary_hash="ours")), Opened)


async def test_speculator_without_vocabulary_takes_any() -> None:
    """A speculator that only copies ids serves every vocabulary."""
    desk = Desk(NgramSpeculator())

    only(desk.tell(opening(A, TEXT, vocabulary_hash="anything")), Opened)
    assert desk.drafter.facts.vocabulary_hash is None


async def test_step_that_fails_costs_its_drafts_only() -> None:
    """An error in a step refuses the request with the error's text; the session goes on."""

    class Stumbling(Steps):
        def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
            if super().propose(asks) and self.num_draws == 2:
                raise RuntimeError("tripped")
            return [ask.chain([8]) for ask in asks]

    desk = Desk(Stumbling(Clock()))
    desk.tell(opening(A, TEXT))
    part, refusal = desk.tell(request(A, TEXT, 3))

    assert isinstance(part, DraftPart)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.position) == ("internal", 4)
    assert "tripped" in refusal.message
    assert len(desk.tell(request(A, TEXT, 3))) == 3


async def test_speculator_that_proposes_too_much_is_told_so() -> None:
    """More levels than asked for is a fault of the speculator, not something to be cut in silence."""

    class Overdoing(Steps):
        def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
            return [ask.chain([1] * (ask.num_levels + 1)) for ask in asks]

    desk = Desk(Overdoing(Clock()))
    desk.tell(opening(A, TEXT))

    assert "asked for 2 levels" in only(desk.tell(request(A, TEXT, 2)), Refusal).message


async def test_session_whose_speculator_fails_is_over_and_freed() -> None:
    """A speculator that cannot take a session's tokens costs that session, which can be opened again."""

    class Picky(Steps):
        def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
            if 13 in tokens:
                raise ValueError("no 13 here")
            super().observe(session, tokens)

    speculator = Picky(Clock())
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    refusal = only(desk.tell(request(A, [*TEXT, 13], 2, told=4)), Refusal)

    assert (refusal.position, "no 13 here" in refusal.message) == (None, True)
    assert not speculator.texts
    only(desk.tell(opening(A, TEXT)), Opened)


async def test_load_tells_the_time_before_the_first_node_and_per_node(desk: Desk) -> None:
    """t(γ) = start + γ · token: nodes 10 ms apart from the start on give 0 and 10 ms."""
    desk.tell(opening(A, TEXT))
    assert (desk.drafter.load.start_us, desk.drafter.load.token_us) == (0, 0), "not measured yet"
    for gamma in (3, 4, 2, 1):
        desk.tell(request(A, TEXT, gamma))
    load = desk.drafter.load
    assert (load.start_us, load.token_us, load.num_sessions, load.num_queued) == (1, 10_000, 1, 0)


async def test_draft_is_a_span_of_the_round_that_asked() -> None:
    """The draft's span hangs below the trace context of its item and says what was drawn and why it ended."""
    exporter = InMemorySpanExporter()
    tracer = SdkTracer("drafter", "test", SimpleSpanProcessor(exporter))
    desk = Desk(Steps(Clock()), telemetry=Telemetry(None, tracer))
    desk.tell(opening(A, TEXT))
    trace = TraceContext(f"00-{7:032x}-{9:016x}-01")
    desk.tell(request(A, TEXT, 2, trace=trace, round_=5))
    tracer.shutdown()

    [span] = exporter.get_finished_spans()
    assert span.name == "draft"
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (7, 9)
    assert span.attributes is not None
    assert span.attributes["pilotfish.round.index"] == 5
    assert span.attributes["pilotfish.round.drafted"] == 2
    assert span.attributes["pilotfish.draft.end"] == "gamma"


async def test_a_close_may_ask_for_what_was_held_back() -> None:
    """The spans of a request that was not sampled are held; the close of its session may ask for them after all."""
    exporter = InMemorySpanExporter()
    tracer = SdkTracer("drafter", "test", SimpleSpanProcessor(exporter))
    desk = Desk(Steps(Clock()), telemetry=Telemetry(None, tracer))
    for session, trace in ((A, 7), (B, 8)):
        desk.tell(opening(session, TEXT))
        desk.tell(request(session, TEXT, 2, trace=TraceContext(f"00-{trace:032x}-{9:016x}-00")))
    assert exporter.get_finished_spans() == ()
    desk.tell(Close(A, INCARNATION, TraceContext(f"00-{7:032x}-{9:016x}-01")))
    desk.tell(Close(B, INCARNATION))
    assert [span.context.trace_id for span in exporter.get_finished_spans() if span.context] == [7]


async def test_stream_that_is_gone_leaves_its_sessions_to_the_next() -> None:
    """A request on another stream finds the session of one that ended, and is answered there."""
    desk = Desk(Steps(Clock()))
    desk.tell(opening(A, TEXT))
    desk.drafter.leave(desk.reply)
    answers: list[FromDrafter] = []
    desk.answers.clear()
    desk.drafter.take(request(A, TEXT, 1), answers.append)

    assert only(answers, DraftPart).draft.tokens == (0,)
    assert not desk.answers


async def test_any_order_of_messages_is_answered_and_leaves_nothing() -> None:
    """500 random messages: each request gets a complete draft or a refusal, and closing frees all."""
    chance = random.Random(8)
    speculator = Steps(Clock())
    desk = Desk(speculator, max_sessions=3)
    ids = [bytes([i]) * 16 for i in range(5)]
    texts: dict[SessionId, list[int]] = {}
    for _ in range(500):
        session = chance.choice(ids)
        text = texts.setdefault(session, [1])
        match chance.randrange(4):
            case 0:
                answer = desk.tell(opening(session, text))[-1]
                assert isinstance(answer, Opened | Refusal)
            case 1:
                assert desk.tell(Close(session, INCARNATION)) == []
            case _:
                text += [chance.randrange(9) for _ in range(chance.randrange(3))]
                gamma = chance.randrange(3)
                told = max(0, len(text) - chance.randrange(6))
                answers = desk.tell(request(session, text, gamma, told=told))
                if not answers:
                    assert gamma == 0
                else:
                    last = answers[-1]
                    assert isinstance(last, Refusal) or (isinstance(last, DraftPart) and last.is_complete)
    for session in ids:
        desk.tell(Close(session, INCARNATION))
    assert not speculator.texts
    assert desk.drafter.load.num_sessions == 0
