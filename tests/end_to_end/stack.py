"""The three real services, and a client, in one process and talking over loopback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.policy import Policy
from coordinator.service import SERVICE as COORDINATOR
from coordinator.service import CoordinatorService
from coordinator.settings import CoordinatorSettings
from drafter.service import SERVICE as DRAFTER
from drafter.service import DrafterService
from drafter.settings import DrafterSettings
from pilotfish import AsyncClient
from pilotfish.client import Completion
from pilotfish.messages import Speculation
from pilotfish.server import Server
from pilotfish.telemetry import Telemetry
from pilotfish.tokenizer import load_tokenizer
from pilotfish.v1 import coordinator_pb2_grpc, drafter_pb2_grpc, verifier_pb2_grpc
from tests.end_to_end.proxy import Proxy
from verifier.service import SERVICE as VERIFIER
from verifier.service import VerifierService
from verifier.settings import VerifierSettings


def write_table(path: Path, **content: Any) -> str:
    """A table model's file; what to give as the model."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"table:{path}"


class RealStack:
    """Starts verifier, drafter and coordinator with `async with`."""

    def __init__(
        self,
        target: str,
        draft: str | None = None,
        *,
        speculators: Sequence[str] = (),
        policy: Policy | None = None,
        telemetry: Telemetry | None = None,
        verifier: dict[str, Any] | None = None,
        coordinator: dict[str, Any] | None = None,
    ) -> None:
        """Make one that is not started.

        Args:
            target: model of the verifier.
            draft: model of the drafter; None: it has none, and copies.
            verifier: further settings of the verifier.
            coordinator: further settings of the coordinator.
        """
        self._verifier_settings = VerifierSettings(model=target, port=0, **(verifier or {}))
        self._drafter_settings = DrafterSettings(model=draft, port=0, speculators=tuple(speculators))
        patient = {"draft_deadline_ms": 5_000.0, "patience_ms": 10_000.0}  # a busy machine makes no draft late
        self._coordinator_settings: dict[str, Any] = {"model": target, "port": 0} | patient | (coordinator or {})
        self._policy = policy
        self._telemetry = telemetry
        self._exits = AsyncExitStack()
        self.client: AsyncClient
        self.coordinator: CoordinatorService
        self.verifier: VerifierService
        self.drafter: DrafterService
        self.to_verifier: Proxy
        self.to_drafter: Proxy

    async def __aenter__(self) -> Self:
        self.verifier = VerifierService(self._verifier_settings, telemetry=self._telemetry)
        verifier = await self._serve(VERIFIER, self.verifier, verifier_pb2_grpc.add_VerifierServicer_to_server)
        self.drafter = DrafterService(self._drafter_settings)
        drafter = await self._serve(DRAFTER, self.drafter, drafter_pb2_grpc.add_DrafterServicer_to_server)
        self.to_verifier, self.to_drafter = await self._wire(verifier), await self._wire(drafter)
        settings = CoordinatorSettings(
            verifiers=(self.to_verifier.address,), drafters=(self.to_drafter.address,), **self._coordinator_settings
        )
        self.coordinator = CoordinatorService(
            settings, load_tokenizer(settings.model), policy=self._policy, telemetry=self._telemetry
        )
        address = await self._serve(
            COORDINATOR, self.coordinator, coordinator_pb2_grpc.add_CoordinatorServicer_to_server
        )
        roster = self.coordinator.roster
        assert await roster.wait_until(lambda: roster.num_drafters_up == 1, 10.0)
        self.client = await self._exits.enter_async_context(AsyncClient(address))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def _serve(self, name: str, service: Any, add: Any) -> str:
        server = Server(name, "127.0.0.1", 0)
        add(service, server.grpc)
        await server.start()
        self._exits.push_async_callback(server.stop, 5.0, service.stop)
        await service.start()
        await server.set_ready(True)
        return server.address

    async def _wire(self, address: str) -> Proxy:
        proxy = Proxy(address)
        await proxy.start()
        self._exits.push_async_callback(proxy.stop)
        return proxy

    @property
    def num_sessions(self) -> int:
        """Open at the verifier and the drafter, as they say themselves."""
        return len(self.verifier.engine.sessions) + self.drafter.drafter.load.num_sessions

    async def complete(self, prompt: Any, *, gamma: int | None = None, **options: Any) -> Completion:
        """A whole answer; γ 0 is speculation off."""
        if gamma is not None:
            options["speculation"] = Speculation(gamma=gamma) if gamma else Speculation(is_off=True)
        return await self.client.complete(prompt, **options)
