"""What an empty call costs here: a byte string there and back on a standing gRPC stream between two processes.

Nothing of ours is in it but the event loop; a round with a draft makes two such trips, a plain one half of one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from pilotfish.cli.processes import free_port
from pilotfish.server import run_process

METHOD = "/Echo/Echo"
PAYLOAD = bytes(200)
NUM_TRIPS = 200
NUM_FIRST = 20  # that are left out


def round_trip_ms(idle_ms: float) -> float:
    """Median of a trip there and back, each after standing still for `idle_ms`."""
    context = multiprocessing.get_context("spawn")
    port, found = free_port(), context.SimpleQueue()
    server = context.Process(target=_serve, args=(port,), daemon=True)
    client = context.Process(target=_measure, args=(port, idle_ms, found), daemon=True)
    server.start()
    client.start()
    median: float = found.get()
    client.join()
    server.kill()
    server.join()
    return median


def _serve(port: int) -> None:
    async def serve() -> None:
        server = grpc.aio.server()
        method = grpc.stream_stream_rpc_method_handler(_echo, _same, _same)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", {"Echo": method}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    run_process(serve())


async def _echo(payloads: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for payload in payloads:
        yield payload


def _same(payload: bytes) -> bytes:
    return payload


def _measure(port: int, idle_ms: float, found: Any) -> None:
    async def measure() -> None:
        channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        async with channel:
            await channel.channel_ready()
            call = channel.stream_stream(METHOD, _same, _same)()

            async def trip() -> None:
                await call.write(PAYLOAD)
                await call.read()

            took = [await _timed(trip, idle_ms / 1e3) for _ in range(NUM_TRIPS)]
            found.put(1e3 * statistics.median(took[NUM_FIRST:]))
            call.cancel()

    run_process(measure())


async def _timed(trip: Callable[[], Awaitable[None]], idle_s: float) -> float:
    if idle_s:
        await asyncio.sleep(idle_s)
    began = time.perf_counter()
    await trip()
    return time.perf_counter() - began
