"""`pilotfish bench`: the measurements as commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from benchmarks.prompts import Prompt
    from benchmarks.records import Arm
    from benchmarks.run import Encode
    from pilotfish.cli.local import Local
    from pilotfish.gammas import GammaTable

RESULTS = Path("results")
HELP = """Measure, on this machine, with the services, models and prompts as they are.

Arms answer the same prompts in turn within one run; what counts are ratios
of paired answers, with their 95% confidence intervals. Prompts are held-out
ones unless you say otherwise. Figures and raw data go to results/.
"""

Model = Annotated[str, typer.Option(metavar="MODEL", help="The target.")]
Drafter = Annotated[str, typer.Option(metavar="DRAFTER", help="ngram, or model:MODEL (ngram is an arm too then).")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="float32, bfloat16 or int8, for all arms.")]
Threads = Annotated[int, typer.Option(min=1, metavar="N", help="Threads of each model.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", min=8, metavar="N", help="Most tokens of an answer.")]
Gammas = Annotated[str, typer.Option(metavar="N,…", help="Draft lengths.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where figures and raw data go.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Two prompts of each kind, short answers: does it run?")]


def application() -> typer.Typer:
    """The measurements."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    app.command()(speed)
    app.command()(identity)
    app.command()(split)
    app.command()(memory)
    app.command()(load)
    return app


def speed(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "float32",
    threads: Threads = 1,
    sets: Annotated[str, typer.Option(metavar="SET,…", help="Prompt sets; default: all.")] = "",
    per_set: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts of each set.")] = 4,
    is_held_out: Annotated[bool, typer.Option("--held-out/--tuned", help="Prompts nobody tuned on, or the others.")] = (
        True
    ),
    max_tokens: MaxTokens = 128,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Answers to each prompt.")] = 1,
    gammas: Gammas = "1,2,4,8",
    temperatures: Annotated[str, typer.Option(metavar="T,…", help="0 is greedy.")] = "0",
    baseline: Annotated[str, typer.Option(metavar="ARM", help="What the others are compared with.")] = "plain",
    has_library: Annotated[bool, typer.Option("--library/--no-library", help="The model library's own arms.")] = True,
    has_one_process: Annotated[
        bool, typer.Option("--one-process/--no-one-process", help="The loop in one process.")
    ] = (True),
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Plain and speculative decoding, through the services, in one process, in the library.

    Arms: `plain`, `NAME auto` and `NAME γ=N` through the services; `one process …`, the
    same loop without them; `library`, `library lookup`, `library assisted`.

    Examples:
      pilotfish bench speed --smoke
      pilotfish bench speed --dtype bfloat16 --sets json,code --gammas 4
      pilotfish bench speed --temperatures 0,0.7,1 --no-library --no-one-process
    """
    from benchmarks import report
    from benchmarks.prompts import prompts
    from benchmarks.run import Plan, interleaved

    chosen = prompts(_names(sets), is_held_out=is_held_out, per_set=2 if is_smoke else per_set)
    if is_smoke:
        chosen, max_tokens, gammas = [prompt for prompt in chosen if prompt.set in {"json", "chat"}], 16, "4"
    plan = Plan(chosen, max_tokens, repeats, _numbers(temperatures, float))
    setup = Setup(model, drafter, dtype, threads, _numbers(gammas, int))
    with setup.arms(has_library=has_library, has_one_process=has_one_process) as arms:
        if baseline not in {arm.name for arm in arms}:
            raise NotFound(f"no arm {baseline!r}; there are {', '.join(arm.name for arm in arms)}")
        measurements = list(interleaved(arms, plan, encoder(model), _tell(len(plan) * len(arms))))
    cells = report.cells(measurements, [arm.name for arm in arms], baseline)
    found = report.acceptances(measurements)
    print(report.speed_table(cells, baseline))
    print()
    print(report.acceptance_table(found))
    facts = {"setup": asdict(setup), "baseline": baseline, "cells": cells, "acceptance": found}
    _say_where(report.write(out, f"speed-{time.strftime('%Y%m%d-%H%M%S')}", facts, measurements))


def identity(
    model: Model = "smollm2-135m",
    dtype: Dtype = "float32",
    threads: Threads = 1,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts, of all kinds in turn.")] = 40,
    max_tokens: MaxTokens = 64,
    gammas: Gammas = "0,1,4,8",
    speculators: Annotated[str, typer.Option(metavar="NAME,…", help="ngram, model (the target drafts for itself).")] = (
        "ngram,model"
    ),
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Count how often greedy ids differ from the model library's own generate.

    In float32 the count must be 0, else the exit status is 1. In bfloat16 and
    int8 near ties may flip: each first difference is shown with the margin
    of the two likeliest tokens there, beside the dtype's measured noise.

    Example:
      pilotfish bench identity --dtype bfloat16 --count 8
    """
    from benchmarks import identity as measurement

    count, max_tokens = (2, 16) if is_smoke else (count, max_tokens)
    setup = Setup(model, f"model:{model}", dtype, threads, _numbers(gammas, int))
    different = measurement.run(setup, count, max_tokens, _names(speculators), encoder(model), out, _tell)
    if different and dtype == "float32":
        raise typer.Exit(1)


def split(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "float32",
    threads: Threads = 1,
    per_set: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts of each copy-heavy set.")] = 4,
    max_tokens: MaxTokens = 128,
    gamma: Annotated[int, typer.Option(min=1, metavar="N", help="Draft length.")] = 4,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """What it costs that there are three services and not one process.

    Per round: the time that is neither drafting nor a pass, through the
    services and in one process, and their difference. Free-running decoding
    likewise, as a ratio of rates.

    Example:
      pilotfish bench split --per-set 2
    """
    from benchmarks import split as measurement

    per_set, max_tokens = (1, 32) if is_smoke else (per_set, max_tokens)
    setup = Setup(model, drafter, dtype, threads, [gamma])
    measurement.run(setup, per_set, max_tokens, encoder(model), out, _tell)


def memory(
    model: Model = "smollm2-135m",
    dtype: Dtype = "bfloat16",
    count: Annotated[int, typer.Option(min=2, metavar="N", help="Requests.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Requests at a time.")] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1, metavar="N")] = 8,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Memory of the three services before and after many requests.

    Also whether the KV pool is empty when no session is left; exit status 1
    where it is not.

    Example:
      pilotfish bench memory --count 200
    """
    from benchmarks import memory as measurement

    if not measurement.run(model, dtype, 32 if is_smoke else count, concurrency, max_tokens, out):
        raise typer.Exit(1)


def load(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "bfloat16",
    threads: Threads = 1,
    sets: Annotated[str, typer.Option(metavar="SET,…", help="Prompt sets, mixed.")] = "chat,code_edit,json",
    per_set: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts of each set.")] = 4,
    concurrency: Annotated[str, typer.Option(metavar="N,…", help="Requests at a time.")] = "1,2,4,8,16,32",
    gammas: Annotated[
        str,
        typer.Option(
            metavar="N,…", help="Draft lengths; rows SESSIONS:N together are one arm, a table by requests at a time."
        ),
    ] = "1,2,4,8",
    max_tokens: MaxTokens = 64,
    blocks: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each arm.")] = 4,
    block_s: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Length of a turn.")] = 8.0,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Throughput with several requests at once: plain, each fixed γ, a table by batch size, and γ by the price.

    Examples:
      pilotfish bench load --sets chat --concurrency 1,8 --gammas 2,4
      pilotfish bench load --gammas 4,1:8,4:4,16:2,64:0
    """
    import asyncio

    from benchmarks import load as measurement
    from benchmarks.prompts import prompts
    from pilotfish.cli.up import running, unseen

    if is_smoke:
        per_set, concurrency, gammas, max_tokens, blocks, block_s = 1, "1,4", "4", 16, 1, 0.5
    fixed, rows = _gammas(gammas)
    setup = Setup(model, drafter, dtype, threads, fixed)
    chosen = prompts(_names(sets), is_held_out=True, per_set=per_set)
    plan = measurement.Load(chosen, _numbers(concurrency, int), max_tokens, blocks, block_s)
    arms = measurement.arms_of(setup.speculators[-1], setup.gammas, rows)
    with running(setup.local, unseen) as fleet:
        tell = _tell(len(plan.concurrencies) * (blocks + 1) * len(arms))
        found = asyncio.run(measurement.measure(fleet.address("coordinator"), plan, arms, encoder(model), tell))
    print(measurement.table(found, list(arms)))
    name = f"load-{time.strftime('%Y%m%d-%H%M%S')}"
    print(f"\nraw data: {measurement.write(out, name, plan, found)}")


@dataclass(frozen=True, slots=True)
class Setup:
    """Models and settings that all arms of a run share."""

    model: str
    drafter: str
    dtype: str
    threads: int
    gammas: Sequence[int]

    @property
    def local(self) -> Local:
        """The services, on any free port."""
        from pilotfish.cli.local import Local

        return Local(self.model, self.drafter, dtype=self.dtype, port=0, threads=self.threads)

    @property
    def speculators(self) -> tuple[str, ...]:
        return ("ngram",) if self.local.drafter_model is None else ("ngram", "model")

    @contextmanager
    def arms(self, *, has_library: bool, has_one_process: bool) -> Iterator[list[Arm]]:
        """Start the services and load what else is to be compared; all is gone after the block."""
        from benchmarks import services
        from pilotfish.cli.up import running, unseen
        from pilotfish.client import Client

        with running(self.local, unseen) as fleet, Client(fleet.address("coordinator")) as client:
            arms: list[Arm] = [services.plain(client)]
            for speculator in self.speculators:
                arms.append(services.by_price(client, speculator))
                arms += [services.speculative(client, speculator, gamma) for gamma in self.gammas if gamma]
            if has_one_process:
                arms += self._one_process()
            if has_library:
                arms += self._library()
            yield arms

    def _one_process(self) -> list[Arm]:
        from benchmarks.oneprocess import LocalEngine, OneProcess
        from drafter.settings import DrafterSettings
        from drafter.speculators.ngram import NgramSpeculator
        from verifier.settings import VerifierSettings

        local = LocalEngine(VerifierSettings(model=self.model, dtype=self.dtype, threads=self.threads))
        speculators: dict[str, Any] = {"ngram": NgramSpeculator.from_settings(DrafterSettings())}
        if self.local.drafter_model is not None:
            from drafter.speculators.model import ModelSpeculator

            settings = DrafterSettings(model=self.local.drafter_model, dtype=self.dtype, threads=self.threads)
            speculators["model"] = ModelSpeculator.from_settings(settings)
        arms: list[Arm] = [OneProcess("one process plain", local)]
        for name, speculator in speculators.items():
            arms += [OneProcess(f"one process {name} γ={n}", local, speculator, n) for n in self.gammas if n]
        return arms

    def _library(self) -> list[Arm]:
        from benchmarks import baselines
        from pilotfish import models

        if self.dtype not in baselines.DTYPES:
            raise ConfigurationError(f"the library has no {self.dtype} here; give --no-library, or another --dtype")
        target = baselines.load(models.provide(self.model), self.dtype, self.threads)
        arms: list[Arm] = [baselines.plain(target)]
        arms += [baselines.lookup(target, gamma) for gamma in self.gammas if gamma]
        if self.local.drafter_model is not None:
            path = models.provide(self.local.drafter_model)
            drafters = [(baselines.load(path, self.dtype, self.threads), gamma) for gamma in self.gammas if gamma]
            arms += [baselines.assisted(target, drafter, gamma) for drafter, gamma in drafters]
        return arms


def encoder(model: str) -> Encode:
    """Ids of a prompt as a user's message in the model's chat template."""
    from pilotfish.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)

    def encode(prompt: Prompt) -> tuple[int, ...]:
        return tuple(tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}]))

    return encode


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _gammas(text: str) -> tuple[list[int], GammaTable | None]:
    """Draft lengths, and the table that the rows among them make."""
    from pilotfish.cli.local import read_gammas

    rows = [name for name in _names(text) if ":" in name]
    fixed = _numbers(",".join(name for name in _names(text) if ":" not in name), int)
    return fixed, read_gammas("--gammas", ",".join(rows)) if rows else None


def _numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(word) for word in _names(text)]
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is no list of numbers ({error}); write them with commas") from error


def _tell(total: int) -> Callable[[str], None]:
    """Progress on stderr: which answer of how many."""
    from pilotfish.cli.terminal import Terminal

    terminal = Terminal.of_process()
    count = 0

    def tell(text: str) -> None:
        nonlocal count
        count += not text.startswith("warm up")
        terminal.say(f"[{count}/{total}] {text}", style="dim")

    return tell


def _say_where(path: Path) -> None:
    print(f"\nraw data: {path} and {path.with_suffix('.rounds.jsonl')}")
