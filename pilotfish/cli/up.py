"""`pilotfish up`: the three services on this machine, as one thing to start and to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish import models
from pilotfish.cli.local import COORDINATOR_PORT, Local, fetch, read_config, services
from pilotfish.cli.processes import Fleet, Show
from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError
from pilotfish.gammas import GammaTable

READY_TIMEOUT_S = 300.0
INTERRUPTED = 130
COLOURS = {"coordinator": "cyan", "drafter": "yellow", "verifier": "blue"}
NUMBERS = {"port": (0, 65535), "threads": (1, 1024), "timeout": (1, 86400)}  # and their bounds
OPTIONS = ("model", "drafter", "gamma", "dtype", "device", "host", "port", "threads", "timeout")


def up(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="The target: a preset (`pilotfish models list`), hub id, directory, .gguf file or table:FILE.json.",
        ),
    ] = models.DEFAULT_PRESET,
    drafter: Annotated[
        str,
        typer.Option(
            metavar="DRAFTER",
            help="What drafts: ngram (copies from the text so far), model:MODEL (a smaller one with the same "
            "vocabulary), none.",
        ),
    ] = "ngram",
    gamma: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Tokens drafted in a round, or a table of them by how many sessions run, such as 1:8,4:4,16:2,64:0; "
            "the coordinator's own by default.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="float32, bfloat16 or int8.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …")] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address the coordinator listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Its port; 0: any that is free.")] = (
        COORDINATOR_PORT
    ),
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads of each model on a CPU.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="How long the services may take to be ready.")
    ] = READY_TIMEOUT_S,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file; an option given here wins over it.")
    ] = None,
) -> None:
    r"""Start the three services on this machine, and stop them together.

    Their logs come out here, each line with its service's name. Ctrl-C stops
    them in order; if one ends by itself the others are stopped too and the
    exit status is 1. None is started again in silence, none is left behind.

    Examples:
      pilotfish up
      pilotfish up --model ./big --drafter model:./small --gamma 4
      pilotfish up --gamma 1:8,4:4,16:2,64:0
      pilotfish up --config pilotfish.toml

    A config file has these options as keys, and a table of settings for
    each service; `python -m verifier --help` lists those:
      model = "smollm2-135m"
      \[verifier]
      num_kv_pages = 2048
    """
    given = {
        "model": model, "drafter": drafter, "gamma": gamma, "dtype": dtype, "device": device, "host": host,
        "port": port, "threads": threads, "timeout": timeout,
    }  # fmt: skip
    settings: dict[str, dict[str, str]] = {}
    if config is not None:
        from_file, settings = read_config(config)
        given |= _checked(from_file, config, set(_on_command_line(context)))
    timeout_s = float(given.pop("timeout"))  # type: ignore[arg-type]
    local = Local(**given, settings=settings)  # type: ignore[arg-type]
    terminal = Terminal.of_process()
    with running(local, log(terminal), timeout_s, tell=_tell(terminal), is_waited_for=True) as fleet:
        address = fleet.address("coordinator")
        terminal.say(f"ready: {local.model}, drafted by {local.drafter}, at {address}. Try:", style="bold green")
        terminal.say(f'  pilotfish generate "Why is the sky blue?" --host {address}')
        fleet.wait()
        terminal.say("stopping …")


@contextmanager
def running(
    local: Local,
    show: Show,
    timeout_s: float = READY_TIMEOUT_S,
    tell: Callable[[str], None] | None = None,
    *,
    is_waited_for: bool = False,
) -> Iterator[Fleet]:
    """The services, ready, for as long as the block runs; all are gone after it, however it ends.

    Models that are not here yet are fetched first, with progress on stderr.

    Args:
        local: what to start.
        show: gets every line of their logs.
        timeout_s: until all are ready.
        tell: hears which are not ready yet.
        is_waited_for: the block does nothing but `Fleet.wait`, which returns the signal that asks for the end. Else a
            signal interrupts the block.

    Raises:
        KeyboardInterrupt: a signal asked for the end, of a block that works.
        PilotfishError: something of it cannot be had or started.
        typer.Exit: a signal asked for the end before they were ready.
    """
    local.check()
    fetch(local)
    fleet = Fleet(services(local), show)
    with fleet.signals():
        try:
            fleet.start()
            if fleet.wait_until_ready(timeout_s, tell) is not None:
                raise typer.Exit(INTERRUPTED)
            with nullcontext() if is_waited_for else fleet.at_work():
                yield fleet
        finally:
            for name in fleet.stop():
                show(name, "had to be killed: it did not end in time")


def log(terminal: Terminal) -> Show:
    """Lines of the services' logs, each behind its service's name, on stderr."""
    lock = threading.Lock()

    def show(service: str, line: str) -> None:
        with lock:
            terminal.error.print(f"{service:>11} │ ", style=COLOURS.get(service, ""), end="", markup=False)
            terminal.error.print(line, markup=False, soft_wrap=True)

    return show


def _tell(terminal: Terminal) -> Callable[[str], None]:
    """Say who is waited for: when it changes, and every ten seconds."""
    begin = time.monotonic()
    said: list[tuple[str, int]] = []

    def tell(waiting: str) -> None:
        now = (waiting, int(time.monotonic() - begin) // 10)
        if not said or said[-1] != now:
            said.append(now)
            terminal.say(f"waiting for {waiting} ({time.monotonic() - begin:.0f} s)", style="dim")

    return tell


def _on_command_line(context: typer.Context) -> Iterator[str]:
    """Options that were given as such, and not left to their default."""
    for name in OPTIONS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield name


def _checked(from_file: dict[str, Any], path: Path, given: set[str]) -> dict[str, Any]:
    """The file's options, those given on the command line left out.

    Raises:
        ConfigurationError: a key that is no option, or a value of another type than it has.
    """
    for key, value in from_file.items():
        if key not in OPTIONS:
            raise ConfigurationError(f"{path}: no option {key!r}; there are {', '.join(OPTIONS)}", field=key)
        if key == "gamma":
            _check_gammas(path, value)
        elif key not in NUMBERS and not isinstance(value, str):
            raise ConfigurationError(f"{path}: {key} is {value!r}; it takes a text", field=key)
        if key in NUMBERS:
            least, most = NUMBERS[key]
            if type(value) not in {int, float} or not least <= value <= most:
                what = f"it takes a number from {least} to {most}"
                raise ConfigurationError(f"{path}: {key} is {value!r}; {what}", field=key)
    texts = {"gamma": str(from_file["gamma"])} if "gamma" in from_file else {}
    return {key: value for key, value in (from_file | texts).items() if key not in given}


def _check_gammas(path: Path, value: object) -> None:
    try:
        GammaTable.parse(str(value))
    except ValueError as error:
        raise ConfigurationError(f"{path}: gamma is {value!r}: {error}", field="gamma") from error


def unseen(_service: str, _line: str) -> None:
    """Logs that nobody looks at; the last lines are in the error all the same."""
