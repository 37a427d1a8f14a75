"""`pilotfish chat`: a conversation, its tokens told apart."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from pilotfish.cli import options
from pilotfish.cli.info import reaching, with_port
from pilotfish.cli.render import Look
from pilotfish.cli.reply import Reply, receive
from pilotfish.cli.terminal import Terminal
from pilotfish.errors import PilotfishError
from pilotfish.messages import Chat, Message, Speculation
from pilotfish.request import Options

HELP = """\
/help               this
/reset              forget the conversation (a system message stays)
/system TEXT        set the system message and begin again
/plain              speculation off and on again
/gamma N            draft exactly N tokens a round; without N, as the coordinator is set
/quit, Ctrl-D       leave
Ctrl-C              stop the answer that is coming; what has come stays in the conversation"""


@dataclass(slots=True)
class Conversation:
    """What was said so far, and how the next answer is to be made."""

    options: Options
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, text: str) -> Chat:
        """The prompt that a user's message makes; the message is kept."""
        self.messages.append(Message("user", text))
        before = () if self.system is None else (Message("system", self.system),)
        return Chat((*before, *self.messages))

    def hear(self, reply: Reply) -> None:
        """Keep the answer, or forget the message where none came: roles must alternate."""
        if reply.text:
            self.messages.append(Message("assistant", reply.text))
        else:
            self.messages.pop()

    def obey(self, line: str) -> str | None:
        """Do what a line beginning with / says.

        Returns:
            What is to be said about it; None: leave.
        """
        command, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match command:
            case "/quit" | "/exit":
                return None
            case "/help":
                return HELP
            case "/reset":
                self.messages.clear()
                return "forgotten"
            case "/system":
                self.system = rest or None
                self.messages.clear()
                return f"system message: {self.system or 'none'}; begun again"
            case "/plain":
                is_off = not self._speculation.is_off
                self.options["speculation"] = Speculation(is_off=is_off)
                return f"speculation {'off' if is_off else 'on'}"
            case "/gamma":
                return self._set_gamma(rest)
        return f"no command {command}; /help lists them"

    @property
    def _speculation(self) -> Speculation:
        return self.options.get("speculation") or Speculation()

    def _set_gamma(self, text: str) -> str:
        if text and not text.isdecimal():
            return f"/gamma takes a number, not {text!r}"
        gamma = int(text) if text else None
        self.options["speculation"] = replace(self._speculation, is_off=False, gamma=gamma)
        return f"γ: {text or 'as the coordinator is set'}"


def chat(
    host: options.Host = "localhost:50050",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    max_tokens: options.MaxTokens = None,
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
) -> None:
    """Talk with the model.

    Tokens show how they came about, as in `pilotfish generate`. Ctrl-C stops
    an answer and not the program; /help says what else can be typed.

    Example:
      pilotfish chat --system "You answer in one sentence." -t 0.7
    """
    from pilotfish.client import Client

    terminal = Terminal.of_process()
    wishes = Options(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        speculation=options.speculation_of(gamma, rule, speculator, is_off=no_speculation),
        targets=options.targets_of(first_token_ms, token_ms),
    )
    conversation = Conversation(wishes, system)
    look = Look.of(terminal.out, marks)
    with Client(with_port(host), tenant=tenant) as client:
        with reaching(host):
            served = client.info()
        terminal.say(f"{served.model} at {host}; /help lists what can be typed, Ctrl-D leaves", style="dim")
        terminal.say_legend(look)
        for line in _lines(terminal):
            if line.startswith("/"):
                said = conversation.obey(line)
                if said is None:
                    return
                terminal.say(said, style="dim")
                continue
            try:
                reply = receive(client.generate(conversation.ask(line), **conversation.options), terminal.write, look)
            except PilotfishError as error:
                conversation.messages.pop()
                terminal.say(str(error), style="red")
                continue
            conversation.hear(reply)
            terminal.write("\n")
            terminal.say(reply.summary(), style="dim")


def _lines(terminal: Terminal) -> Iterator[str]:
    """What is typed, empty lines left out, to the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` a history and line editing
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            terminal.write("\n")
            return
        except KeyboardInterrupt:
            terminal.say("\nCtrl-D or /quit leaves", style="dim")
            continue
        if line.strip():
            yield line
