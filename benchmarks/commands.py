"""`pilotfish bench`: the measurements as commands."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import load_commands
from benchmarks.options import RESULTS, Drafter, Dtype, Gammas, MaxTokens, Model, Out, Smoke, Threads
from benchmarks.setup import Setup, encoder, names, numbers, teller
from pilotfish.errors import NotFound

HELP = """Measure, on this machine, with the services, models and prompts as they are.

Arms answer the same prompts in turn within one run; what counts are ratios
of paired answers, with their 95% confidence intervals. Prompts are held-out
ones unless you say otherwise. Figures and raw data go to results/.
"""


def application() -> typer.Typer:
    """The measurements."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
    app.command()(speed)
    app.command()(identity)
    app.command()(split)
    app.command()(memory)
    app.command()(load_commands.load)
    app.command()(load_commands.report)
    app.command()(load_commands.distance)
    app.command()(load_commands.ttft)
    app.command()(load_commands.predicted)
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

    chosen = prompts(names(sets), is_held_out=is_held_out, per_set=2 if is_smoke else per_set)
    if is_smoke:
        chosen, max_tokens, gammas = [prompt for prompt in chosen if prompt.set in {"json", "chat"}], 16, "4"
    plan = Plan(chosen, max_tokens, repeats, numbers(temperatures, float))
    setup = Setup(model, drafter, dtype, threads, numbers(gammas, int))
    with setup.arms(has_library=has_library, has_one_process=has_one_process) as arms:
        if baseline not in {arm.name for arm in arms}:
            raise NotFound(f"no arm {baseline!r}; there are {', '.join(arm.name for arm in arms)}")
        measurements = list(interleaved(arms, plan, encoder(model), teller(len(plan) * len(arms))))
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
    setup = Setup(model, f"model:{model}", dtype, threads, numbers(gammas, int))
    different = measurement.run(setup, count, max_tokens, names(speculators), encoder(model), out, teller)
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
    measurement.run(setup, per_set, max_tokens, encoder(model), out, teller)


def memory(
    model: Model = "smollm2-135m",
    dtype: Dtype = "auto",
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


def _say_where(path: Path) -> None:
    print(f"\nraw data: {path} and {path.with_suffix('.rounds.jsonl')}")
