"""The coordinator's gRPC service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic_ns
from typing import Any

import grpc.aio

from coordinator.adaptive import AdaptivePolicy
from coordinator.admission import Admitted, Served, admit
from coordinator.discovery import Addresses, Discovery, StaticDiscovery
from coordinator.drafting import Leave
from coordinator.estimator import Estimator
from coordinator.peers import Watch
from coordinator.policy import Policy, TablePolicy
from coordinator.realised import Realised
from coordinator.reasoning import ThinkMarks
from coordinator.record import Clock, Record
from coordinator.roster import Roster
from coordinator.rounds import Means, RoundLoop
from coordinator.sessions import Tempo
from coordinator.settings import CoordinatorSettings
from coordinator.text import Vocabulary
from pilotfish.errors import Overloaded, PilotfishError, Unavailable
from pilotfish.messages import CoordinatorInfo, ServiceInfo, TraceContext
from pilotfish.rpc import TENANT_KEY
from pilotfish.server import Server, serve
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.tokenizer import Tokenizer, load_tokenizer
from pilotfish.v1 import coordinator_pb2, coordinator_pb2_grpc
from pilotfish.wire.coordinator import read_request, write_chunk, write_info
from pilotfish.wire.values import Limits, trace_of

logger = logging.getLogger(__name__)

SERVICE = "pilotfish.v1.Coordinator"
VERSION = version("pilotfish")
LONG_BYTES = 1 << 15  # of a request: some milliseconds to put into tokens


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServicer):
    """Takes requests in at one side and leads them over its peers at the other."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        tokenizer: Tokenizer,
        *,
        policy: Policy | None = None,
        discovery: Discovery | None = None,
        telemetry: Telemetry | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        """Make a service that has no peers yet.

        Args:
            policy: decides γ; None: the one of the settings.
            discovery: finds peers; None: those of the settings.
        """
        self.settings = settings
        self.telemetry = telemetry or Telemetry.off()
        self.num_running = 0
        self._tokenizer = tokenizer
        self._tenants = settings.tenancy()
        self._clock = clock
        self._discovery = discovery or StaticDiscovery(Addresses(settings.verifiers, settings.drafters))
        limits = Limits(vocabulary_size=len(tokenizer.vocabulary))
        self.roster = Roster(Watch(tokenizer.vocabulary_hash, limits, settings.lost_after_s, telemetry=self.telemetry))
        self._estimator = _estimator(settings)
        self._means = Means(
            roster=self.roster,
            vocabulary=Vocabulary(tokenizer),
            policy=policy or _policy(settings),
            tempo=Tempo(
                grant=settings.grant,
                patience_us=round(settings.patience_ms * 1e3),
                most_patience_us=round(settings.most_patience_ms * 1e3),
                deadline_us=round(settings.draft_deadline_ms * 1e3),
                silent_after_s=settings.lost_after_s,
            ),
            estimator=self._estimator,
            realised=Realised(self.telemetry),
            failover_s=settings.failover_s,
            think_marks=ThinkMarks.find(settings.think_marks, tokenizer.vocabulary),
            leave=Leave(settings.draft_ahead, settings.early_stop, settings.side_lines),
        )
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._following: asyncio.Task[None] | None = None
        self.has_changed = asyncio.Event()  # a peer came up or went down

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Dial the peers; returns when a verifier is up."""
        self._following = asyncio.create_task(self.roster.follow(self._discovery, self._tell_change))
        self._following.add_done_callback(_raise)
        while not self.roster.has_verifier:
            with suppress(Unavailable):
                await self.roster.wait_for_verifier(60.0)

    async def stop(self) -> None:
        """Take no more requests, let those that run come to their end, then part from the peers."""
        self.is_draining = True
        await self._idle.wait()
        if self._following is not None:
            self._following.cancel()
        await self.roster.stop()
        if self.settings.priors_file is not None:
            self._estimator.save(Path(self.settings.priors_file))

    def _tell_change(self) -> None:
        for peer in self.roster.describe():
            self.telemetry.set(Metric.PEER_UP, peer.is_up, peer.role, peer.address)
        self.has_changed.set()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def Generate(  # noqa: N802 - the name in the contract
        self,
        request: coordinator_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        record = Record(self.telemetry, self._clock, _trace_of(context), self.settings.trace_slow_s)
        try:
            self._enter()
        except PilotfishError as error:
            record.end(error.reason, error.message)
            raise
        end = "internal"  # until it turns out otherwise
        problem: str | None = "the service failed; its log says how"
        try:
            admitted = await self._admit(request, _tenant_of(context))
            record.admit(admitted)
            loop = RoundLoop(admitted, self._means, record)
            call: Any = context
            call.add_done_callback(lambda _: loop.close())  # a call that was cut off frees its sessions at once
            async for chunk in loop.answer():
                yield write_chunk(chunk)
                if chunk.finished is not None:
                    end, problem = chunk.finished.reason.value, None
        except (asyncio.CancelledError, GeneratorExit):
            end, problem = "cancelled", None
            raise
        except PilotfishError as error:
            end, problem = error.reason, error.message
            raise
        finally:
            record.end(end, problem)
            self._leave()

    async def Info(  # noqa: N802 - the name in the contract
        self,
        request: coordinator_pb2.CoordinatorInfoRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> coordinator_pb2.CoordinatorInfoResponse:
        infos = self._verifier_infos()
        return write_info(
            CoordinatorInfo(
                version=VERSION,
                model=self.settings.model,
                context_length=_context_length(infos),
                max_gamma=self.settings.max_gamma,
                peers=self.roster.describe(),
                settings=self.settings.effective(),
                acceptance_rate=self._estimator.acceptance_rate,
            )
        )

    # -- requests ----------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self.is_draining:
            raise Unavailable("this coordinator is shutting down; ask another one", retry_after_s=1.0)
        if self.num_running >= self.settings.max_requests:
            raise Overloaded(
                f"{self.num_running} requests are running, the most this coordinator takes (max_requests); try again",
                retry_after_s=1.0,
            )
        self.num_running += 1
        self._idle.clear()
        self.telemetry.set(Metric.RUNNING, self.num_running)

    def _leave(self) -> None:
        self.num_running -= 1
        self.telemetry.set(Metric.RUNNING, self.num_running)
        if self.num_running == 0:
            self._idle.set()

    async def _admit(self, proto: coordinator_pb2.GenerateRequest, tenant: str) -> Admitted:
        settings, terms = self.settings, self._tenants.terms(tenant)
        request = read_request(
            proto,
            max_gamma=terms.max_gamma,
            whose=terms.whose,
            vocabulary_size=len(self._tokenizer.vocabulary),
        )
        if not self._verifier_infos():
            await self.roster.wait_for_verifier(settings.failover_s)
        wanted = request.speculation.speculator
        self.roster.check_speculator(wanted)
        admitting = partial(
            admit,
            request,
            self._served(),
            speculator=None if request.speculation.is_off else wanted or self._default_speculator(),
            lease_s=settings.lease_s,
            terms=terms,
            tenant=tenant,
        )
        # A long text takes as long as many rounds to put into tokens; the others' rounds do not wait for that.
        return await asyncio.to_thread(admitting) if proto.ByteSize() > LONG_BYTES else admitting()

    def _served(self) -> Served:
        infos = self._verifier_infos()
        return Served(
            model=self.settings.model,
            tokenizer=self._tokenizer,
            context_length=_context_length(infos),
            end_ids=frozenset(end_id for info in infos for end_id in info.end_ids) or self._tokenizer.end_ids,
        )

    def _verifier_infos(self) -> list[ServiceInfo]:
        """What the verifiers of the served vocabulary have said of themselves."""
        return [peer.info for peer in self.roster.verifiers.values() if peer.info is not None and peer.is_fitting]

    def _default_speculator(self) -> str | None:
        peer = self.roster.choose_drafter(None)
        return (
            peer.info.speculators[0] if peer is not None and peer.info is not None and peer.info.speculators else None
        )


def _policy(settings: CoordinatorSettings) -> Policy:
    """γ as the settings fix it, else by the price."""
    return AdaptivePolicy() if settings.gamma is None else TablePolicy(settings.gamma)


def _estimator(settings: CoordinatorSettings) -> Estimator:
    """What is known of acceptance: what was kept of the last run, where there is any."""
    estimator = Estimator()
    if settings.priors_file is not None and not estimator.load(Path(settings.priors_file)):
        logger.info("%s has no priors that can be read: beginning without", settings.priors_file)
    return estimator


def _raise(task: asyncio.Task[None]) -> None:
    """Have the event loop log what ended a task that should not end so."""
    if not task.cancelled():
        task.result()


def _context_length(infos: list[ServiceInfo]) -> int:
    """The shortest, so that every verifier can take over; 0: no verifier was reached yet."""
    return min((info.context_length for info in infos if info.context_length), default=0)


def _tenant_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Whose request it is: what the connection has authenticated, else what the caller says; "": nobody's."""
    if identities := context.peer_identities():
        return b",".join(identities).decode(errors="replace")
    metadata = context.invocation_metadata() or ()
    return next((value for key, value in metadata if key == TENANT_KEY and isinstance(value, str)), "")


def _trace_of(context: grpc.aio.ServicerContext[Any, Any]) -> TraceContext | None:
    """The client's trace, from its W3C headers."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return trace_of(metadata.get("traceparent", ""), metadata.get("tracestate", ""))


async def run(settings: CoordinatorSettings) -> None:
    """Serve until a signal says to stop."""
    tokenizer = await asyncio.to_thread(load_tokenizer, settings.model)
    telemetry = Telemetry.of_service(
        "coordinator", VERSION, settings.otlp_endpoint, settings.otlp_protocol, settings.trace_ratio
    )
    if settings.metrics_port is not None:
        port = telemetry.serve_metrics(settings.host, settings.metrics_port)
        logger.info("metrics on http://%s:%s/metrics", settings.host, port)
    service = CoordinatorService(settings, tokenizer, telemetry=telemetry)
    server = Server(SERVICE, settings.host, settings.port)
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server.grpc)
    readiness = asyncio.create_task(keep_ready(server, service))
    try:
        await serve(server, grace_s=settings.grace_s, start=service.start, drain=service.stop)
    finally:
        readiness.cancel()
        telemetry.shutdown()


async def keep_ready(server: Server, service: CoordinatorService) -> None:
    """Say that the service is ready exactly while a verifier is up. Looks now and then, for health changes silently."""
    was_ready = False
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(service.has_changed.wait(), 0.5)
        service.has_changed.clear()
        is_ready = service.roster.has_verifier and not service.is_draining
        if is_ready != was_ready:
            await server.set_ready(is_ready)
        was_ready = is_ready
