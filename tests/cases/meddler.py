"""A man in the middle: passes frames on between a coordinator and a peer, and does to them what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from pilotfish.rpc import channel, server_options
from pilotfish.v1 import drafter_pb2_grpc, verifier_pb2_grpc

Meddle: TypeAlias = Callable[[Any], Sequence[Any]]
"""What is passed on for a frame."""


class Cut(Exception):  # noqa: N818 - no error: what a test wants
    """Raised by a `Meddle`: the stream breaks here, and the frame is lost."""


def honest(frame: Any) -> Sequence[Any]:
    """Nothing is done."""
    return [frame]


class Meddler(verifier_pb2_grpc.VerifierServicer, drafter_pb2_grpc.DrafterServicer):
    """Stands for the peer at `target`. Streams go through it, each over a stream of its own to the peer."""

    def __init__(self, target: str) -> None:
        self.to_peer: Meddle = honest
        self.from_peer: Meddle = honest
        self.num_streams = 0
        self.num_frames = 0  # from the peer
        self.address = ""
        self._channel = channel(target)
        self._server = grpc.aio.server(options=server_options())
        self._calls: set[Any] = set()

    async def start(self) -> None:
        verifier_pb2_grpc.add_VerifierServicer_to_server(self, self._server)
        drafter_pb2_grpc.add_DrafterServicer_to_server(self, self._server)
        health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        for service in ("pilotfish.v1.Verifier", "pilotfish.v1.Drafter"):
            await health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        self.cut()
        await self._server.stop(None)
        await self._channel.close(None)

    def cut(self) -> None:
        """Break every stream, here and there."""
        for call in self._calls:
            call.cancel()

    async def Verify(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        stub: Any = verifier_pb2_grpc.VerifierStub(self._channel)
        async for frame in self._through(stub.Verify, request_iterator, context):
            yield frame

    async def Draft(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        stub: Any = drafter_pb2_grpc.DrafterStub(self._channel)
        async for frame in self._through(stub.Draft, request_iterator, context):
            yield frame

    async def Info(self, request: Any, context: Any) -> Any:  # noqa: N802
        stub: Any = (
            verifier_pb2_grpc.VerifierStub(self._channel)
            if type(request).__name__.startswith("Verifier")
            else drafter_pb2_grpc.DrafterStub(self._channel)
        )
        return await stub.Info(request)

    async def _through(self, method: Any, frames: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.num_streams += 1
        metadata = [(key, value) for key, value in context.invocation_metadata() if key.startswith("pilotfish")]

        async def meddled() -> AsyncIterator[Any]:
            with suppress(Cut):
                async for frame in frames:
                    for each in self.to_peer(frame):
                        yield each
            call.cancel()

        call = method(meddled(), metadata=metadata)
        self._calls.add(call)
        try:
            async for frame in call:
                self.num_frames += 1
                for each in self.from_peer(frame):
                    yield each
        except (Cut, asyncio.CancelledError):
            pass
        finally:
            self._calls.discard(call)
            call.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
