"""The commands, put together, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from pilotfish.cli.terminal import complain
from pilotfish.errors import PilotfishError

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
HELP = """Text of a large model, faster, and exactly its own.

A drafter proposes tokens, a verifier keeps those that its model would
have written, a coordinator decides how far ahead the drafter may run.

Begin with:
  pilotfish demo                       see it work, beside plain decoding
  pilotfish up                         the three services on this machine
  pilotfish generate "Write a haiku"   ask them, from another terminal

Every command has --help with examples. --debug anywhere shows the
traceback of an error.
"""


def application() -> typer.Typer:
    """The command line."""
    from pilotfish.cli import bench, chat, demo, generate, info, models, plan, simulate, up

    app = typer.Typer(
        name="pilotfish",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Nothing but what the options do: the help stands above."""

    app.command()(up.up)
    app.command()(generate.generate)
    app.command()(chat.chat)
    app.command()(info.info)
    app.command()(plan.plan)
    app.command()(simulate.simulate)
    app.add_typer(models.application(), name="models")
    app.command()(demo.demo)
    app.command(name="demo-pair")(demo.demo_pair)
    app.add_typer(bench.application(), name="bench")
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command.

    Args:
        arguments: of the command line, without the program.

    Returns:
        The exit status: 0; 1 after an error, which is one line on stderr; 2 where the arguments make no sense.
    """
    debug, rest = _take_debug(arguments)
    try:
        application()(args=rest, prog_name="pilotfish")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: let the flush at exit succeed
        return 1
    except PilotfishError as error:
        if debug:
            traceback.print_exc()
        complain(str(error))
        return 1
    return 0


def _take_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether --debug stands before any `--`, and the arguments without it."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return "--debug" in words[:end], [word for word in words[:end] if word != "--debug"] + words[end:]


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print(f"pilotfish {version('pilotfish')}")
        raise typer.Exit
