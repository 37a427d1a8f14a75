"""A gRPC server as every service runs one: health, reflection, errors as statuses, shutdown by signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pilotfish.errors import PilotfishError, PortTaken
from pilotfish.rpc import server_options
from pilotfish.status import message, status_code, trailers

_log = logging.getLogger(__name__)

LIVENESS: Final = ""

Result = TypeVar("Result")


class Server:
    """A server with one service besides health and reflection.

    `""` is SERVING as long as the process runs; the service's own name once `set_ready(True)` was said, until the
    shutdown begins. Add the servicer to `grpc` before `start`.
    """

    def __init__(self, service: str, host: str, port: int) -> None:
        """Make a server that does not listen yet, in the event loop that it is to run in.

        Args:
            service: full name, "pilotfish.v1.Verifier".
            port: 0 for any that is free; `self.port` says which, after `start`.
        """
        asyncio.get_running_loop()  # gRPC would take another loop, and fail only later
        self.service = service
        self.host = host
        self.port = port
        self.grpc = grpc.aio.server(interceptors=[StatusInterceptor()], options=server_options())
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined] # the stubs do not have it
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection(
            (service, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self.grpc
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTaken: the address cannot be bound.
        """
        try:
            self.port = self.grpc.add_insecure_port(self.address)
        except RuntimeError as error:
            remedy = "is it taken by another process? Stop that one or choose another port (0: any that is free)"
            raise PortTaken(f"cannot listen on {self.address}: {remedy}", field="port") from error
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        await self.grpc.start()

    async def set_ready(self, is_ready: bool) -> None:
        """Say whether the service takes new work."""
        serving = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set(self.service, serving)

    async def stop(self, grace_s: float, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take no new work, let `drain` finish what runs for at most `grace_s`, then stop.

        Args:
            drain: finishes the service's work and then ends its streams, which would else last the whole grace.
        """
        await self.set_ready(False)
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        if drain is not None:
            try:
                await asyncio.wait_for(drain(), grace_s)
            except TimeoutError:
                _log.warning("%s: work was left after %s s of grace; it is cut off", self.service, grace_s)
        await self.grpc.stop(max(0.0, end - loop.time()))


def run_process(service: Coroutine[Any, Any, Result]) -> Result:
    """Run a service as what this process is for, on uvloop where that is installed (there is none for Windows)."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(service)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def serve(
    server: Server,
    *,
    grace_s: float,
    start: Callable[[], Awaitable[None]] | None = None,
    drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, then shut down in order; a second signal ends the process at once.

    Args:
        start: makes the service ready (loads a model, connects); health answers meanwhile. What it raises ends all.
        drain: see `Server.stop`.
    """
    signalled = _on_signals()
    await server.start()
    _log.info("%s listens on %s", server.service, server.address)
    try:
        if start is not None and not await _unless(signalled, asyncio.ensure_future(start())):
            return
        await server.set_ready(True)
        _log.info("%s is ready on %s", server.service, server.address)
        await signalled.wait()
        _log.info("%s shuts down", server.service)
    finally:
        await server.stop(grace_s, drain)


async def _unless(signalled: asyncio.Event, work: asyncio.Future[None]) -> bool:
    """Whether `work` came to its end before the signal; what it raised is raised."""
    waiter = asyncio.ensure_future(signalled.wait())
    both: list[asyncio.Future[Any]] = [work, waiter]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if work.done():
        await work
        return True
    work.cancel()
    return False


def _on_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second one ends the process."""
    signalled = asyncio.Event()

    def receive(number: int) -> None:
        if signalled.is_set():
            os._exit(128 + number)
        signalled.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, receive, number)
    return signalled


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # generic only in the stubs
    """Turns errors into statuses: ours as they are, with details; others into INTERNAL, their text only logged."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler: Any = await continuation(handler_call_details)
        method = getattr(handler_call_details, "method", "?")
        if handler is None or str(method).startswith("/grpc."):
            return handler  # type: ignore[no-any-return]
        for name in ("unary_unary", "stream_unary"):
            if getattr(handler, name):
                return handler._replace(**{name: _guard_unary(getattr(handler, name), method)})  # type: ignore[no-any-return]
        for name in ("unary_stream", "stream_stream"):
            if getattr(handler, name):
                return handler._replace(**{name: _guard_stream(getattr(handler, name), method)})  # type: ignore[no-any-return]
        return handler  # type: ignore[no-any-return]


def _guard_unary(behaviour: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error ends
            await _abort(error, context, method)

    return guarded


def _guard_stream(behaviour: Callable[..., AsyncIterator[Any]], method: str) -> Callable[..., AsyncIterator[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        answers = behaviour(request, context)
        try:
            async for answer in answers:
                yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error ends
            await _abort(error, context, method)
        finally:
            close = getattr(answers, "aclose", None)
            if close is not None:
                await close()

    return guarded


async def _abort(error: Exception, context: grpc.aio.ServicerContext[Any, Any], method: str) -> NoReturn:
    if isinstance(error, PilotfishError):
        await context.abort(status_code(error), message(error), trailers(error))
    _log.error("%s failed", method, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "the service failed; its log says how")
    raise AssertionError("abort raises")
