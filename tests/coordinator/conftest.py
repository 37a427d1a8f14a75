"""A coordinator among fake peers, and what tests ask it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from coordinator.policy import Policy
from coordinator.service import SERVICE, CoordinatorService
from coordinator.settings import CoordinatorSettings
from pilotfish import AsyncClient, tablefile
from pilotfish.client import Completion
from pilotfish.messages import Chunk, Speculation
from pilotfish.server import Server
from pilotfish.telemetry import Telemetry
from pilotfish.tokenizer import TableTokenizer
from pilotfish.v1 import coordinator_pb2_grpc
from tests.coordinator.fakes import FakeDrafter, FakeVerifier, Law, Proposer, right_for, scripted, until

VOCABULARY = [*"abcdefghijklmnopqrstuvwxyz", " ", "END", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<end>"]
END = len(VOCABULARY) - 1
TOKENIZER = TableTokenizer(
    tablefile.parse({"vocabulary": VOCABULARY, "end_ids": [END], "script": [0]}, default_name="letters")
)


def ids(text: str) -> list[int]:
    """The ids of some letters."""
    return TOKENIZER.encode(text)


class Stack:
    """A coordinator, its fake peers and a client, all in this process and talking over loopback."""

    def __init__(self, service: CoordinatorService, server: Server, client: AsyncClient) -> None:
        self.service = service
        self.server = server
        self.client = client

    def generate(self, prompt: Any = "abc", *, gamma: int | None = None, **options: Any) -> AsyncGenerator[Chunk, None]:
        """Greedy and 20 tokens long where the test does not say otherwise; γ 0 is speculation off."""
        options = {"temperature": 0.0, "max_tokens": 20} | options
        if gamma is not None:
            options["speculation"] = Speculation(gamma=gamma) if gamma else Speculation(is_off=True)
        return self.client.generate(prompt, **options)

    async def complete(self, prompt: Any = "abc", **options: Any) -> Completion:
        return Completion.of(await self.chunks(prompt, **options))

    async def chunks(self, prompt: Any = "abc", **options: Any) -> list[Chunk]:
        return [chunk async for chunk in self.generate(prompt, **options)]


class Start:
    """Starts peers and coordinators, and ends them with the test."""

    def __init__(self, exits: AsyncExitStack) -> None:
        self._exits = exits

    async def verifier(self, law: Law | None = None, **info: Any) -> FakeVerifier:
        verifier = FakeVerifier(law or scripted(ids("hello world ")), TOKENIZER.vocabulary_hash, **info)
        await verifier.start()
        self._exits.push_async_callback(verifier.kill)
        return verifier

    async def drafter(self, propose: Proposer | None = None, **info: Any) -> FakeDrafter:
        propose = propose or right_for(1000, scripted(ids("hello world ")), len(VOCABULARY))
        drafter = FakeDrafter(propose, **({"vocabulary_hash": TOKENIZER.vocabulary_hash} | info))
        await drafter.start()
        self._exits.push_async_callback(drafter.kill)
        return drafter

    async def coordinator(
        self,
        verifiers: Sequence[FakeVerifier],
        drafters: Sequence[FakeDrafter] = (),
        *,
        policy: Policy | None = None,
        telemetry: Telemetry | None = None,
        is_waiting: bool = True,
        **settings: Any,
    ) -> Stack:
        """A coordinator that has found its peers.

        Args:
            is_waiting: whether to return only when all the peers are up.
        """
        values = {
            "model": "letters",
            "verifiers": tuple(verifier.address for verifier in verifiers),
            "drafters": tuple(drafter.address for drafter in drafters),
            "port": 0,
            "patience_ms": 10_000.0,  # so that a busy machine makes no draft late
            "failover_s": 5.0,
        }
        service = CoordinatorService(
            CoordinatorSettings(**(values | settings)), TOKENIZER, policy=policy, telemetry=telemetry
        )
        server = Server(SERVICE, "127.0.0.1", 0)
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server.grpc)
        await server.start()
        self._exits.push_async_callback(server.stop, 5.0, service.stop)
        client = AsyncClient(server.address, attempts=1)
        self._exits.push_async_callback(client.close)
        if is_waiting:
            await service.start()
            await until(lambda: all(peer.is_up for peer in service.roster.describe()))
        return Stack(service, server, client)

    async def stack(self, law: Law | None = None, propose: Proposer | None = None, **settings: Any) -> Stack:
        """A coordinator with one verifier and one drafter."""
        law = law or scripted(ids("hello world "))
        verifier = await self.verifier(law)
        drafter = await self.drafter(propose or right_for(1000, law, len(VOCABULARY)))
        return await self.coordinator([verifier], [drafter], **settings)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts what a test needs; all of it ends with the test."""
    async with AsyncExitStack() as exits:
        yield Start(exits)
