"""`pilotfish bench`: the measurements of `benchmarks`, as commands."""

from __future__ import annotations

import typer


def application() -> typer.Typer:
    """The measurements."""
    from benchmarks import commands

    return commands.application()
