"""`pilotfish models`: what is known by name, and what is in the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from pilotfish.cli.terminal import Terminal


def application() -> typer.Typer:
    """The commands about models."""
    app = typer.Typer(help="Fetch models that are known by name, and list them.", no_args_is_help=True)
    app.command(name="list")(list_models)
    app.command()(fetch)
    return app


def list_models() -> None:
    """List the models known by name, and which of them are here.

    A --model argument may also be a hub id (owner/name), a directory, a
    .gguf file or a table model (table:FILE.json).
    """
    from pilotfish import models

    terminal = Terminal.of_process()
    for preset in models.PRESETS.values():
        here = "here" if models.is_fetched(preset.name) else f"{preset.size_bytes / 1e6:,.0f} MB to fetch"
        name = f"{preset.name} (default)" if preset.is_default else preset.name
        terminal.write(f"{name:<24} {here:<18} {preset.hub_id}; licence: {preset.licence}\n")
    terminal.say(f"kept in {models.cache_directory()}; another place: PILOTFISH_CACHE")


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset; `pilotfish models list` has them.")],
) -> None:
    """Fetch a model into the cache, verify every byte, print where it is.

    What has arrived is kept, so an interrupted fetch goes on where it was.
    A model that is here already is verified.

    Example:
      pilotfish models fetch smollm2-135m
    """
    from pilotfish import models
    from pilotfish.progress import terminal_progress

    with terminal_progress() as progress:
        directory = models.fetch(name, progress)
    Terminal.of_process().write(f"{directory}\n")
