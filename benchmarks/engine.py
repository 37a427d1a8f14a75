"""Plain decoding: the engine driven directly, and the same verifier as a service of its own process.

    python -m benchmarks.engine --model smollm2-135m --dtype bfloat16

Both arms decode the same prompt greedily, block by block in turns, so that whatever else the machine does meets both.
On a busy machine the CPU time per token says more than the speeds.
What the engine itself costs is the length of a turn without the model's forward and without acceptance.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.oneprocess import LocalEngine
from benchmarks.statistics import Estimate, geometric_mean, median
from pilotfish.messages import Close, Open, Opened, Rule, Sampling, ServiceInfo, Verdict
from pilotfish.peer import PeerStream, verifier_dial
from pilotfish.wire.values import Limits
from pilotfish.wire.verifier import read_answers, write_items
from verifier.settings import VerifierSettings

PROMPT_TOKENS = 128
LOAD_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """What the two arms and the engine's own share came to."""

    direct_tokens_per_s: Estimate
    service_tokens_per_s: Estimate
    service_over_direct: Estimate  # of neighbouring blocks
    direct_cpu_ms: float  # median, per token
    service_cpu_ms: float  # likewise, of the verifier's process
    host_ms: float  # median of a turn without forward and acceptance
    accept_ms: float  # median

    def __str__(self) -> str:
        return (
            f"engine driven directly   {self.direct_tokens_per_s} tokens/s\n"
            f"through the service      {self.service_tokens_per_s} tokens/s\n"
            f"service over direct      {self.service_over_direct}\n"
            f"CPU per token            {self.direct_cpu_ms:.1f} ms directly, {self.service_cpu_ms:.1f} ms served\n"
            f"engine's own per pass    {self.host_ms:.3f} ms besides forward and acceptance ({self.accept_ms:.3f} ms)"
        )


def opening(info: ServiceInfo | None, vocabulary_hash: str, num_tokens: int) -> Open:
    """A greedy session that runs free from the start."""
    return Open(
        session=secrets.token_bytes(16),
        incarnation=1 if info is None else info.incarnation,
        vocabulary_hash=vocabulary_hash,
        prompt=tuple(7 + 3 * i % 11 for i in range(PROMPT_TOKENS)),
        output_so_far=(),
        sampling=Sampling(temperature=0.0),
        seed=1,
        rule=Rule.MATCH,
        end_ids=frozenset(),
        max_tokens=num_tokens + 1,
        lease_s=600.0,
        grant=num_tokens + 1,
    )


class Watched:
    """Takes the time of what it wraps."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.last_s = 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = self._function(*arguments)
        self.last_s = time.perf_counter() - began
        return result


class Direct:
    """The engine in this thread."""

    def __init__(self, settings: VerifierSettings) -> None:
        self.local = LocalEngine(settings)
        self.host_s: list[float] = []
        self.accept_s: list[float] = []

    def block(self, num_tokens: int) -> float:
        """Tokens per second after the first."""
        engine, backend = self.local.engine, self.local.target.backend
        opened = opening(None, self.local.target.vocabulary_hash, num_tokens)
        self.local.submit(opened)
        self.local.verdict()
        forward, accept = Watched(type(backend).forward), Watched(engine._accept)
        engine._accept = accept
        backend.forward = lambda batch: forward(backend, batch)  # type: ignore[method-assign] # for this block
        began = before = time.perf_counter()
        for _ in range(num_tokens):
            self.local.verdict()
            now = time.perf_counter()
            self.host_s.append(now - before - forward.last_s - accept.last_s)
            self.accept_s.append(accept.last_s)
            before = now
        took_s = time.perf_counter() - began
        del backend.forward
        engine._accept = accept._function
        self.local.close(opened.session)
        return num_tokens / took_s


class Served:
    """A stream to a verifier in another process."""

    def __init__(self, address: str) -> None:
        self._verdicts: asyncio.Queue[Verdict | Opened] = asyncio.Queue()
        self._is_up = asyncio.Event()
        self._stream: PeerStream[Any, Any] = PeerStream(
            address,
            verifier_dial(),
            on_up=lambda _: self._is_up.set(),
            on_answer=self._take,
            on_down=lambda _: None,
        )

    async def __aenter__(self) -> Self:
        self._stream.start()
        await asyncio.wait_for(self._is_up.wait(), LOAD_TIMEOUT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.stop()

    def _take(self, frame: Any) -> None:
        assert self._stream.info is not None
        for answer, _ in read_answers(frame, Limits(), self._stream.info.incarnation):
            if isinstance(answer, Verdict | Opened):
                self._verdicts.put_nowait(answer)

    async def block(self, num_tokens: int) -> float:
        """Tokens per second after the first."""
        info = self._stream.info
        assert info is not None
        opened = opening(info, info.vocabulary_hash or "", num_tokens)
        for item in write_items(opened):
            self._stream.send(item)
        for _ in range(2):
            await self._verdicts.get()
        began = time.perf_counter()
        for _ in range(num_tokens):
            await self._verdicts.get()
        took_s = time.perf_counter() - began
        for item in write_items(Close(opened.session, opened.incarnation)):
            self._stream.send(item)
        return num_tokens / took_s


async def compare(settings: VerifierSettings, num_tokens: int, num_blocks: int) -> Result:
    """Both arms in turns."""
    port = _free_port()
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.effective().items() if value != ""]
    command = [sys.executable, "-m", "verifier", *flags, f"--port={port}"]
    process = subprocess.Popen(command, env=os.environ | {"OMP_WAIT_POLICY": "passive"})  # noqa: ASYNC220 - at once
    try:
        direct = Direct(settings)
        async with Served(f"127.0.0.1:{port}") as served:
            direct.block(num_tokens // 4)
            await served.block(num_tokens // 4)
            direct.host_s.clear()
            speeds, cpu_s = [], []
            for _ in range(num_blocks):
                before = time.process_time(), _cpu_s(process.pid)
                ours = direct.block(num_tokens)
                between = time.process_time()
                speeds.append((ours, await served.block(num_tokens)))
                cpu_s.append((between - before[0], _cpu_s(process.pid) - before[1]))
    finally:
        process.terminate()
        process.wait()
    return Result(
        direct_tokens_per_s=median([each for each, _ in speeds]),
        service_tokens_per_s=median([each for _, each in speeds]),
        service_over_direct=geometric_mean([theirs / ours for ours, theirs in speeds]),
        direct_cpu_ms=statistics.median(ours for ours, _ in cpu_s) * 1e3 / num_tokens,
        service_cpu_ms=statistics.median(theirs for _, theirs in cpu_s) * 1e3 / num_tokens,
        host_ms=statistics.median(direct.host_s) * 1e3,
        accept_ms=statistics.median(direct.accept_s) * 1e3,
    )


def _cpu_s(process_id: int) -> float:
    """CPU time of a process so far; Linux only, to a hundredth of a second."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="target, as for a verifier")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "int8"])
    parser.add_argument("--threads", type=int, default=1, help="threads of the model")
    parser.add_argument("--tokens", type=int, default=64, help="tokens in a block")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of each arm")
    given = parser.parse_args(arguments)
    settings = VerifierSettings(model=given.model, dtype=given.dtype, threads=given.threads, kv_memory_mb=256)
    print(asyncio.run(compare(settings, given.tokens, given.blocks)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
