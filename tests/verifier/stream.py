"""A verifier's service in this process, and a coordinator's end of one stream to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from pilotfish.draft import Draft
from pilotfish.messages import Open, Opened, Refusal, Rule, Sampling, ServiceInfo, Verdict, Work
from pilotfish.prefix import extend
from pilotfish.rpc import channel
from pilotfish.server import Server
from pilotfish.tablefile import TableFile
from pilotfish.telemetry import Telemetry
from pilotfish.v1 import verifier_pb2, verifier_pb2_grpc
from pilotfish.wire import verifier as wire
from pilotfish.wire.values import Limits, read_info
from verifier.service import SERVICE, VerifierService
from verifier.settings import VerifierSettings
from verifier.target import Target

Answer = TypeVar("Answer", Opened, Verdict, Refusal)
PATIENCE_S = 20.0  # of a test, before it gives up


def table_file(directory: Path, content: dict[str, Any]) -> str:
    """Write a table model of 16 ids; the model argument that names it."""
    path = directory / "table.json"
    path.write_text(json.dumps({"vocabulary": [chr(97 + i) for i in range(16)], **content}))
    return f"table:{path}"


class Stream:
    """Sends values in frames, and hands out the answers one by one."""

    def __init__(self, stub: Any, incarnation: int, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.incarnation = incarnation
        self.load = verifier_pb2.VerifierLoad()
        self._outgoing: asyncio.Queue[verifier_pb2.VerifyRequest] = asyncio.Queue()
        self._answers: asyncio.Queue[wire.FromVerifier] = asyncio.Queue()
        self._call = stub.Verify(self._frames(), metadata=metadata)
        self._reader = asyncio.create_task(self._read())

    def send(self, *messages: wire.ToVerifier) -> None:
        """Send the items of all messages in one frame."""
        self.send_items([item for message in messages for item in wire.write_items(message)])

    def send_items(self, items: Sequence[verifier_pb2.VerifyItem]) -> None:
        self._outgoing.put_nowait(verifier_pb2.VerifyRequest(items=items))

    async def answer(self, kind: type[Answer]) -> Answer:
        """The next answer, which must be of this kind."""
        answer = await asyncio.wait_for(self._answers.get(), PATIENCE_S)
        assert isinstance(answer, kind), answer
        return answer

    async def cut(self) -> None:
        """Break the stream."""
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def ended(self) -> None:
        """Wait until the other side has ended the stream."""
        await asyncio.wait_for(asyncio.gather(self._reader, return_exceptions=True), PATIENCE_S)

    async def _frames(self) -> AsyncIterator[verifier_pb2.VerifyRequest]:
        while True:
            yield await self._outgoing.get()

    async def _read(self) -> None:
        async for frame in self._call:
            self.load = frame.load
            for answer in wire.read_answers(frame, Limits(), self.incarnation):
                if answer.value is not None:
                    self._answers.put_nowait(answer.value)


class Verifier:
    """A running verifier."""

    def __init__(self, service: VerifierService, server: Server, to: grpc.aio.Channel, info: ServiceInfo) -> None:
        self.service = service
        self.server = server
        self.channel = to
        self.info = info
        self.stub: Any = verifier_pb2_grpc.VerifierStub(to)
        self._streams: list[Stream] = []

    def stream(self, metadata: Sequence[tuple[str, str]] = ()) -> Stream:
        stream = Stream(self.stub, self.info.incarnation, metadata)
        self._streams.append(stream)
        return stream

    async def cut_all(self) -> None:
        for stream in self._streams:
            await stream.cut()


@asynccontextmanager
async def verifier(
    model: str,
    *,
    telemetry: Telemetry | None = None,
    load: Callable[[VerifierSettings], Target] = Target.load,
    **settings: Any,
) -> AsyncIterator[Verifier]:
    """Run a verifier as long as the block lasts."""
    service = VerifierService(VerifierSettings(model=model, **{"start_wait_ms": 0.0, **settings}), telemetry, load)
    server = Server(SERVICE, "127.0.0.1", 0)
    verifier_pb2_grpc.add_VerifierServicer_to_server(service, server.grpc)
    await server.start()
    to = channel(server.address)
    try:
        await service.start()
        await server.set_ready(True)
        stub: Any = verifier_pb2_grpc.VerifierStub(to)
        info = read_info("verifier", (await stub.Info(verifier_pb2.VerifierInfoRequest())).peer)
        running = Verifier(service, server, to, info)
        yield running
        await running.cut_all()
    finally:
        await to.close(None)
        await service.stop()
        await server.stop(0.0)


class Caller:
    """One session over a stream, played by the book: it waits for each verdict before it sends the next item."""

    def __init__(self, stream: Stream, info: ServiceInfo, prompt: Sequence[int], number: int = 1, **keys: Any) -> None:
        self.stream = stream
        self.num_prompt = len(prompt)
        values: dict[str, Any] = {
            "session": number.to_bytes(16, "big"),
            "incarnation": info.incarnation,
            "vocabulary_hash": info.vocabulary_hash,
            "prompt": tuple(prompt),
            "output_so_far": (),
            "sampling": Sampling(temperature=0.0),
            "seed": 7,
            "rule": Rule.MATCH,
            "end_ids": frozenset(),
            "max_tokens": 10_000,
            "lease_s": 60.0,
        }
        self.opened = Open(**(values | keys))
        self.tokens = list(self.opened.tokens)
        self.verdicts: list[Verdict] = []
        self.round = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    async def open(self) -> Opened:
        self.stream.send(self.opened)
        return await self.stream.answer(Opened)

    def work(self, draft: Draft | Sequence[int] = (), **keys: Any) -> Work:
        """The next round's item."""
        chain = draft if isinstance(draft, Draft) else Draft.chain(tuple(draft))
        values: dict[str, Any] = {
            "session": self.opened.session,
            "incarnation": self.opened.incarnation,
            "position": len(self.tokens),
            "prefix_hash": extend(0, self.tokens),
            "round": self.round,
            "draft": chain,
            "first_node": 0,
            "is_complete": True,
            "grant": 0,
            "patience_us": 0,
        }
        self.round += 1
        return Work(**(values | keys))

    async def hear(self) -> Verdict:
        """The next verdict, which goes on where the last one ended."""
        verdict = await self.stream.answer(Verdict)
        assert verdict.position == len(self.tokens)
        self.tokens += verdict.tokens
        self.verdicts.append(verdict)
        return verdict

    async def verify(self, draft: Draft | Sequence[int], **keys: Any) -> Verdict:
        self.stream.send(self.work(draft, **keys))
        return await self.hear()

    async def run_free(self, num_tokens: int) -> None:
        self.stream.send(self.work(grant=num_tokens))
        for _ in range(num_tokens):
            await self.hear()


def greedy(model: str, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The table's own greedy continuation."""
    table = TableFile.load(model.removeprefix("table:"))
    tokens = list(prompt)
    for _ in range(num_tokens):
        law = table.probabilities(tokens, len(prompt))
        tokens.append(max(range(len(law)), key=lambda token: (law[token], -token)))
    return tokens[len(prompt) :]
