"""A drafter's service in this process, and a coordinator's end of one stream to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from drafter.service import SERVICE, DrafterService
from drafter.settings import DrafterSettings
from pilotfish.draft import Draft
from pilotfish.messages import DraftPart, DraftRequest, Open, Opened, Refusal
from pilotfish.rpc import channel
from pilotfish.server import Server
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc
from pilotfish.wire import drafter as wire
from pilotfish.wire.values import Limits

Answer = TypeVar("Answer", DraftPart, Opened, Refusal)


class Stream:
    """Sends values in frames, and hands out the answers one by one."""

    def __init__(self, stub: drafter_pb2_grpc.DrafterStub, incarnation: int) -> None:
        self.incarnation = incarnation
        self.load = drafter_pb2.DrafterLoad()
        self.num_unreadable = 0  # answers of which no session could be told
        self._outgoing: asyncio.Queue[drafter_pb2.DraftRequest | None] = asyncio.Queue()
        self._answers: asyncio.Queue[wire.FromDrafter] = asyncio.Queue()
        self._call = stub.Draft(self._frames())
        self._reader = asyncio.create_task(self._read())

    def send(self, *messages: wire.ToDrafter) -> None:
        """Send the items of all messages in one frame."""
        items = [item for message in messages for item in wire.write_items(message)]
        self.send_items(items)

    def send_items(self, items: Sequence[drafter_pb2.DraftItem]) -> None:
        self._outgoing.put_nowait(drafter_pb2.DraftRequest(items=items))

    async def answer(self, kind: type[Answer]) -> Answer:
        """The next answer, which must be of this kind."""
        answer = await asyncio.wait_for(self._answers.get(), 20)
        assert isinstance(answer, kind), answer
        return answer

    async def draft(self) -> tuple[Draft, DraftPart]:
        """The next whole draft, put together from its parts, and its last part."""
        draft = Draft.EMPTY
        while True:
            part = await self.answer(DraftPart)
            assert part.first_node == len(draft)
            draft = draft.append(part.draft)
            if part.is_complete:
                return draft, part

    async def open(self, start: Open) -> Opened:
        self.send(start)
        return await self.answer(Opened)

    async def propose(self, request: DraftRequest) -> tuple[Draft, DraftPart]:
        self.send(request)
        return await self.draft()

    async def close(self) -> None:
        self._outgoing.put_nowait(None)
        await self._reader

    async def _frames(self) -> AsyncIterator[drafter_pb2.DraftRequest]:
        while (frame := await self._outgoing.get()) is not None:
            yield frame

    async def _read(self) -> None:
        async for frame in self._call:
            self.load = frame.load
            for received in wire.read_answers(frame, Limits(), self.incarnation):
                if received.value is None:
                    self.num_unreadable += 1
                else:
                    self._answers.put_nowait(received.value)


class Served:
    """A drafter that listens on loopback."""

    def __init__(self, service: DrafterService, stub: drafter_pb2_grpc.DrafterStub) -> None:
        self.service = service
        self.stub = stub

    @property
    def incarnation(self) -> int:
        return self.service.incarnation

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        stream = Stream(self.stub, self.incarnation)
        try:
            yield stream
        finally:
            await stream.close()


@asynccontextmanager
async def served(settings: DrafterSettings) -> AsyncIterator[Served]:
    """Serve a drafter with these settings."""
    async with listening(DrafterService(settings)) as drafter:
        await drafter.service.start()
        yield drafter


@asynccontextmanager
async def listening(service: DrafterService) -> AsyncIterator[Served]:
    """A service that listens and is not started."""
    server = Server(SERVICE, "127.0.0.1", 0)
    drafter_pb2_grpc.add_DrafterServicer_to_server(service, server.grpc)
    await server.start()
    try:
        async with channel(server.address) as grpc_channel:
            yield Served(service, drafter_pb2_grpc.DrafterStub(grpc_channel))
    finally:
        await server.stop(2.0, service.stop)
