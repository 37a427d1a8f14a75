"""`pilotfish demo`: the three services, a real model, and speculation beside plain decoding."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.rule import Rule as Line
from rich.table import Table

from pilotfish.cli.local import Local
from pilotfish.cli.processes import Fleet, serves
from pilotfish.cli.render import Look
from pilotfish.cli.reply import Reply, receive
from pilotfish.cli.terminal import Terminal
from pilotfish.cli.up import log, running, unseen
from pilotfish.messages import Chat, Chunk, Message, Speculation

if TYPE_CHECKING:
    from pilotfish.client import Client

PAIR = ("qwen2.5-coder-1.5b", "model:qwen2.5-coder-0.5b")
GAMMAS, PAIR_GAMMAS = (1, 2, 4, 8), (2, 4)
SHOWN_GAMMA = 4
NOISE = 1.15  # a ratio under it is no gain: runs of one setting differ by as much
READY_TIMEOUT_S = 600.0
CHAT_PROMPT = "Why do leaves change their colour in autumn? Answer in a few sentences."


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt of the demo, and why it is there."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Runs:
    """How much is run."""

    max_tokens: int
    repeats: int
    gammas: Sequence[int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, answered by turns: plain (γ 0) and with every γ."""

    case: Case
    replies: Mapping[int, Sequence[Reply]]

    @property
    def gammas(self) -> list[int]:
        return [gamma for gamma in self.replies if gamma]

    @property
    def is_same_text(self) -> bool:
        """Whether every run gave the same tokens."""
        return len({reply.ids for replies in self.replies.values() for reply in replies}) == 1

    def tokens_per_s(self, gamma: int) -> float:
        """Median rate; 0 where no run was long enough to have one."""
        rates = [reply.tokens_per_s for reply in self.replies[gamma]]
        return statistics.median([rate for rate in rates if rate is not None] or [0.0])

    def ratio(self, gamma: int) -> float:
        """Rate over that of plain decoding."""
        plain = self.tokens_per_s(0)
        return self.tokens_per_s(gamma) / plain if plain else 0.0

    @property
    def best_gamma(self) -> int:
        """The fastest, plain decoding included."""
        return max(self.replies, key=lambda gamma: (self.ratio(gamma), -gamma))

    def acceptance(self, gamma: int) -> float | None:
        """Accepted over drafted tokens of all runs; None where nothing was drafted."""
        finished = [reply.finished for reply in self.replies[gamma] if reply.finished]
        num_drafted = sum(end.statistics.num_drafted_tokens for end in finished)
        num_accepted = sum(end.statistics.num_accepted_tokens for end in finished)
        return num_accepted / num_drafted if num_drafted else None

    def tokens_per_pass(self, gamma: int) -> float:
        rates = [reply.tokens_per_pass for reply in self.replies[gamma]]
        return statistics.median([rate for rate in rates if rate is not None] or [0.0])


def problems(comparisons: Sequence[Comparison]) -> list[str]:
    """What did not hold of what the demo shows; nothing where all of it did."""
    found = []
    for comparison in comparisons:
        title = comparison.case.title
        replies = [reply for replies in comparison.replies.values() for reply in replies]
        if any(reply.finished is None for reply in replies):
            found.append(f"{title}: an answer was cut off")
        if not comparison.is_same_text:
            found.append(f"{title}: the text with speculation is not the text without")
    if not any(comparison.acceptance(gamma) for comparison in comparisons for gamma in comparison.gammas):
        found.append("no draft token held in any answer: speculation was not at work")
    return found


def demo(
    pair: Annotated[
        bool,
        typer.Option("--pair", help=f"{PAIR[0]} drafted by a smaller model (1.6 GB to fetch; see docs/models.md)."),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", min=8, help="Most tokens of an answer; default: 96, 48 of a pair."),
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each setting; default: 2, 1 of a pair.")] = None,
    dtype: Annotated[str, typer.Option(help="float32: texts are the same. bfloat16, int8: near ties may differ.")] = (
        "float32"
    ),
    is_verbose: Annotated[bool, typer.Option("--verbose", help="Show the logs of the services.")] = False,
) -> None:
    """See it work: three services, real text, beside plain decoding.

    The same prompts run by turns with speculation off and with several draft
    lengths. The exit status is 0 only if all texts were the same, every
    service stayed healthy and drafted tokens really held.

    Example:
      pilotfish demo -n 64 --repeats 1
    """
    runs = Runs(max_tokens or (48 if pair else 96), repeats or (1 if pair else 2), PAIR_GAMMAS if pair else GAMMAS)
    terminal = Terminal.of_process()
    model, drafter = PAIR if pair else (Local().model, Local().drafter)
    local = Local(model=model, drafter=drafter, dtype=dtype, port=0, gamma=str(SHOWN_GAMMA))
    terminal.say(f"starting coordinator, drafter ({drafter}) and verifier ({model}, {dtype}) as three processes …")
    with running(local, log(terminal) if is_verbose else unseen, READY_TIMEOUT_S) as fleet:
        comparisons = _compare_all(terminal, fleet, runs)
        unhealthy = [service.module for service in fleet.services if not serves(service)]
        fleet.check()
    _show_summary(terminal, comparisons, dtype, is_lookup=not pair)
    found = problems(comparisons) + [f"{name} is not healthy at the end" for name in unhealthy]
    for problem in found:
        terminal.say(f"FAILED {problem}", style="bold red")
    if found:
        raise typer.Exit(1)
    terminal.say("all of it held: same texts, healthy services, drafted tokens accepted", style="bold green")


def demo_pair() -> None:
    """The demo with a 1.5B target and a 0.5B drafter: `demo --pair`."""
    demo(pair=True)


def cases() -> list[Case]:
    """The prompts: one where what is to be said stands in the prompt, one where it does not."""
    from benchmarks.documents import REWRITINGS

    rewriting = REWRITINGS[0]
    task = f"{rewriting.task} Answer with the whole JSON document only.\n\n```json\n{rewriting.text}\n```"
    return [Case("rewriting JSON: most of the answer stands in the prompt", task), Case("a question", CHAT_PROMPT)]


def _compare_all(terminal: Terminal, fleet: Fleet, runs: Runs) -> list[Comparison]:
    from pilotfish.client import Client

    look = _look(terminal)
    comparisons = []
    with Client(fleet.address("coordinator")) as client:
        for case in cases():
            terminal.out.print(Line(case.title, align="left"))
            terminal.write(f"{case.text}\n\n")
            reply = receive(_ask(client, case, SHOWN_GAMMA, runs.max_tokens), terminal.write, look)
            terminal.write("\n\n")
            terminal.write(f"{look.legend()}\n{reply.summary()}\n\n")
            with terminal.out.status("the same by turns with speculation off and on …"):
                comparisons.append(Comparison(case, _by_turns(client, fleet, case, runs)))
    return comparisons


def _look(terminal: Terminal) -> Look:
    """Colour where there is one, else marks: the demo is there to be looked at, in a log too."""
    look = Look.of(terminal.out)
    return look if look.has_colour else Look.of(terminal.out, has_marks=True)


def _by_turns(client: Client, fleet: Fleet, case: Case, runs: Runs) -> dict[int, list[Reply]]:
    replies: dict[int, list[Reply]] = {gamma: [] for gamma in (0, *runs.gammas)}
    for _ in range(runs.repeats):
        for gamma, earlier in replies.items():
            fleet.check()
            earlier.append(receive(_ask(client, case, gamma, runs.max_tokens)))
    return replies


def _ask(client: Client, case: Case, gamma: int, max_tokens: int) -> Iterator[Chunk]:
    speculation = Speculation(gamma=gamma) if gamma else Speculation(is_off=True)
    prompt = Chat((Message("user", case.text),))
    return client.generate(prompt, temperature=0.0, max_tokens=max_tokens, speculation=speculation)


def _show_summary(terminal: Terminal, comparisons: Sequence[Comparison], dtype: str, *, is_lookup: bool) -> None:
    table = Table(title=f"by turns, greedy, {dtype}", title_justify="left", box=None, pad_edge=False)
    for heading in ("prompt", "γ", "acceptance", "tokens/pass", "tokens/s", "× plain", "same text"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right")
    for comparison in comparisons:
        for gamma in comparison.replies:
            acceptance = comparison.acceptance(gamma)
            table.add_row(
                comparison.case.title.partition(":")[0] if gamma == 0 else "",
                str(gamma) if gamma else "plain",
                "" if acceptance is None else f"{acceptance:.0%}",
                f"{comparison.tokens_per_pass(gamma):.2f}",
                f"{comparison.tokens_per_s(gamma):.1f}",
                f"{comparison.ratio(gamma):.2f}",
                "yes" if comparison.is_same_text else "NO",
            )
    terminal.out.print(table)
    for comparison in comparisons:
        terminal.write(f"{comparison.case.title}: {_verdict(comparison, is_lookup=is_lookup)}\n")


def _verdict(comparison: Comparison, *, is_lookup: bool) -> str:
    """What the figures say of one prompt."""
    best = comparison.best_gamma
    ratio = comparison.ratio(best)
    if best == 0 or ratio < NOISE:
        gained = f"{ratio:.2f} times plain decoding at best, within the noise of so few runs"
        why = ": what is to be said does not stand in the text so far" if is_lookup else ""
        return f"drafting does not pay here ({gained}){why}"
    shown = comparison.ratio(SHOWN_GAMMA)
    return f"γ {best} would have been best: {ratio:.2f} times plain decoding (γ {SHOWN_GAMMA}: {shown:.2f})"
