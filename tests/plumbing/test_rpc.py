from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.errors import Overloaded
from pilotfish.rpc import FrameQueue, Streams, channel_options, server_options


@dataclass
class Block:
    """An item of a known size."""

    size: int

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        return self.size


async def frames_of(sizes: list[int], budget: int) -> list[list[int]]:
    queue: FrameQueue[Block] = FrameQueue(budget)
    for size in sizes:
        queue.put(Block(size))
    queue.close()
    return [[item.size for item in frame] async for frame in queue.frames()]


@given(st.lists(st.integers(0, 150), max_size=30))
def test_frames_hold_the_items_in_order_and_stay_under_the_budget(sizes: list[int]) -> None:
    """Nothing is lost or reordered, frames are as full as they can be, and over the budget only with one large item."""
    frames = asyncio.run(frames_of(sizes, 100))
    assert [size for frame in frames for size in frame] == sizes
    assert all(sum(frame) <= 100 or len(frame) == 1 for frame in frames)
    assert all(sum(frame) + following[0] > 100 for frame, following in pairwise(frames))


async def test_whatever_is_ready_goes_into_the_next_frame() -> None:
    """Items that are put while a frame is being sent travel together."""
    queue: FrameQueue[Block] = FrameQueue()
    frames = aiter(queue.frames())
    queue.put(Block(1))
    assert await anext(frames) == [Block(1)]
    queue.put(Block(2))
    queue.put(Block(3))
    assert await anext(frames) == [Block(2), Block(3)]
    assert (queue.num_frames, queue.num_frame_bytes, queue.num_bytes, len(queue)) == (2, 6, 0, 0)


async def test_a_reader_that_waits_gets_what_comes() -> None:
    """The frames wait for items and end when the queue is closed."""
    queue: FrameQueue[Block] = FrameQueue()

    async def read() -> list[int]:
        return [item.size async for frame in queue.frames() for item in frame]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    queue.put(Block(1))
    await asyncio.sleep(0)
    queue.put(Block(2))
    queue.close()
    queue.put(Block(3))
    assert await reader == [1, 2]


def test_a_full_queue_says_so() -> None:
    """Where nobody reads, putting raises at the bound, and what was put stays."""
    queue: FrameQueue[Block] = FrameQueue(max_bytes=100)
    queue.put(Block(200))  # one is always taken, or it never could be
    with pytest.raises(Overloaded):
        queue.put(Block(1))
    assert queue.num_bytes == 200


async def test_a_stream_ends_with_its_caller() -> None:
    """When the caller ends its side, the answers that wait are sent, then the stream ends."""

    async def frames() -> AsyncIterator[int]:
        yield 1
        yield 2

    streams, queue = Streams(), FrameQueue[Block]()
    answers = [items async for items in streams.exchange(frames(), lambda frame: queue.put(Block(frame)), queue)]
    assert [item.size for items in answers for item in items] == [1, 2]
    assert len(streams) == 0


async def test_a_shutdown_ends_every_stream() -> None:
    """Closing the streams of a service sends what waits and ends them, though the callers stay."""
    began = asyncio.Event()

    async def frames() -> AsyncIterator[int]:
        yield 1
        began.set()
        await asyncio.Event().wait()

    streams, queue = Streams(), FrameQueue[Block]()

    async def serve() -> list[list[Block]]:
        return [items async for items in streams.exchange(frames(), lambda frame: queue.put(Block(frame)), queue)]

    serving = asyncio.create_task(serve())
    await began.wait()
    queue.put(Block(7))
    streams.close()
    assert [item.size for items in await serving for item in items] == [1, 7]
    assert len(streams) == 0


async def test_an_error_of_the_reader_ends_the_stream() -> None:
    """What `take` raises reaches the caller of the stream."""

    async def frames() -> AsyncIterator[int]:
        yield 0

    def take(frame: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        [items async for items in Streams().exchange(frames(), take, FrameQueue[Block]())]


def test_every_channel_option_exists_in_the_core() -> None:
    """The core ignores names that it does not know, so each is looked for in its binary."""
    (binary,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    core = binary.read_bytes()
    names = [name for name, _ in channel_options() + server_options()]
    assert [name for name in names if name.encode() + b"\0" not in core] == []
    assert b"grpc.keepalive_time_msec\0" not in core
