from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import IO, Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pilotfish.errors import (
    InvalidArgument,
    Overloaded,
    PilotfishError,
    PoolFull,
    PortTaken,
    UnknownSession,
    VocabularyMismatch,
)
from pilotfish.messages import Chunk, Request
from pilotfish.server import Server
from pilotfish.status import from_rpc_error
from pilotfish.v1 import coordinator_pb2, coordinator_pb2_grpc
from tests.plumbing.fakes import FakeCoordinator

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def failure(error: Exception) -> grpc.aio.AioRpcError:
    """The status that a caller gets where the service raises `error` after a chunk."""

    async def script(request: Request) -> AsyncIterator[Chunk]:
        yield Chunk("a")
        raise error

    async with FakeCoordinator(script) as coordinator, grpc.aio.insecure_channel(coordinator.address) as channel:
        stub: Any = coordinator_pb2_grpc.CoordinatorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub.Generate(coordinator_pb2.GenerateRequest(text="x")):
                pass
        return failed.value


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument.of("top_p", 2.0, "must be in (0, 1]"),
        Overloaded("too many requests", retry_after_s=1.5),
        PoolFull("no pages", retry_after_s=0.2),
        UnknownSession("no such session"),
        VocabularyMismatch("the vocabularies differ"),
        PilotfishError("a bug, with umlauts: äöü 🐟"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_caller_gets_the_error_that_was_raised(error: PilotfishError) -> None:
    """Class, text, field and delay of an error of ours reach the caller."""
    restored = from_rpc_error(await failure(error))
    assert type(restored) is type(error)
    assert restored.message == error.message
    assert (restored.field, restored.retry_after_s) == (error.field, error.retry_after_s)


async def test_a_status_has_the_standard_details() -> None:
    """Callers without our library find the field and the delay in the details that google.rpc defines."""
    failed = await failure(InvalidArgument("bad", field="top_p", retry_after_s=2.0))
    metadata: Any = failed.trailing_metadata()
    status = status_pb2.Status.FromString(dict(metadata)["grpc-status-details-bin"])
    assert (status.code, status.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "bad")
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    assert [detail.Unpack(kind) for detail, kind in zip(status.details, (info, bad, retry), strict=True)] == [True] * 3
    assert (info.reason, info.domain) == ("ARGUMENT", "pilotfish")
    assert bad.field_violations[0].field == "top_p"
    assert retry.retry_delay.seconds == 2


async def test_an_error_that_is_not_ours_keeps_its_text_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is INTERNAL for the caller, and in the log with its traceback."""
    failed = await failure(ValueError("the password is hunter2"))
    assert failed.code() is grpc.StatusCode.INTERNAL
    assert "hunter2" not in (failed.details() or "") + str(failed.trailing_metadata())
    assert "hunter2" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_long_message_still_arrives() -> None:
    """A message is cut before it breaks the limit on trailers."""
    restored = from_rpc_error(await failure(InvalidArgument("x" * 100_000)))
    assert type(restored) is InvalidArgument
    assert 100 < len(restored.message) < 2000


async def test_a_bad_request_is_refused_by_field() -> None:
    """What `wire` refuses is INVALID_ARGUMENT with the field, through the running server."""

    async def script(request: Request) -> AsyncIterator[Chunk]:
        yield Chunk("never")

    async with FakeCoordinator(script) as coordinator, grpc.aio.insecure_channel(coordinator.address) as channel:
        stub: Any = coordinator_pb2_grpc.CoordinatorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in stub.Generate(coordinator_pb2.GenerateRequest(text="x", max_tokens=0)):
                pass
        restored = from_rpc_error(failed.value)
    assert (type(restored), restored.field) == (InvalidArgument, "max_tokens")


async def test_health_tells_liveness_from_readiness() -> None:
    """The empty name serves as long as the process; the service's name once it is ready and until it shuts down."""
    server = Server("pilotfish.v1.Verifier", "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def ask(service: str) -> Any:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        assert (await ask(""), await ask("pilotfish.v1.Verifier")) == (SERVING, NOT_SERVING)
        await server.set_ready(True)
        assert (await ask(""), await ask("pilotfish.v1.Verifier")) == (SERVING, SERVING)
        seen = []

        async def drain() -> None:
            seen.append((await ask(""), await ask("pilotfish.v1.Verifier")))

        await server.stop(5.0, drain)
        assert seen == [(SERVING, NOT_SERVING)]


async def test_reflection_lists_the_service() -> None:
    """Tools that have no protos find the service."""
    server = Server("pilotfish.v1.Coordinator", "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await anext(aiter(call))
        call.cancel()
    await server.stop(0)
    names = [service.name for service in answer.list_services_response.service]
    assert "pilotfish.v1.Coordinator" in names
    assert "grpc.health.v1.Health" in names


async def test_a_port_that_is_taken_is_refused_by_number() -> None:
    """Two servers on one port: the second one says which port and what to do."""
    first = Server("pilotfish.v1.Verifier", "127.0.0.1", 0)
    await first.start()
    second = Server("pilotfish.v1.Verifier", "127.0.0.1", first.port)
    with pytest.raises(PortTaken, match=f"{first.port}.*another port") as refused:
        await second.start()
    assert refused.value.field == "port"
    await first.stop(0)


async def test_work_that_does_not_finish_is_cut_off_after_the_grace() -> None:
    """A drain that hangs does not keep the process alive."""
    server = Server("pilotfish.v1.Verifier", "127.0.0.1", 0)
    await server.start()
    await server.stop(0.01, asyncio.Event().wait)  # type: ignore[arg-type]


SERVICE = """
import asyncio, sys
from pilotfish.server import Server, serve

async def start():
    print("started", flush=True)

async def drain():
    print("draining", flush=True)
    if sys.argv[1] == "hang":
        await asyncio.Event().wait()

async def main():
    await serve(Server("pilotfish.v1.Verifier", "127.0.0.1", 0), grace_s=60, start=start, drain=drain)
    print("stopped", flush=True)

asyncio.run(main())
"""


@contextmanager
def service(how: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A service in a process of its own, and what it prints."""
    with subprocess.Popen([sys.executable, "-c", SERVICE, how], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield process, process.stdout
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_down_in_order(number: int) -> None:
    """After the first signal the work is drained, and the process ends with 0."""
    with service("finish") as (process, output):
        process.send_signal(number)
        assert output.read() == "draining\nstopped\n"
        assert process.wait() == 0


def test_a_second_signal_ends_the_process_at_once() -> None:
    """A drain that hangs can be cut short by hand."""
    with service("hang") as (process, output):
        process.send_signal(signal.SIGINT)
        assert output.readline() == "draining\n"
        process.send_signal(signal.SIGINT)
        assert output.read() == ""
        assert process.wait() == 128 + signal.SIGINT
