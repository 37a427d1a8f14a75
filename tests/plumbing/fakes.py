"""Services that do what a test tells them, behind real servers on loopback."""

# ruff: noqa: N802 - the methods have the names that the protos give them

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc.aio

from pilotfish.errors import PilotfishError
from pilotfish.messages import Chunk, CoordinatorInfo, Open, Opened, Refusal, Request, ServiceInfo, VerifierLoad, Work
from pilotfish.rpc import FrameQueue, Streams
from pilotfish.server import Server
from pilotfish.v1 import coordinator_pb2, coordinator_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from pilotfish.wire import coordinator as wire_coordinator
from pilotfish.wire import verifier as wire_verifier
from pilotfish.wire.values import Limits, write_info


class FakeCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Answers with what `script` yields for a request."""

    def __init__(self, script: Callable[[Request], AsyncIterator[Chunk]]) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.metadata: dict[str, Any] = {}  # of the last request
        self.began = asyncio.Event()  # a request has come
        self.ended = asyncio.Event()  # the last answer came to its end, or was cancelled
        self.server = Server("pilotfish.v1.Coordinator", "127.0.0.1", 0)
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(self, self.server.grpc)

    @property
    def address(self) -> str:
        return self.server.address

    async def __aenter__(self) -> Self:
        await self.server.start()
        await self.server.set_ready(True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        value = wire_coordinator.read_request(request, max_gamma=8)
        self.requests.append(value)
        self.metadata = dict(context.invocation_metadata())
        self.ended.clear()
        self.began.set()
        try:
            async for chunk in self.script(value):
                yield wire_coordinator.write_chunk(chunk)
        finally:
            self.ended.set()

    async def Info(self, request: Any, context: Any) -> coordinator_pb2.CoordinatorInfoResponse:
        return wire_coordinator.write_info(CoordinatorInfo("1.2.3", "toy", 2048, 8))


class FakeVerifier(verifier_pb2_grpc.VerifierServicer):
    """Opens every session and answers every work with what `answer` says."""

    def __init__(self, answer: Callable[[Work], Any], *, incarnation: int = 1, port: int = 0) -> None:
        self.answer = answer
        self.incarnation = incarnation
        self.streams = Streams()
        self.read: list[Open | Work | Any] = []
        self.server = Server("pilotfish.v1.Verifier", "127.0.0.1", port)
        verifier_pb2_grpc.add_VerifierServicer_to_server(self, self.server.grpc)

    @property
    def address(self) -> str:
        return self.server.address

    async def start(self) -> None:
        await self.server.start()
        await self.server.set_ready(True)

    async def stop(self) -> None:
        async def drain() -> None:
            self.streams.close()

        await self.server.stop(1.0, drain)

    async def kill(self) -> None:
        await self.server.grpc.stop(0)

    async def Info(self, request: Any, context: Any) -> verifier_pb2.VerifierInfoResponse:
        info = ServiceInfo("verifier", "1.2.3", self.incarnation, "toy", None, 50, 100)
        return verifier_pb2.VerifierInfoResponse(peer=write_info(info))

    async def Verify(self, frames: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        queue: FrameQueue[verifier_pb2.VerifyAnswer] = FrameQueue()
        inbox = wire_verifier.VerifierInbox(Limits(50), self.incarnation)

        def take(frame: verifier_pb2.VerifyRequest) -> None:
            for value, _ in inbox.read(frame):
                self.read.append(value)
                match value:
                    case Open():
                        queue.put(
                            wire_verifier.write_answer(Opened(value.session, len(value.tokens)), self.incarnation)
                        )
                    case Work():
                        queue.put(wire_verifier.write_answer(self.answer(value), self.incarnation))
                    case Refusal():
                        queue.put(wire_verifier.write_answer(value, self.incarnation))

        async for items in self.streams.exchange(frames, take, queue):
            yield wire_verifier.write_frame(items, VerifierLoad(pass_us=5))


async def raising(error: PilotfishError, *chunks: Chunk) -> AsyncIterator[Chunk]:
    """Some chunks, then an error."""
    for chunk in chunks:
        yield chunk
    raise error
