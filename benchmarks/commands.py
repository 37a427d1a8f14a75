"""`pilotfish bench`: the measurements as commands."""

from __future__ import annotations

import typer


def application() -> typer.Typer:
    """The measurements."""
    return typer.Typer(help="Measure.", no_args_is_help=True)
