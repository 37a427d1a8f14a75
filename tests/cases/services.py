"""The three services in this process, over loopback: what a client sees is what is tested."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.policy import Policy
from coordinator.service import SERVICE as COORDINATOR
from coordinator.service import CoordinatorService, keep_ready
from coordinator.settings import CoordinatorSettings
from drafter.service import SERVICE as DRAFTER
from drafter.service import DrafterService
from drafter.settings import DrafterSettings
from pilotfish import AsyncClient
from pilotfish.client import Completion
from pilotfish.messages import Chunk, Rule, Speculation
from pilotfish.metrics import Role
from pilotfish.server import Server
from pilotfish.tablefile import TableFile
from pilotfish.telemetry import Telemetry
from pilotfish.tokenizer import load_tokenizer
from pilotfish.tracing import Tracer
from pilotfish.v1 import coordinator_pb2_grpc, drafter_pb2_grpc, verifier_pb2_grpc
from verifier.service import SERVICE as VERIFIER
from verifier.service import VerifierService
from verifier.settings import VerifierSettings
from verifier.target import Target

GAMMAS = (0, 1, 2, 3, 5, 8)
LETTERS = tuple("abcdefghijklmnop")

Tracing: TypeAlias = Callable[[Role], Tracer]
"""Makes the tracer of a service."""

RANDOM: Mapping[str, Any] = {"vocabulary": LETTERS, "random": {"seed": 3, "order": 2, "sharpness": 1.5}}
"""A law of which every token depends on the two before it, and no text ever ends."""


def script(ids: Sequence[int], vocabulary: Sequence[str] = LETTERS, **keys: Any) -> dict[str, Any]:
    """A table whose greedy continuation is given."""
    return {"vocabulary": list(vocabulary), "script": {"ids": list(ids), "probability": 0.9}, **keys}


def greedy(table: TableFile, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """The table's own greedy continuation."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        law = table.probabilities(tokens, len(prompt))
        tokens.append(law.index(max(law)))
    return tuple(tokens[len(prompt) :])


def drafts(name: str, gamma: int | None = None, rule: Rule | None = None) -> Speculation:
    """Have `gamma` tokens drafted a round by a speculator of `tests.drafters`; 0: plain decoding."""
    if gamma == 0:
        return Speculation(is_off=True)
    return Speculation(gamma=gamma, rule=rule, speculator=f"tests.drafters:{name}")


async def until(claim: Callable[[], bool]) -> None:
    """Let the event loop run until something holds; the test's own time limit is the only one."""
    while not claim():  # noqa: ASYNC110 - what is waited for happens in services that know nothing of a test
        await asyncio.sleep(0.001)


@dataclass(slots=True)
class Verifier:
    """A verifier at work."""

    service: VerifierService
    server: Server
    telemetry: Telemetry

    @property
    def num_sessions(self) -> int:
        return len(self.service.engine.sessions)


@dataclass(slots=True)
class Drafter:
    """A drafter at work."""

    service: DrafterService
    server: Server
    telemetry: Telemetry

    @property
    def num_sessions(self) -> int:
        return self.service.drafter.load.num_sessions


@dataclass(slots=True)
class Coordinator:
    """A coordinator at work, and a client of it."""

    service: CoordinatorService
    server: Server
    telemetry: Telemetry
    client: AsyncClient


@dataclass(slots=True)
class Services:
    """One of each, and what tests ask them."""

    table: TableFile
    verifier: Verifier
    drafter: Drafter
    coordinator: Coordinator
    exits: AsyncExitStack = field(repr=False)

    @property
    def client(self) -> AsyncClient:
        return self.coordinator.client

    def generate(self, prompt: Any = "abc", **options: Any) -> AsyncGenerator[Chunk, None]:
        """Greedy and 20 tokens long where the test does not say otherwise."""
        return self.client.generate(prompt, **({"temperature": 0.0, "max_tokens": 20} | options))

    async def complete(self, prompt: Any = "abc", **options: Any) -> Completion:
        return Completion.of([chunk async for chunk in self.generate(prompt, **options)])

    async def plain(self, prompt: Any = "abc", **options: Any) -> Completion:
        """The same with speculation off."""
        return await self.complete(prompt, **(options | {"speculation": Speculation(is_off=True)}))

    def greedy(self, prompt: str | Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """What the table says, without any service."""
        ids = self.table.encode(prompt) if isinstance(prompt, str) else prompt
        return greedy(self.table, ids, num_tokens)

    async def until_idle(self) -> None:
        """Both sides have freed every session."""
        await until(lambda: self.verifier.num_sessions == 0 and self.drafter.num_sessions == 0)


class Start:
    """Starts services on free ports and ends them in order."""

    def __init__(self, exits: AsyncExitStack, table: Path, trace: Tracing | None = None) -> None:
        self.exits = exits
        self.table = table
        self._trace = trace

    def _telemetry(self, role: Role) -> Telemetry:
        return Telemetry(role, self._trace(role) if self._trace else None)

    async def verifier(self, load: Callable[[VerifierSettings], Target] | None = None, **settings: Any) -> Verifier:
        telemetry = self._telemetry("verifier")
        chosen = VerifierSettings(**{"model": f"table:{self.table}", "port": 0, "start_wait_ms": 0.5} | settings)
        service = VerifierService(chosen, telemetry, load or Target.load)
        server = Server(VERIFIER, "127.0.0.1", 0)
        verifier_pb2_grpc.add_VerifierServicer_to_server(service, server.grpc)
        await server.start()
        self.exits.push_async_callback(server.stop, 0.0)
        self.exits.push_async_callback(service.stop)
        await service.start()
        await server.set_ready(True)
        return Verifier(service, server, telemetry)

    async def drafter(
        self, speculators: Sequence[str] = ("Perfect", "Adverse", "Noise", "Part", "Fork"), **settings: Any
    ) -> Drafter:
        telemetry = self._telemetry("drafter")
        names = tuple(name if name.islower() else f"tests.drafters:{name}" for name in speculators)
        options = (f"table={self.table}", *settings.pop("options", ()))
        service = DrafterService(
            DrafterSettings(**{"port": 0, "speculators": names, "options": options} | settings), telemetry=telemetry
        )
        server = Server(DRAFTER, "127.0.0.1", 0)
        drafter_pb2_grpc.add_DrafterServicer_to_server(service, server.grpc)
        await server.start()
        self.exits.push_async_callback(server.stop, 0.0)
        self.exits.push_async_callback(service.stop)
        await service.start()
        await server.set_ready(True)
        return Drafter(service, server, telemetry)

    async def coordinator(
        self, verifiers: Sequence[str], drafters: Sequence[str], *, policy: Policy | None = None, **settings: Any
    ) -> Coordinator:
        """A coordinator that has reached its verifiers and drafters."""
        telemetry = self._telemetry("coordinator")
        patient = {"draft_deadline_ms": 20_000.0, "patience_ms": 30_000.0}  # a busy machine is no fault
        chosen = CoordinatorSettings(
            **{"model": f"table:{self.table}", "port": 0, "verifiers": verifiers, "drafters": drafters}
            | patient
            | settings
        )
        service = CoordinatorService(chosen, load_tokenizer(chosen.model), policy=policy, telemetry=telemetry)
        server = Server(COORDINATOR, "127.0.0.1", 0)
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server.grpc)
        await server.start()
        self.exits.push_async_callback(server.stop, 5.0, service.stop)
        await service.start()
        readiness = asyncio.create_task(keep_ready(server, service))
        self.exits.callback(readiness.cancel)
        client = AsyncClient(server.address)
        self.exits.push_async_callback(client.close)
        return Coordinator(service, server, telemetry, client)


@asynccontextmanager
async def start(folder: Path, table: Mapping[str, Any], trace: Tracing | None = None) -> AsyncIterator[Start]:
    """Services of one table, which end with the block."""
    path = folder / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    async with AsyncExitStack() as exits:
        yield Start(exits, path, trace)


@asynccontextmanager
async def serve(
    folder: Path,
    table: Mapping[str, Any] = RANDOM,
    *,
    speculators: Sequence[str] = ("Perfect", "Adverse", "Noise", "Part", "Fork"),
    options: Sequence[str] = (),
    verifier: Mapping[str, Any] | None = None,
    drafter: Mapping[str, Any] | None = None,
    coordinator: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    trace: Tracing | None = None,
) -> AsyncIterator[Services]:
    """One of each. At the end nothing may be left of any request: no session, no page of KV."""
    async with start(folder, table, trace) as starts:
        deciding = await starts.verifier(**(verifier or {}))
        proposing = await starts.drafter(speculators or ["ngram"], options=options, **(drafter or {}))
        coordinating = await starts.coordinator(
            [deciding.server.address],
            [proposing.server.address] if speculators else [],  # without any, nobody knows of the drafter
            policy=policy,
            **(coordinator or {}),
        )
        services = Services(TableFile.load(starts.table), deciding, proposing, coordinating, starts.exits)
        await until(lambda: all(peer.is_up for peer in coordinating.service.roster.describe()))
        yield services
        await until(lambda: coordinating.service.num_running == 0)
        await services.until_idle()
        pool = deciding.service.engine.pool
        pool.check()
        assert pool.num_used_pages == 0
