"""Services as processes that can be frozen, killed and started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

_READY = re.compile(r"is ready on (\S+)")


class Process:
    """One service: `python -m module arguments`."""

    def __init__(self, module: str, arguments: tuple[str, ...]) -> None:
        self.module = module
        self.arguments = arguments
        self.address = ""
        self.last_lines: deque[str] = deque(maxlen=40)
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]

    async def start(self) -> None:
        """Run it, again on the same port if it ran before; returns when it is ready."""
        port = self.address.rpartition(":")[2] or "0"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self.module, "--port", port, *self.arguments,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        )  # fmt: skip
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.last_lines.append(line.decode())
            if found := _READY.search(line.decode()):
                self.address = found[1]
                break
        else:
            raise AssertionError(f"{self.module} never said that it is ready:\n{''.join(self.last_lines)}")
        self._reader = asyncio.create_task(self._read(self._process.stderr))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.last_lines.append(line.decode())

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """The exit status, once it has ended; negative: killed by that signal."""
        status = await self._process.wait()
        await self._reader
        return status

    async def kill(self) -> None:
        """End it without a chance to say good-bye."""
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()


class Fleet:
    """The processes of a test, which end with it."""

    def __init__(self, exits: AsyncExitStack) -> None:
        self._exits = exits

    async def start(self, module: str, *arguments: str) -> Process:
        process = Process(module, arguments)
        await process.start()
        self._exits.push_async_callback(process.kill)
        return process

    async def start_all(self, *each: tuple[str, ...]) -> list[Process]:
        """Several at once, each given as module and arguments."""
        return list(await asyncio.gather(*(self.start(*command) for command in each)))


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """Processes that end with the block."""
    async with AsyncExitStack() as exits:
        yield Fleet(exits)
