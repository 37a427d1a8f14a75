"""The drafter's gRPC service."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from drafter.drafter import Drafter
from drafter.rounds import Clock
from drafter.settings import DrafterSettings
from drafter.speculators import Speculator, registry
from pilotfish.errors import Overloaded, Unavailable
from pilotfish.messages import ServiceInfo
from pilotfish.rpc import FrameQueue, Streams
from pilotfish.server import Server, serve
from pilotfish.telemetry import Telemetry
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc
from pilotfish.wire.drafter import DrafterInbox, FromDrafter, write_answer, write_frame
from pilotfish.wire.values import Limits, write_info

if TYPE_CHECKING:
    import grpc.aio

logger = logging.getLogger(__name__)

SERVICE = "pilotfish.v1.Drafter"
MakeSpeculators = Callable[[Sequence[str], DrafterSettings], Mapping[str, Speculator]]
EXPIRY_S = 0.5  # how often leases are looked at


class DrafterService(drafter_pb2_grpc.DrafterServicer):
    """Streams of frames on one side, a `Drafter` on the other. Refuses everything until its speculators are loaded."""

    def __init__(
        self,
        settings: DrafterSettings,
        clock: Clock = time.monotonic,
        telemetry: Telemetry | None = None,
        make: MakeSpeculators = registry.make,
    ) -> None:
        self.settings = settings
        self._make = make
        self.telemetry = telemetry or Telemetry.off()
        self.incarnation = secrets.randbelow((1 << 64) - 1) + 1  # never 0
        self._clock = clock
        self._streams = Streams()
        self._drafter: Drafter | None = None
        self._expiry: asyncio.Task[None] | None = None

    @property
    def drafter(self) -> Drafter:
        """What serves, once it is loaded."""
        if self._drafter is None:
            raise Unavailable("this drafter is still loading; try again when its readiness says SERVING")
        return self._drafter

    async def start(self) -> None:
        """Load the speculators, which may take long, and set them to work.

        Raises:
            ConfigurationError, MissingModel: one cannot start.
        """
        speculators = await asyncio.to_thread(self._make, self.settings.speculator_names, self.settings)
        self._drafter = Drafter(
            speculators,
            self.incarnation,
            max_sessions=self.settings.max_sessions,
            clock=self._clock,
            telemetry=self.telemetry,
        )
        self._expiry = asyncio.create_task(self._expire())

    async def stop(self) -> None:
        """End the streams and the sessions."""
        if self._expiry is not None:
            self._expiry.cancel()
            with suppress(asyncio.CancelledError):
                await self._expiry
        self._streams.close()
        if self._drafter is not None:
            await asyncio.to_thread(self._drafter.stop)

    async def Info(  # noqa: N802 - the name in the contract
        self, request: drafter_pb2.DrafterInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> drafter_pb2.DrafterInfoResponse:
        return drafter_pb2.DrafterInfoResponse(peer=write_info(self._info()))

    async def Draft(  # noqa: N802 - the name in the contract
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        drafter = self.drafter
        limits = Limits(vocabulary_size=drafter.facts.num_ids or 0, max_nodes=self.settings.max_gamma)
        inbox = DrafterInbox(limits, self.incarnation)
        answers: FrameQueue[drafter_pb2.DraftAnswer] = FrameQueue()

        def reply(message: FromDrafter) -> None:
            try:
                answers.put(write_answer(message, self.incarnation))
            except Overloaded:
                drafter.drop("unread")
                answers.close()  # the other side does not read: it must come again

        def take(frame: drafter_pb2.DraftRequest) -> None:
            for message in inbox.read(frame):
                drafter.take(message, reply)

        try:
            async for items in self._streams.exchange(request_iterator, take, answers):
                yield write_frame(items, drafter.load)
        finally:
            drafter.leave(reply)

    def _info(self) -> ServiceInfo:
        drafter = self.drafter
        facts = drafter.facts
        return ServiceInfo(
            role="drafter",
            version=version("pilotfish"),
            incarnation=self.incarnation,
            model=facts.model,
            vocabulary_hash=facts.vocabulary_hash,
            vocabulary_size=facts.vocabulary_size,
            context_length=facts.context_length or 0,
            dtype=facts.dtype,
            device=facts.device,
            speculators=drafter.speculators,
            max_nodes=self.settings.max_gamma,
            settings=self.settings.effective(),
        )

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            self.drafter.expire()


async def run(settings: DrafterSettings) -> None:
    """Serve until a signal says to stop."""
    telemetry = Telemetry.of_service("drafter", version("pilotfish"), settings.otlp_endpoint, settings.otlp_protocol)
    try:
        if settings.metrics_port is not None:
            telemetry.serve_metrics(settings.host, settings.metrics_port)
        service = DrafterService(settings, telemetry=telemetry)
        server = Server(SERVICE, settings.host, settings.port)
        drafter_pb2_grpc.add_DrafterServicer_to_server(service, server.grpc)
        await serve(server, grace_s=settings.grace_s, start=service.start, drain=service.stop)
    finally:
        telemetry.shutdown()
