"""The verifier's gRPC service: streams of frames on one side, the engine's queue on the other."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pilotfish.errors import Overloaded, Unavailable
from pilotfish.messages import Close, Refusal, ServiceInfo, VerifierLoad
from pilotfish.peer import CALLER_KEY
from pilotfish.progress import terminal_progress
from pilotfish.rpc import FrameQueue, Streams
from pilotfish.server import Server, serve
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.v1 import verifier_pb2, verifier_pb2_grpc
from pilotfish.wire.price import write_curve
from pilotfish.wire.values import Limits, refuse, write_info
from pilotfish.wire.verifier import VerifierInbox, write_answer, write_frame
from verifier import acceptance
from verifier.admission import Capacity
from verifier.calibration import curve_file, measure, simulated
from verifier.cost import CostCurve, knots_up_to
from verifier.engine import Engine
from verifier.pricing import Pricing
from verifier.report import Report
from verifier.schedule import PassLimits, StartByWorth
from verifier.settings import VerifierSettings
from verifier.target import Target
from verifier.traffic import Answer, Command

if TYPE_CHECKING:
    import grpc.aio

_log = logging.getLogger(__name__)

SERVICE = "pilotfish.v1.Verifier"
MAX_UNREAD_FRAMES = 4096  # that wait while a pass runs; beyond that only closing is taken
WATCH_S = 1.0

Answers = FrameQueue[verifier_pb2.VerifyAnswer]


class VerifierService(verifier_pb2_grpc.VerifierServicer):
    """Refuses everything until the target is loaded. No forward pass ever runs in its event loop."""

    def __init__(
        self,
        settings: VerifierSettings,
        telemetry: Telemetry | None = None,
        load: Callable[[VerifierSettings], Target] = Target.load,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.incarnation = secrets.randbelow((1 << 64) - 1) + 1  # never 0
        self._telemetry = telemetry or Telemetry.off()
        self._report = Report(self._telemetry)
        self._load_target = load
        self._clock = clock
        self._streams = Streams()
        self._by_number: dict[int, tuple[str, Answers]] = {}  # open streams: whose, and what waits to be sent
        self._num_streams = 0
        self._load = VerifierLoad()
        self._delivered = asyncio.Event()
        self._target: Target | None = None
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """What serves, once the target is loaded."""
        if self._engine is None:
            raise Unavailable("this verifier is still loading; try again when its readiness says SERVING")
        return self._engine

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the target, which may take long, and start the engine.

        Raises:
            PilotfishError: see `Target.load`.
        """
        loop = asyncio.get_running_loop()
        self._target = target = await asyncio.to_thread(self._load_target, self.settings)

        def emit(answers: list[Answer], load: VerifierLoad) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be answered
                loop.call_soon_threadsafe(self._deliver, answers, load)

        self._engine = await asyncio.to_thread(self._make_engine, target, emit)
        self._load = self._engine.load()
        self._engine.start()
        if self.settings.synthetic_acceptance:
            self._telemetry.set(Metric.LOSSY, 1)
            _log.warning("drafts are accepted at given rates (synthetic_acceptance): the text means nothing")
        _log.info("%s is loaded: %s on %s", target.backend.name, target.backend.dtype, target.backend.device)

    def _make_engine(self, target: Target, emit: Callable[[list[Answer], VerifierLoad], None]) -> Engine:
        settings = self.settings
        capacity = Capacity(
            incarnation=self.incarnation,
            vocabulary_hash=target.vocabulary_hash,
            vocabulary_size=target.vocabulary_size,
            context_length=target.context_length,
            page_size=settings.page_size,
            num_pages=target.num_kv_pages(settings),
            max_sessions=settings.max_sessions,
            max_waiting=settings.max_waiting,
            max_lease_s=settings.max_lease_s,
        )
        limits = PassLimits(settings.max_positions, settings.prefill_positions)
        start_rule = StartByWorth(settings.start_wait_ms / 1e3)
        rates = settings.synthetic_acceptance
        decide = acceptance.synthetic(rates) if rates else acceptance.accept
        engine = Engine(target.backend, capacity, limits, start_rule, emit, self._report, decide, self._clock)
        engine.set_price(self._pricing(target, capacity))
        return engine

    def _pricing(self, target: Target, capacity: Capacity) -> Pricing | None:
        """The price, on the curve of this model and device; None where it is not to be measured."""
        settings, backend, table = self.settings, target.backend, target.table
        if settings.measure_cost == "never" or (table is not None and not table.pass_us):
            return None
        if table is not None:
            return Pricing(simulated(table, settings.max_positions), settings.max_nodes, self._clock())
        path = curve_file(settings.model, backend, settings.threads or 0)
        knots = knots_up_to(settings.max_positions)
        curve = CostCurve.load(path, knots) if settings.measure_cost == "once" else None
        if curve is None:
            with terminal_progress() as progress:
                curve = measure(backend, capacity.num_pages, capacity.page_size, settings.max_positions, progress)
            curve.save(path)
        return Pricing(curve, settings.max_nodes, self._clock())

    async def drain(self) -> None:
        """Take no new session, wait until those that are open have ended, then end the streams."""
        engine = self._engine
        if engine is not None:
            engine.is_draining = True
            while self._has_listeners(engine):
                self._delivered.clear()
                await self._delivered.wait()
        self._streams.close()

    def _has_listeners(self, engine: Engine) -> bool:
        """Whether a session could still commit something that somebody is there to hear."""
        return any(self._queue_of(session.stream, session.key.caller) is not None for session in engine.unfinished)

    async def stop(self) -> None:
        """End the engine after the pass it is in."""
        self._streams.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.stop)

    async def watch(self, set_ready: Callable[[bool], Any]) -> None:
        """Say that the service is not ready while the engine makes no progress with work to do."""
        was_stalled = False
        while True:
            await asyncio.sleep(WATCH_S)
            stalled_s = self.engine.stalled_s(self._clock())
            is_stalled = stalled_s > self.settings.stall_s
            if is_stalled == was_stalled:
                continue
            if is_stalled:
                _log.error("the engine has been at one turn for %.0f s: not ready", stalled_s)
            else:
                _log.warning("the engine goes on: ready again")
            await set_ready(not is_stalled)
            was_stalled = is_stalled

    # -- calls -------------------------------------------------------------------------------------------------------

    async def Info(  # noqa: N802 - the name in the contract
        self, request: verifier_pb2.VerifierInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> verifier_pb2.VerifierInfoResponse:
        pricing = self.engine.pricing
        curve = None if pricing is None else pricing.curve
        return verifier_pb2.VerifierInfoResponse(
            peer=write_info(self._info()),
            cost_curve=None
            if curve is None
            else write_curve(curve.points(), curve.sequence_s, curve.context_s, curve.ridge),
            is_lossy=bool(self.settings.synthetic_acceptance),
        )

    async def Verify(  # noqa: N802 - the name in the contract
        self,
        request_iterator: AsyncIterator[verifier_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        engine = self.engine
        inbox = VerifierInbox(self._limits(), self.incarnation)
        caller, answers = _caller(context), Answers()
        self._num_streams += 1
        number = self._num_streams
        self._by_number[number] = caller, answers

        def take(frame: verifier_pb2.VerifyRequest) -> None:
            now_s = self._clock()
            commands = []
            for item, cut in inbox.read(frame):
                if isinstance(item, Refusal):
                    self._refuse(answers, item)
                elif engine.num_unread > MAX_UNREAD_FRAMES and not isinstance(item, Close):
                    self._refuse(answers, refuse(_unread(engine), item.session, self.incarnation))
                else:
                    commands.append(Command(caller, number, item, now_s, cut))
                    if isinstance(item, Close) and item.trace is not None:
                        self._telemetry.tracer.keep(item.trace)
            if commands:
                engine.submit(*commands)

        try:
            async for items in self._streams.exchange(request_iterator, take, answers):
                yield write_frame(items, self._load)
        finally:
            del self._by_number[number]
            self._delivered.set()  # nothing more will be, here

    # -- answers -----------------------------------------------------------------------------------------------------

    def _deliver(self, answers: list[Answer], load: VerifierLoad) -> None:
        """Put the answers of a turn on their streams; in the event loop."""
        self._load = load
        self._delivered.set()
        for key, number, message, *_ in answers:
            queue = self._queue_of(number, key.caller)
            if queue is not None:
                self._put(queue, message)
        asyncio.get_running_loop().call_soon(self._report.answered, answers, load)  # once they are on their way

    def _queue_of(self, number: int, caller: str) -> Answers | None:
        """The stream an answer belongs on: the session's own, else the newest of the same caller.

        None: there is none. What is lost is told again when the next item of the session comes on a new stream. Callers
        without a name cannot be told apart, so none of them gets what was meant for another.
        """
        if number in self._by_number:
            return self._by_number[number][1]
        newest = (queue for whose, queue in reversed(self._by_number.values()) if whose == caller != "")
        return next(newest, None)

    def _refuse(self, queue: Answers, refusal: Refusal) -> None:
        self._telemetry.add(Metric.ITEMS_DROPPED, 1, refusal.reason)
        self._put(queue, refusal)

    def _put(self, queue: Answers, message: Any) -> None:
        try:
            queue.put(write_answer(message, self.incarnation))
        except Overloaded:
            self._telemetry.add(Metric.ITEMS_DROPPED, 1, "unread")
            queue.close()  # the other side does not read: it must come again

    # -- what it is --------------------------------------------------------------------------------------------------

    def _limits(self) -> Limits:
        target, settings = self._loaded(), self.settings
        return Limits(
            vocabulary_size=target.vocabulary_size,
            max_nodes=settings.max_nodes,
            max_sequence_tokens=target.context_length,
        )

    def _loaded(self) -> Target:
        assert self.engine is not None
        assert self._target is not None
        return self._target

    def _info(self) -> ServiceInfo:
        target, engine = self._loaded(), self.engine
        return ServiceInfo(
            role="verifier",
            version=version("pilotfish"),
            incarnation=self.incarnation,
            model=self.settings.model,
            vocabulary_hash=target.vocabulary_hash,
            vocabulary_size=target.vocabulary_size,
            context_length=target.context_length,
            end_ids=target.end_ids,
            dtype=target.backend.dtype,
            device=str(target.backend.device),
            max_nodes=self.settings.max_nodes,
            page_size=engine.pool.page_size,
            num_kv_pages=engine.pool.num_pages,
            settings=self.settings.effective(),
        )


def _unread(engine: Engine) -> Overloaded:
    what = f"{engine.num_unread} frames wait for the engine, which has not come to read them"
    return Overloaded(f"{what}: try again in 1 s, or elsewhere", retry_after_s=1.0)


def _caller(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Who calls: what the connection has authenticated, else what the caller calls itself."""
    identities = context.peer_identities()
    if identities:
        return b",".join(identities).decode(errors="replace")
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == CALLER_KEY), "")


async def run(settings: VerifierSettings) -> None:
    """Serve until a signal says to stop."""
    telemetry = Telemetry.of_service("verifier", version("pilotfish"), settings.otlp_endpoint, settings.otlp_protocol)
    service = VerifierService(settings, telemetry)
    server = Server(SERVICE, settings.host, settings.port)
    verifier_pb2_grpc.add_VerifierServicer_to_server(service, server.grpc)
    watcher: asyncio.Task[None] | None = None

    async def start() -> None:
        nonlocal watcher
        if settings.metrics_port is not None:
            telemetry.serve_metrics(settings.host, settings.metrics_port)
        await service.start()
        watcher = asyncio.create_task(service.watch(server.set_ready))

    try:
        await serve(server, grace_s=settings.grace_s, start=start, drain=service.drain)
    finally:
        if watcher is not None:
            watcher.cancel()
        await service.stop()
        telemetry.shutdown()
