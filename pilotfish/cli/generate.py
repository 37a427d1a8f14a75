"""`pilotfish generate`: one answer, its tokens told apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.cli import options
from pilotfish.cli.info import reaching, with_port
from pilotfish.cli.render import Look, waterfall
from pilotfish.cli.reply import Reply, receive
from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError
from pilotfish.messages import Chat, Message
from pilotfish.request import Options

CUT_OFF = 130


def generate(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")] = None,
    is_chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="A user's message in the model's chat template, or text to be continued."),
    ] = True,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message, with --chat.")] = None,
    host: options.Host = "localhost:50050",
    max_tokens: options.MaxTokens = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given several times.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    gamma: options.Gamma = None,
    no_speculation: options.NoSpeculation = False,
    rule: options.RuleOption = None,
    speculator: options.Speculator = None,
    first_token_ms: options.FirstTokenMs = None,
    token_ms: options.TokenMs = None,
    tenant: options.Tenant = None,
    marks: options.Marks = None,
    trace: Annotated[bool, typer.Option("--trace", help="Then show every round on a time axis.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, when all is done.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The answer and nothing else.")] = False,
) -> None:
    """Generate an answer, as it comes, and say how it came about.

    Text goes to stdout, what is said about it to stderr. On a terminal,
    tokens show how they came about: accepted (green) were drafted and held;
    a correction (red) replaced a draft token that did not hold; a bonus
    (cyan) came on top when all held; plain ones were not drafted. Without
    colour, and with --marks, brackets say the same. A pipe gets text alone.

    Examples:
      pilotfish generate "Why is the sky blue?"
      pilotfish generate --raw "def fibonacci(n):" -n 64 -t 0 --trace
      git diff | pilotfish generate - --system "Summarise this." --json
    """
    from pilotfish.client import Client

    terminal = Terminal.of_process()
    text = _prompt(prompt, file)
    wishes = Options(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=ignore_eos,
        speculation=options.speculation_of(gamma, rule, speculator, is_off=no_speculation),
        targets=options.targets_of(first_token_ms, token_ms),
        include_rounds=trace or as_json,
    )
    if not text.strip():
        raise ConfigurationError("the prompt is empty; there is nothing to answer or to continue")
    asked = _conversation(text, system) if is_chat else text
    look = None if as_json else Look.of(terminal.out, marks)
    with reaching(host), Client(with_port(host), tenant=tenant) as client:
        reply = receive(client.generate(asked, **wishes), None if as_json else terminal.write, look)
    if as_json:
        terminal.write(json.dumps(reply.as_dict(), ensure_ascii=False) + "\n")
    else:
        terminal.write("" if reply.text.endswith("\n") else "\n")
        if not quiet:
            terminal.say(reply.summary(), style="dim")
            if look is not None:
                terminal.say_legend(look)
    if trace:
        _show_rounds(terminal, reply)
    if reply.finished is None:
        raise typer.Exit(CUT_OFF)


def _prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt's text, from wherever it was said to be.

    Raises:
        ConfigurationError: from two places, from none, or from a file that cannot be read.
    """
    if (prompt is None) == (file is None):
        raise ConfigurationError('give a prompt ("…", or - for stdin) or --file FILE, one of them')
    if file is None:
        assert prompt is not None
        return sys.stdin.read() if prompt == "-" else prompt
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--file {file}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--file {file} is not UTF-8 text: {error}; convert it first") from error


def _conversation(text: str, system: str | None) -> Chat:
    before = () if system is None else (Message("system", system),)
    return Chat((*before, Message("user", text)))


def _show_rounds(terminal: Terminal, reply: Reply) -> None:
    if reply.started is not None and reply.started.trace_id:
        terminal.say(f"trace {reply.started.trace_id}", style="dim")
    has_unicode = terminal.error.encoding.startswith("utf")
    terminal.error.print(waterfall(reply.rounds, terminal.error.width, has_unicode))
