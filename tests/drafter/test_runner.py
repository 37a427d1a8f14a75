"""A speculator in its thread: what it is asked while the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from drafter.drafter import Drafter
from drafter.speculators import Ask, Speculator
from pilotfish.draft import Draft
from pilotfish.messages import Close, DraftPart, Open, Opened, SessionId
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.wire.drafter import FromDrafter, ToDrafter
from tests.drafter.desk import Answer
from tests.drafter.openings import INCARNATION, opening, request

A, B = b"a" * 16, b"b" * 16
TEXT = [1, 2, 3, 4]


class Slow(Speculator):
    """Draws one node each time it is let go on; the test and the thread take turns."""

    def __init__(self) -> None:
        self.asked: list[tuple[SessionId, ...]] = []
        self.waiting = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.texts: dict[SessionId, list[int]] = {}

    def open(self, start: Open) -> None:
        self.texts[start.session] = list(start.tokens)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self.texts[session] += tokens

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        self.asked.append(tuple(ask.session for ask in asks))
        self.waiting.release()
        assert self.go.acquire(timeout=20)
        return [ask.chain([self.texts[ask.session][-1]]) for ask in asks]

    def close(self, session: SessionId) -> None:
        del self.texts[session]


class Room:
    """A drafter whose speculator works in a thread, and its answers as they come."""

    def __init__(self, speculator: Slow) -> None:
        self.speculator = speculator
        self.telemetry = Telemetry("drafter")
        self.drafter = Drafter({"slow": speculator}, INCARNATION, telemetry=self.telemetry)
        self.answers: asyncio.Queue[FromDrafter] = asyncio.Queue()
        self.reply: Callable[[FromDrafter], None] = self.answers.put_nowait

    async def in_step(self) -> None:
        """Wait until the speculator is in a step."""
        assert await asyncio.to_thread(self.speculator.waiting.acquire, timeout=20)

    async def next(self, kind: type[Answer]) -> Answer:
        answer = await asyncio.wait_for(self.answers.get(), 20)
        assert isinstance(answer, kind), answer
        return answer

    def tell(self, *messages: ToDrafter) -> None:
        for message in messages:
            self.drafter.take(message, self.reply)

    async def stop(self) -> None:
        for _ in range(100):
            self.speculator.go.release()
        await asyncio.to_thread(self.drafter.stop)


async def test_sessions_join_and_leave_between_steps() -> None:
    """A request that comes during a step is in the next one, together with those that go on."""
    room = Room(Slow())
    room.tell(opening(A, TEXT), opening(B, [5, 6]), request(A, TEXT, 3))
    await room.in_step()
    room.tell(request(B, [5, 6], 1))
    for _ in range(3):
        room.speculator.go.release()
    [await room.next(Opened) for _ in "AB"]
    parts = [await room.next(DraftPart) for _ in range(4)]
    await room.stop()

    assert room.speculator.asked == [(A,), (A, B), (A,)]
    assert [(part.session, part.draft.tokens, part.is_complete) for part in parts] == [
        (A, (4,), False),
        (A, (4,), False),
        (B, (6,), True),
        (A, (4,), True),
    ]


async def test_new_request_supersedes_the_one_that_runs() -> None:
    """While a draft is drawn, more is committed and a new one asked for: nothing of the first is sent any more."""
    room = Room(Slow())
    room.tell(opening(A, TEXT), request(A, TEXT, 5))
    await room.in_step()
    room.tell(request(A, [*TEXT, 9], 2, told=4, round_=1))
    for _ in range(3):
        room.speculator.go.release()
    await room.next(Opened)
    parts = [await room.next(DraftPart) for _ in range(2)]
    await room.stop()

    assert [(part.position, part.round, part.draft.tokens) for part in parts] == [(5, 1, (9,)), (5, 1, (9,))]
    assert room.answers.empty()
    assert room.telemetry.value(Metric.ITEMS_DROPPED, "superseded") == 1
    assert room.telemetry.value(Metric.ITEMS_DROPPED, "late_part") == 1


async def test_closing_during_a_step_frees_the_session() -> None:
    """A session closed while a step runs for it is freed after the step, and gets no more nodes."""
    room = Room(Slow())
    room.tell(opening(A, TEXT), request(A, TEXT, 5))
    await room.in_step()
    room.tell(Close(A, INCARNATION))
    await room.next(Opened)
    await room.stop()

    assert not room.speculator.texts
    assert room.answers.empty()
