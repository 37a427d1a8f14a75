"""Memory of the three services over many requests, and whether they give back what they held."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.prompts import of_all_kinds
from pilotfish.cli.local import Local
from pilotfish.cli.processes import Fleet, free_port
from pilotfish.cli.up import running, unseen
from pilotfish.client import AsyncClient
from pilotfish.messages import Speculation
from pilotfish.request import Prompt
from pilotfish.tokenizer import load_tokenizer

NUM_SAMPLES = 5  # over the run, the first after the warm-up
# Half as many requests come before the first sample. Memory rises while passes of new shapes are met (kernels are kept
# by shape) and pages of KV are used for the first time; then it must not any more.
WARM_UP_SHARE = 2
USED = "pilotfish_kv_pages_used"
SESSIONS = "pilotfish_sessions"
IDLE_TIMEOUT_S = 10.0
TABLE_IDS = 8  # of a prompt for a table model
KV_MEMORY_MB = 128  # a pool is resident from where it was used first, so it must be small enough for the warm-up


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after so many requests, those of the warm-up not counted."""

    num_requests: int
    resident_mb: Mapping[str, float]  # by service


def run(model: str, dtype: str, count: int, concurrency: int, max_tokens: int, out: Path) -> bool:
    """Measure, print and write; whether the pool was empty in the end."""
    ports = {role: free_port() for role in ("coordinator", "verifier")}
    settings = {role: {"metrics_port": str(port)} for role, port in ports.items()}
    settings["verifier"]["kv_memory_mb"] = str(KV_MEMORY_MB)
    local = Local(model, dtype=dtype, port=0, threads=1, settings=settings)
    ask = _asks(model)
    with running(local, unseen) as fleet:
        samples = asyncio.run(_load(fleet, ask, count, concurrency, max_tokens))
        left = _wait_until_idle(ports["verifier"])
    first, last = samples[0], samples[-1]
    head = ("requests", *first.resident_mb)
    rows = [(str(one.num_requests), *(f"{mb:.1f} MB" for mb in one.resident_mb.values())) for one in samples]
    growth = {name: last.resident_mb[name] - first.resident_mb[name] for name in first.resident_mb}
    rows.append(("growth", *(f"{mb:+.1f} MB" for mb in growth.values())))
    print(report.markdown(head, rows))
    print(f"\nwith no request: {left[USED]:.0f} pages of KV held, {left[SESSIONS]:.0f} sessions")
    facts = {"samples": samples, "left": left, "growth_mb": growth, "model": model, "dtype": dtype}
    path = report.write(out, f"memory-{time.strftime('%Y%m%d-%H%M%S')}", facts, [])
    print(f"\nraw data: {path}")
    return not any(left.values())


def _asks(model: str) -> Callable[[int], Prompt]:
    """The prompt of each request, no two of which are the same: texts of all kinds, ids where the target is a table."""
    if model.startswith("table:"):
        size = len(load_tokenizer(model).vocabulary)
        return lambda index: [index // size**place % size for place in range(TABLE_IDS)]
    prompts = of_all_kinds(40, is_held_out=None)
    return lambda index: [{"role": "user", "content": f"{prompts[index % len(prompts)].text}\n({index})"}]


async def _load(
    fleet: Fleet, ask: Callable[[int], Prompt], count: int, concurrency: int, max_tokens: int
) -> list[Sample]:
    slots = asyncio.Semaphore(concurrency)
    samples: list[Sample] = []
    async with AsyncClient(fleet.address("coordinator")) as client:

        async def one(index: int) -> None:
            async with slots:
                speculation = Speculation(is_off=index % 4 == 3)
                await client.complete(ask(index), max_tokens=max_tokens, temperature=0.0, speculation=speculation)

        warm_up = max(1, count // WARM_UP_SHARE)
        marks = [warm_up + count * step // (NUM_SAMPLES - 1) for step in range(NUM_SAMPLES)]
        done = 0
        for mark in marks:
            await asyncio.gather(*(one(index) for index in range(done, mark)))
            done = mark
            samples.append(Sample(done - warm_up, resident_mb(fleet)))
    return samples


def resident_mb(fleet: Fleet) -> dict[str, float]:
    """Resident memory of every service, in MB; Linux only."""
    return {name: _resident_kb(process.pid) * 1024 / 1e6 for name, process in fleet.processes.items()}


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _wait_until_idle(port: int) -> dict[str, float]:
    """Pages and sessions that the verifier holds when all requests have ended: 0, or what is left after a while."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        left = _metrics(port, (USED, SESSIONS))
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _metrics(port: int, names: Sequence[str]) -> dict[str, float]:
    """Values of gauges, their labels summed."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    values = dict.fromkeys(names, 0.0)
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in values:
            values[name] += float(line.rpartition(" ")[2])
    return values
