"""Throughput under load: arms by turns at each number of concurrent requests, through the running services."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TypeAlias

from benchmarks.prompts import Prompt
from benchmarks.report import environment
from benchmarks.run import Encode
from benchmarks.statistics import Estimate, bootstrap
from pilotfish.client import AsyncClient
from pilotfish.gammas import GammaTable
from pilotfish.messages import Speculation


@dataclass(frozen=True, slots=True)
class Load:
    """What is run."""

    prompts: Sequence[Prompt]
    concurrencies: Sequence[int]
    max_tokens: int
    blocks: int  # turns of each arm at each concurrency
    block_s: float  # how long a turn lasts; requests that run then are finished and counted


@dataclass(frozen=True, slots=True)
class Block:
    """One turn of an arm."""

    arm: str
    concurrency: int
    turn: int
    num_tokens: int
    seconds: float
    first_token_s: float  # mean

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


Arm: TypeAlias = Callable[[int], Speculation]
"""How requests speculate where so many run at a time."""


def arms_of(speculator: str, gammas: Sequence[int], table: GammaTable | None = None) -> dict[str, Arm]:
    """Plain, by the price, each fixed γ, and a table by how many requests run."""
    arms: dict[str, Arm] = {
        "plain": lambda _: Speculation(is_off=True),
        "auto": lambda _: Speculation(speculator=speculator),
    }
    for gamma in gammas:
        if gamma:
            arms[f"γ={gamma}"] = partial(_fixed, speculator, GammaTable.fixed(gamma))
    if table is not None:
        arms["table"] = partial(_fixed, speculator, table)
    return arms


def _fixed(speculator: str, table: GammaTable, num_requests: int) -> Speculation:
    gamma = table.gamma(num_requests)
    return Speculation(gamma=gamma, speculator=speculator) if gamma else Speculation(is_off=True)


async def measure(
    address: str, load: Load, arms: Mapping[str, Arm], encode: Encode, tell: Callable[[str], None]
) -> list[Block]:
    """All blocks, arms in a new order each turn; one turn before, unmeasured, warms up."""
    chance = random.Random(0)
    prompts = [(prompt, encode(prompt)) for prompt in load.prompts]
    blocks: list[Block] = []
    async with AsyncClient(address) as client:
        for concurrency in load.concurrencies:
            for turn in range(-1, load.blocks):
                for arm in chance.sample(list(arms), len(arms)):
                    block = await _block(client, load, arms[arm](concurrency), prompts, (arm, concurrency, turn))
                    tell(f"{concurrency} at once, turn {turn}, {arm}: {block.tokens_per_s:.1f} tokens/s")
                    if turn >= 0:
                        blocks.append(block)
    return blocks


async def _block(
    client: AsyncClient,
    load: Load,
    speculation: Speculation,
    prompts: Sequence[tuple[Prompt, tuple[int, ...]]],
    name: tuple[str, int, int],
) -> Block:
    arm, concurrency, turn = name
    start_s = time.perf_counter()
    done = await asyncio.gather(
        *(_worker(client, load, speculation, prompts, number, start_s) for number in range(concurrency))
    )
    seconds = time.perf_counter() - start_s
    firsts = [first for worker in done for first in worker[1]]
    return Block(arm, concurrency, turn, sum(worker[0] for worker in done), seconds, sum(firsts) / len(firsts))


async def _worker(
    client: AsyncClient,
    load: Load,
    speculation: Speculation,
    prompts: Sequence[tuple[Prompt, tuple[int, ...]]],
    number: int,
    start_s: float,
) -> tuple[int, list[float]]:
    """One request after another until the time is over; tokens, and times to first tokens."""
    num_tokens, index = 0, number
    firsts: list[float] = []
    while not firsts or time.perf_counter() - start_s < load.block_s:
        prompt, ids = prompts[index % len(prompts)]
        index += 1
        began_s, first_s = time.perf_counter(), None
        chunks = client.generate(
            ids, max_tokens=load.max_tokens, temperature=0.0, speculation=speculation, workload=prompt.set
        )
        async for chunk in chunks:
            num_tokens += len(chunk.ids)
            first_s = first_s or time.perf_counter() - began_s
        firsts.append(first_s or 0.0)
    return num_tokens, firsts


def ratios(blocks: Sequence[Block], concurrency: int, arm: str, base: str) -> Estimate:
    """Rate of an arm over another's in the same turn, geometric mean over turns."""
    rates = {(block.arm, block.turn): block.tokens_per_s for block in blocks if block.concurrency == concurrency}
    turns = sorted({turn for _, turn in rates})
    return bootstrap([rates[arm, turn] / rates[base, turn] for turn in turns], geometric_mean)


def table(blocks: Sequence[Block], arms: Sequence[str]) -> str:
    """Every arm over plain, and ours over the best fixed γ, chosen on the even turns and compared on the odd ones."""
    lines = ["| at once | " + " | ".join(f"{arm} × plain" for arm in arms if arm != "plain") + " | auto × best fixed |"]
    lines.append("|---" * (len(arms) + 1) + "|")
    for concurrency in sorted({block.concurrency for block in blocks}):
        cells = [str(ratios(blocks, concurrency, arm, "plain")) for arm in arms if arm != "plain"]
        lines.append(f"| {concurrency} | " + " | ".join(cells) + f" | {_against_best(blocks, concurrency, arms)} |")
    return "\n".join(lines)


def _against_best(blocks: Sequence[Block], concurrency: int, arms: Sequence[str]) -> str:
    here = [block for block in blocks if block.concurrency == concurrency]
    chosen_on = [block for block in here if block.turn % 2 == 0]
    compared_on = [block for block in here if block.turn % 2] or chosen_on
    fixed = [arm for arm in arms if arm != "auto"]
    best = max(fixed, key=lambda arm: geometric_mean([b.tokens_per_s for b in chosen_on if b.arm == arm]))
    return f"{ratios(compared_on, concurrency, 'auto', best)} ({best})"


def write(directory: Path, name: str, load: Load, blocks: Sequence[Block]) -> Path:
    """All blocks, with what was asked."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    asked = {**asdict(load), "prompts": [str(prompt) for prompt in load.prompts]}
    content = {"environment": environment(), "load": asked, "blocks": [asdict(block) for block in blocks]}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path
