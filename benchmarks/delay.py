"""A wire that takes time.

    python -m benchmarks.delay --one-way-ms 6 50061=127.0.0.1:50052 [PORT=ADDRESS ...]

Listens on each port of this machine and passes bytes on to the address behind it and back, in order, each way so much
later. Bandwidth has no bound. A process of its own, so that holding bytes back costs the services nothing but a copy.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

CHUNK_BYTES = 1 << 16


class Held(NamedTuple):
    """Bytes on their way."""

    due_s: float  # on the loop's clock
    data: bytes  # b"": the end


class Wire:
    """Listens on one port and passes on to one address, late."""

    def __init__(self, target: str, one_way_s: float) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._one_way_s = one_way_s
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self, port: int = 0) -> str:
        """Listen; the address."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", port)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Listen no more, cut what is there."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways, until both have ended."""
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        ways = [asyncio.create_task(self._one_way(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            far_writer.close()

    async def _one_way(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        held: asyncio.Queue[Held] = asyncio.Queue()
        delivering = asyncio.create_task(_deliver(held, sink))
        loop = asyncio.get_running_loop()
        try:
            while data := await _read(source):
                held.put_nowait(Held(loop.time() + self._one_way_s, data))
            held.put_nowait(Held(loop.time() + self._one_way_s, b""))
            await delivering
        finally:
            delivering.cancel()


async def _deliver(held: asyncio.Queue[Held], sink: asyncio.StreamWriter) -> None:
    """What is held, each when it is due; then the end."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while True:
            due_s, data = await held.get()
            await asyncio.sleep(due_s - loop.time())
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


async def _read(source: asyncio.StreamReader) -> bytes:
    """What has come; b"" where nothing will any more."""
    try:
        return await source.read(CHUNK_BYTES)
    except ConnectionError:
        return b""


async def run(wires: dict[int, str], one_way_s: float) -> None:
    """Serve until a signal."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    serving = [(Wire(target, one_way_s), port) for port, target in wires.items()]
    for wire, port in serving:
        await wire.start(port)
    await over.wait()
    for wire, _ in serving:
        await wire.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-way-ms", type=float, required=True, metavar="MS")
    parser.add_argument("wires", nargs="+", metavar="PORT=ADDRESS")
    options = parser.parse_args(arguments)
    wires = {}
    for wire in options.wires:
        port, _, target = wire.partition("=")
        if not port.isdigit() or ":" not in target:
            parser.error(f"{wire!r} is no wire; write PORT=HOST:PORT, such as 50061=127.0.0.1:50052")
        wires[int(port)] = target
    asyncio.run(run(wires, options.one_way_ms / 1e3))


if __name__ == "__main__":
    main()
