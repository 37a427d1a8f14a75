"""How services talk: channels, and streams whose messages are frames of many sessions' items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, Protocol, TypeVar

import grpc
import grpc.aio

from pilotfish.errors import Overloaded

FRAME_BYTES: Final = 60_000  # of items in a frame; with the load beside them it stays under 64 KB
MAX_MESSAGE_BYTES: Final = 16 << 20
QUEUE_BYTES: Final = 32 << 20
TENANT_KEY: Final = "pilotfish-tenant"  # metadata: whose requests these are, where no certificate says so


class Sized(Protocol):
    """A proto message, as far as a queue cares."""

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        """Bytes on the wire."""


Item = TypeVar("Item", bound=Sized)
Frame = TypeVar("Frame")


class FrameQueue(Generic[Item]):
    """Items that wait to be sent on one stream, taken out in frames: whatever is ready goes into the next one.

    Belongs to one event loop: other threads hand items over with `loop.call_soon_threadsafe`. Gets full where the
    other side does not read; what to do about that is the owner's business.
    """

    def __init__(self, frame_bytes: int = FRAME_BYTES, max_bytes: int = QUEUE_BYTES) -> None:
        self._frame_bytes = frame_bytes
        self._max_bytes = max_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._num_bytes = 0
        self._is_closed = False
        self._changed = asyncio.Event()
        self.num_frames = 0  # taken so far
        self.num_frame_bytes = 0  # in them

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_bytes(self) -> int:
        """Bytes that wait."""
        return self._num_bytes

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def put(self, item: Item) -> None:
        """Queue an item; on a closed queue nothing happens, for nobody will read it.

        Raises:
            Overloaded: too much waits already, because the other side does not read.
        """
        if self._is_closed:
            return
        size = item.ByteSize()
        if self._items and self._num_bytes + size > self._max_bytes:
            raise Overloaded(f"{self._num_bytes} bytes wait for a peer that does not read them", retry_after_s=1.0)
        self._items.append((item, size))
        self._num_bytes += size
        self._changed.set()

    def close(self) -> None:
        """Take no more items; the frames end once those that wait are out."""
        self._is_closed = True
        self._changed.set()

    async def frames(self) -> AsyncIterator[list[Item]]:
        """The items in frames, in order, until the queue is closed and empty. For one reader."""
        while True:
            while not self._items:
                if self._is_closed:
                    return
                self._changed.clear()
                await self._changed.wait()
            yield self._take()

    def _take(self) -> list[Item]:
        """As many items as fit into a frame; at least one, however large."""
        items = self._items
        item, room = items.popleft()
        frame, num_bytes = [item], room
        while items and num_bytes + items[0][1] <= self._frame_bytes:
            item, size = items.popleft()
            frame.append(item)
            num_bytes += size
        self._num_bytes -= num_bytes
        self.num_frames += 1
        self.num_frame_bytes += num_bytes
        return frame


class Streams:
    """The open streams of a service, which end together when it shuts down."""

    def __init__(self) -> None:
        self._queues: set[FrameQueue[object]] = set()  # type: ignore[type-var] # of any items

    def __len__(self) -> int:
        return len(self._queues)

    async def exchange(
        self, frames: AsyncIterator[Frame], take: Callable[[Frame], None], answers: FrameQueue[Item]
    ) -> AsyncIterator[list[Item]]:
        """Serve one stream: give every frame that comes to `take`, yield the answers in frames.

        Ends when the caller ends its side, when `answers` is closed, or when `take` raises.
        """
        self._queues.add(answers)  # type: ignore[arg-type]
        reader = asyncio.create_task(_read(frames, take, answers))
        try:
            async for items in answers.frames():
                yield items
            if reader.done():
                await reader  # raises what `take` raised
        finally:
            self._queues.discard(answers)
            answers.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def close(self) -> None:
        """End every stream, once the answers that wait are sent."""
        for queue in self._queues:
            queue.close()


async def _read(frames: AsyncIterator[Frame], take: Callable[[Frame], None], answers: FrameQueue[Item]) -> None:
    try:
        async for frame in frames:
            take(frame)
    finally:
        answers.close()


def channel_options(keepalive_s: float = 10.0) -> list[tuple[str, int]]:
    """Options of a client's channel: the core ignores names it does not know, so a test looks for each in it.

    A peer that does not answer a ping within half of `keepalive_s` is gone, and its streams break.
    """
    return [
        ("grpc.keepalive_time_ms", round(keepalive_s * 1e3)),
        ("grpc.keepalive_timeout_ms", round(keepalive_s * 500)),
        ("grpc.http2.ping_timeout_ms", round(keepalive_s * 500)),  # a minute by default, and the longer one counts
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]


def server_options() -> list[tuple[str, int]]:
    """Options of a server: pings of idle clients are welcome, and a port belongs to one process."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 200),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]


def channel(address: str, *, keepalive_s: float = 10.0) -> grpc.aio.Channel:
    """A channel to one address, without encryption; connects when it is first used, and again when it broke."""
    return grpc.aio.insecure_channel(address, options=channel_options(keepalive_s))
