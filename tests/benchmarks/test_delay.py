"""The wire that takes time: bytes come whole and in order, and not before they are due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from benchmarks.delay import Wire, main

FOREVER_S = 3600.0


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[str, bytearray]]:
    """A server that gives back what it gets, and what it got so far."""
    got = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            got.extend(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", got
    finally:
        server.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_bytes_come_whole_and_in_order() -> None:
    """A megabyte there and back is what it was, and the end of the stream comes after it."""
    sent = bytes(range(256)) * 4096
    async with echo() as (target, _):
        wire = Wire(target, one_way_s=0.01)
        reader, writer = await connect(await wire.start())
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        writer.close()
        await wire.stop()


async def test_nothing_comes_before_it_is_due() -> None:
    """While a fast wire to the same server answers many times, a slow one has brought nothing."""
    async with echo() as (target, got):
        slow, fast = Wire(target, FOREVER_S), Wire(target, 0.0)
        _, late = await connect(await slow.start())
        late.write(b"late")
        reader, writer = await connect(await fast.start())
        for _ in range(20):
            writer.write(b"now")
            assert await reader.readexactly(3) == b"now"
        assert bytes(got) == b"now" * 20
        late.close()
        writer.close()
        await slow.stop()
        await fast.stop()


async def test_nobody_behind_the_wire_ends_the_connection() -> None:
    """Where the address does not answer the caller is told at once, as it would be without the wire."""
    async with echo() as (target, _):
        pass
    wire = Wire(target, 0.0)
    reader, writer = await connect(await wire.start())
    data = b""
    with suppress(ConnectionError):
        data = await reader.read(1)
    assert data == b""
    writer.close()
    await wire.stop()


def test_a_wire_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which argument, and how one is written."""
    with pytest.raises(SystemExit):
        main(["--one-way-ms", "1", "50061"])
    assert "'50061' is no wire" in capsys.readouterr().err
