"""The coordinator's side of a stream to a drafter or verifier: dials, notices loss and restart, dials again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pilotfish.errors import PeerLost, PilotfishError, Unavailable
from pilotfish.messages import ServiceInfo
from pilotfish.rpc import FrameQueue, Sized, channel
from pilotfish.status import from_rpc_error
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from pilotfish.wire.values import read_info

_log = logging.getLogger(__name__)

Item = TypeVar("Item", bound=Sized)
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Dial(Generic[Item, Response]):
    """How a kind of peer is talked to."""

    service: str  # full name, for health
    info: Callable[[grpc.aio.Channel, float], Awaitable[ServiceInfo]]  # with a timeout in seconds
    open: Callable[[grpc.aio.Channel, AsyncIterator[list[Item]]], AsyncIterator[Response]]


CALLER_KEY: Final = "pilotfish-caller"
"""Metadata of a stream: what a coordinator calls itself, so that a verifier knows it again on its next stream."""


def verifier_dial(caller: str = "") -> Dial[verifier_pb2.VerifyItem, verifier_pb2.VerifyResponse]:
    """How a verifier is talked to.

    Args:
        caller: what this coordinator calls itself: sessions are scoped to it.
    """

    async def info(to: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
        stub: Any = verifier_pb2_grpc.VerifierStub(to)
        answer = await stub.Info(verifier_pb2.VerifierInfoRequest(), timeout=timeout_s)
        return replace(read_info("verifier", answer.peer), is_lossy=answer.is_lossy)

    async def requests(frames: AsyncIterator[list[verifier_pb2.VerifyItem]]) -> AsyncIterator[Any]:
        async for items in frames:
            yield verifier_pb2.VerifyRequest(items=items)

    def open_stream(to: grpc.aio.Channel, frames: AsyncIterator[list[verifier_pb2.VerifyItem]]) -> Any:
        stub: Any = verifier_pb2_grpc.VerifierStub(to)
        return stub.Verify(requests(frames), metadata=((CALLER_KEY, caller),))

    return Dial("pilotfish.v1.Verifier", info, open_stream)


def drafter_dial() -> Dial[drafter_pb2.DraftItem, drafter_pb2.DraftResponse]:
    """How a drafter is talked to."""

    async def info(to: grpc.aio.Channel, timeout_s: float) -> ServiceInfo:
        stub: Any = drafter_pb2_grpc.DrafterStub(to)
        answer = await stub.Info(drafter_pb2.DrafterInfoRequest(), timeout=timeout_s)
        return read_info("drafter", answer.peer)

    async def requests(frames: AsyncIterator[list[drafter_pb2.DraftItem]]) -> AsyncIterator[Any]:
        async for items in frames:
            yield drafter_pb2.DraftRequest(items=items)

    def open_stream(to: grpc.aio.Channel, frames: AsyncIterator[list[drafter_pb2.DraftItem]]) -> Any:
        stub: Any = drafter_pb2_grpc.DrafterStub(to)
        return stub.Draft(requests(frames))

    return Dial("pilotfish.v1.Drafter", info, open_stream)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a stream is dialled again, and how a peer is watched."""

    first_backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    dial_timeout_s: float = 5.0
    probe_interval_s: float = 1.0  # between two health checks
    probe_timeout_s: float = 1.0  # a peer that takes longer is not up, but its stream is kept
    keepalive_s: float = 10.0  # a peer silent for half as long again is gone


class PeerStream(Generic[Item, Response]):
    """One stream to one peer, for as long as the coordinator wants it.

    Callbacks come in the event loop, never while `send` runs:

        on_up(info)          the stream is open; `info.incarnation` tells whether the peer has restarted since
        on_answer(response)  a frame came
        on_down(error)       the stream broke, or never opened; it is dialled again

    Between an `on_up` and the next `on_down` what was sent arrives in order, or the stream breaks.
    """

    def __init__(
        self,
        address: str,
        dial: Dial[Item, Response],
        *,
        on_up: Callable[[ServiceInfo], None],
        on_answer: Callable[[Response], None],
        on_down: Callable[[PilotfishError], None],
        pace: Pace | None = None,
    ) -> None:
        self.address = address
        self.info: ServiceInfo | None = None  # the last one heard, also while the stream is down
        self.problem: PilotfishError | None = Unavailable(f"{address} has not been reached yet")
        self.round_trip_us = 0  # of the last health check that was answered
        self._dial = dial
        self._on_up, self._on_answer, self._on_down = on_up, on_answer, on_down
        self._pace = pace or Pace()
        self._queue: FrameQueue[Item] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_open(self) -> bool:
        """Whether what is sent now goes out on a stream."""
        return self._queue is not None and not self._queue.is_closed

    @property
    def is_up(self) -> bool:
        """Whether the stream is open and the last health check said that the peer takes work."""
        return self.is_open and self.problem is None

    @property
    def num_sent_bytes(self) -> int:
        """Bytes of items that went out on the stream that is open."""
        return 0 if self._queue is None else self._queue.num_frame_bytes

    def start(self) -> None:
        """Dial, and dial again for ever, until `stop`."""
        self._channel = channel(self.address, keepalive_s=self._pace.keepalive_s)
        self._tasks = [asyncio.create_task(self._keep_open()), asyncio.create_task(self._keep_watching())]

    async def stop(self) -> None:
        """End the stream for good."""
        if self._queue is not None:
            self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._channel is not None:
            await self._channel.close(None)

    def send(self, item: Item) -> None:
        """Send an item with the next frame.

        Raises:
            Unavailable: the stream is not open.
            Overloaded: the peer does not read.
        """
        if self._queue is None or self._queue.is_closed:
            raise Unavailable(f"no stream to {self.address}: {self.problem}", retry_after_s=self._pace.first_backoff_s)
        self._queue.put(item)

    def redial(self) -> None:
        """Break the stream and ask the peer anew who it is: it refused an item for its incarnation."""
        if self._call is not None:
            self._call.cancel()

    async def _keep_open(self) -> None:
        backoff_s = self._pace.first_backoff_s
        while True:
            opened_at = monotonic()
            try:
                await self._open_and_read()
                error: PilotfishError = PeerLost(f"{self.address} ended its stream")
            except grpc.RpcError as cause:
                error = _lost(self.address, from_rpc_error(cause))
            except PilotfishError as cause:
                error = cause
            except asyncio.CancelledError:
                error = PeerLost(f"the stream to {self.address} was cancelled")
            finally:
                self._forget()
            _raise_if_cancelled()
            self.problem = error
            self._on_down(error)
            if monotonic() - opened_at > self._pace.max_backoff_s:
                backoff_s = self._pace.first_backoff_s
            await asyncio.sleep(backoff_s * random.uniform(0.8, 1.2))
            backoff_s = min(2 * backoff_s, self._pace.max_backoff_s)

    async def _open_and_read(self) -> None:
        """One life of the stream."""
        assert self._channel is not None
        began = monotonic()
        self.info = info = await self._dial.info(self._channel, self._pace.dial_timeout_s)
        self.round_trip_us = round((monotonic() - began) * 1e6)
        self._queue = FrameQueue()
        self._call = self._dial.open(self._channel, self._queue.frames())
        self.problem = None
        self._on_up(info)
        async for response in self._call:
            self._on_answer(response)

    def _forget(self) -> None:
        if self._queue is not None:
            self._queue.close()
        if self._call is not None:
            self._call.cancel()
        self._queue = self._call = None

    async def _keep_watching(self) -> None:
        """Ask for the peer's health: a frozen or draining one gets no new work, though its stream is still there."""
        assert self._channel is not None
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest(service=self._dial.service)
        while True:
            await asyncio.sleep(self._pace.probe_interval_s)
            if not self.is_open:
                continue
            began = monotonic()
            try:
                answer = await stub.Check(request, timeout=self._pace.probe_timeout_s)
            except grpc.RpcError as cause:
                _raise_if_cancelled()
                self._set_problem(_lost(self.address, from_rpc_error(cause)))
                continue
            self.round_trip_us = round((monotonic() - began) * 1e6)
            is_serving = answer.status == health_pb2.HealthCheckResponse.SERVING
            self._set_problem(None if is_serving else Unavailable(f"{self.address} takes no new work"))

    def _set_problem(self, problem: PilotfishError | None) -> None:
        if not self.is_open:
            return  # whoever closed the stream has said why
        if (problem is None) != (self.problem is None):
            _log.info("%s: %s", self.address, problem or "answers again")
        self.problem = problem


def _raise_if_cancelled() -> None:
    """Pass on a cancellation of this task: a call that fails at the same time raises only its own failure."""
    if asyncio.current_task().cancelling():  # type: ignore[union-attr] # this is a task
        raise asyncio.CancelledError


def _lost(address: str, cause: PilotfishError) -> PilotfishError:
    return PeerLost(f"{address}: {cause.message}")
