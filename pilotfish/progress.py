"""Progress of something long: a protocol, and a bar in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO


class Progress(Protocol):
    """Told how far a step has come."""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """`done` of `total` units (bytes, where there are any); total None: nobody knows how long it takes."""


def quiet(step: str, done: int, total: int | None) -> None:
    """Progress that nobody sees."""


@contextmanager
def terminal_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A bar per step on stderr; where that is no terminal, one line when a step begins."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(file=stream)) as bars:

        def show(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield show


class _Lines:
    """One line when a step begins."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps: set[str] = set()

    def __call__(self, step: str, done: int, total: int | None) -> None:
        if step not in self._steps:
            self._steps.add(step)
            print(f"{step} …", file=self._stream, flush=True)
