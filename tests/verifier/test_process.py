"""`python -m verifier` as a process: it finishes what runs, ends clean, and says why it cannot start."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pilotfish.messages import FinishReason
from pilotfish.rpc import channel
from pilotfish.v1 import verifier_pb2, verifier_pb2_grpc
from pilotfish.wire.values import read_info
from tests.verifier.stream import Caller, Stream, greedy, table_file

PROMPT = [1, 2, 3]


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A verifier, and its address."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "verifier", *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert started.stderr is not None
    try:
        async for line in started.stderr:
            if found := re.search(r"is ready on (\S+)", line.decode()):
                yield started, found[1]
                break
        else:
            raise AssertionError("it never said that it is ready")
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def test_sigterm_lets_the_open_session_finish_and_the_process_end_with_0(tmp_path: Path) -> None:
    """After SIGTERM the session that is open gets its text to the end; then the process exits with 0."""
    model = table_file(tmp_path, {"random": {"seed": 1, "order": 2}})
    async with process("--model", model, "--port", "0") as (started, address), channel(address) as to:
        stub: Any = verifier_pb2_grpc.VerifierStub(to)
        info = read_info("verifier", (await stub.Info(verifier_pb2.VerifierInfoRequest())).peer)
        stream = Stream(stub, info.incarnation)
        caller = Caller(stream, info, PROMPT, max_tokens=9)
        await caller.open()
        await caller.run_free(3)
        started.send_signal(signal.SIGTERM)
        await caller.verify(greedy(model, PROMPT, 9)[3:6])
        await caller.run_free(2)
        assert caller.verdicts[-1].finish is FinishReason.LENGTH
        assert caller.output == greedy(model, PROMPT, 9)
        assert await asyncio.wait_for(started.wait(), 20) == 0
        await stream.cut()


async def test_a_taken_port_is_refused_by_name(tmp_path: Path) -> None:
    """A second verifier on the same port exits with 2 and says which address is taken and what to do."""
    model = table_file(tmp_path, {"random": {"seed": 1, "order": 2}})
    async with process("--model", model, "--port", "0") as (_, address):
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "verifier",
            "--model",
            model,
            "--port",
            address.rpartition(":")[2],
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await asyncio.wait_for(second.communicate(), 60)
        assert second.returncode == 2
        assert f"cannot listen on {address}" in stderr.decode()
