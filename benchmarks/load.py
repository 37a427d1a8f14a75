"""Throughput under load: arms by turns at each number of concurrent requests, through the running services.

A block is one turn of one arm: so many sessions at once, each asking one thing after another. It counts from when all
of them have their first token until a number of tokens has come that is the same for every arm; what still runs then is
cancelled. So reading the first prompts does not count, no session is ever missing, and arms differ in their time for
about the same work.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from benchmarks.workloads import Ask, Workload, salted
from pilotfish.client import AsyncClient
from pilotfish.gammas import GammaTable
from pilotfish.messages import Speculation


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer, at one coordinator."""

    name: str
    address: str
    speculator: str
    gammas: GammaTable | None  # by how many requests run; None: by the price; γ of 0: plain decoding

    def speculation(self, num_requests: int) -> Speculation:
        """How a request speculates where so many run."""
        if self.gammas is None:
            return Speculation(speculator=self.speculator)
        gamma = self.gammas.gamma(num_requests)
        return Speculation(gamma=gamma, speculator=self.speculator) if gamma else Speculation(is_off=True)


@dataclass(frozen=True, slots=True)
class Load:
    """What is run."""

    workloads: Sequence[Workload]
    concurrencies: Sequence[int]
    turns: int  # blocks of each arm at each point
    min_tokens: int  # of a block
    num_answers: int = 1  # that a block has room for in each session, one after another
    has_labels: bool = False  # say what kind of text a request is, as a site might
    salt_ids: int | None = None  # size of the vocabulary; then no prompt is known to any cache

    def num_tokens(self, workload: Workload, concurrency: int, turn: int) -> int:
        """Of a block; a quarter where it only warms up."""
        whole = max(self.min_tokens, self.num_answers * concurrency * workload.max_tokens)
        return whole if turn >= 0 else whole // 4


@dataclass(frozen=True, slots=True)
class Block:
    """One turn of an arm, as it went."""

    workload: str
    concurrency: int
    arm: str
    turn: int
    num_tokens: int
    seconds: float
    first_token_s: tuple[float, ...]  # of requests that came while the others ran: no session's first
    num_decoded: int  # of the tokens, those after the first piece of their answer
    decode_s: float  # that all sessions together took for them
    num_drafted: int = 0  # of requests that came to their end
    num_accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decoding(self) -> Block:
        """The block as if answers began at once: reading a prompt and opening a session take time, whoever drafts.

        Its tokens are those after the first piece of each answer, its time is theirs alone.
        """
        return replace(self, num_tokens=self.num_decoded, seconds=self.decode_s / self.concurrency)

    @property
    def point(self) -> tuple[str, int]:
        return self.workload, self.concurrency


def arms_of(address: str, speculator: str, gammas: Sequence[int], table: GammaTable | None = None) -> list[Arm]:
    """Plain, by the price, each fixed γ, and a table by how many requests run."""
    arms = {"plain": GammaTable.fixed(0), "auto": None}
    arms |= {f"γ={gamma}": GammaTable.fixed(gamma) for gamma in gammas if gamma}
    if table is not None:
        arms["table"] = table
    return [Arm(name, address, speculator, rows) for name, rows in arms.items()]


async def measure(
    load: Load,
    arms: Sequence[Arm],
    tell: Callable[[str], None],
    keep: Callable[[Sequence[Block]], None] = lambda _: None,
) -> list[Block]:
    """All blocks, arms in a new order each turn; one turn before, unmeasured, warms up.

    Args:
        load: what is run.
        arms: of different names.
        tell: hears of every block.
        keep: is given all blocks whenever a turn is over, so that what was measured survives a run that is cut off.
    """
    chance = random.Random(0)
    blocks: list[Block] = []
    async with AsyncExitStack() as stack:
        addresses = {arm.address for arm in arms}
        clients = {address: await stack.enter_async_context(AsyncClient(address)) for address in addresses}
        for workload, concurrency, turn in _turns(load):
            for arm in chance.sample(arms, len(arms)):
                sessions = Sessions(clients[arm.address], arm, load, workload, concurrency, turn)
                block = await sessions.run()
                warms = "warm up " if turn < 0 else ""
                where = f"{workload.name}, {concurrency} at once, turn {turn}"
                tell(f"{warms}{where}, {arm.name}: {block.tokens_per_s:.1f} tokens/s in {block.seconds:.1f} s")
                if turn >= 0:
                    blocks.append(block)
            keep(blocks)
    return blocks


def num_blocks(load: Load, arms: Sequence[Arm]) -> int:
    """How many will be told, those that warm up aside."""
    return len(load.workloads) * len(load.concurrencies) * load.turns * len(arms)


def _turns(load: Load) -> Iterator[tuple[Workload, int, int]]:
    for workload in load.workloads:
        for concurrency in load.concurrencies:
            for turn in range(-1, load.turns):
                yield workload, concurrency, turn


@dataclass(slots=True)
class Sessions:
    """The sessions of one block, and what has come of them."""

    client: AsyncClient
    arm: Arm
    load: Load
    workload: Workload
    concurrency: int
    turn: int
    num_tokens: int = 0  # since all sessions had their first
    num_waiting: int = 0  # sessions without their first token
    counts_since_s: float | None = None
    ended_s: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    num_decoded: int = 0
    decode_s: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Block:
        """Until so many tokens have come.

        Raises:
            PilotfishError: a request failed.
        """
        self.num_waiting = self.concurrency
        workers = [asyncio.create_task(self._worker(number)) for number in range(self.concurrency)]
        over = asyncio.create_task(self.is_over.wait())
        done, _ = await asyncio.wait([*workers, over], return_when=asyncio.FIRST_COMPLETED)
        for task in [*workers, over]:
            task.cancel()
        await asyncio.gather(*workers, over, return_exceptions=True)
        for task in done - {over}:
            task.result()  # raises: no session ends by itself
        assert self.counts_since_s is not None
        return Block(
            self.workload.name,
            self.concurrency,
            self.arm.name,
            self.turn,
            self.num_tokens,
            self.ended_s - self.counts_since_s,
            tuple(self.first_token_s),
            self.num_decoded,
            self.decode_s,
            self.num_drafted,
            self.num_accepted,
        )

    async def _worker(self, number: int) -> None:
        for index, ask in enumerate(self.workload.of_worker(number, self.concurrency, self.turn)):
            await self._answer(self._salted(ask, number, index), is_first=index == 0)

    def _salted(self, ask: Ask, worker: int, index: int) -> Ask:
        """The same for every arm."""
        if self.load.salt_ids is None:
            return ask
        turn = 1000 * self.concurrency + self.turn + 1
        return salted(ask, (1024 * turn + worker) * 64 + index, self.load.salt_ids)

    async def _answer(self, ask: Ask, *, is_first: bool) -> None:
        began_s, last_s = time.perf_counter(), None
        answer = self.client.generate(
            ask.prompt,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            speculation=self.arm.speculation(self.concurrency),
            workload=ask.kind if self.load.has_labels else "",
        )
        async for chunk in answer:
            now_s = time.perf_counter()
            self._count(len(chunk.ids), now_s, last_s)
            if chunk.ids:
                if last_s is None:
                    self._began(now_s, None if is_first else now_s - began_s, is_first=is_first)
                last_s = now_s
            if chunk.finished is not None:
                self.num_drafted += chunk.finished.statistics.num_drafted_tokens
                self.num_accepted += chunk.finished.statistics.num_accepted_tokens
        if last_s is None:  # an answer without a token
            self._began(time.perf_counter(), None, is_first=is_first)

    def _began(self, now_s: float, first_token_s: float | None, *, is_first: bool) -> None:
        """An answer has its first piece."""
        if first_token_s is not None:
            self.first_token_s.append(first_token_s)
        self.num_waiting -= is_first
        if not self.num_waiting and self.counts_since_s is None:
            self.counts_since_s = now_s

    def _count(self, num_tokens: int, now_s: float, last_s: float | None) -> None:
        """A piece has come, so long after the one before it; none was before the first of an answer."""
        if self.counts_since_s is None or self.is_over.is_set():
            return
        self.num_tokens += num_tokens
        if last_s is not None:
            self.num_decoded += num_tokens
            self.decode_s += now_s - max(last_s, self.counts_since_s)
        if self.num_tokens >= self.load.num_tokens(self.workload, self.concurrency, self.turn):
            self.ended_s = now_s
            self.is_over.set()
