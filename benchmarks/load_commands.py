"""`pilotfish bench`: what several requests at once show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.options import (
    RESULTS,
    Concurrency,
    Drafter,
    Dtype,
    Gammas,
    Labels,
    MaxTokens,
    MinTokens,
    Model,
    Out,
    PerSet,
    Smoke,
    Threads,
    Turns,
    Workloads,
)
from benchmarks.setup import Setup, draft_lengths, names, numbers, teller

if TYPE_CHECKING:
    from benchmarks.load import Arm, Block, Load
    from benchmarks.workloads import Workload


def load(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "auto",
    threads: Threads = 1,
    workloads: Workloads = "",
    per_set: PerSet = 6,
    concurrency: Concurrency = "1,2,4,8,16,32",
    gammas: Annotated[
        str,
        typer.Option(
            metavar="N,…", help="Draft lengths; rows SESSIONS:N together are one arm, a table by requests at a time."
        ),
    ] = "1,2,4,8",
    max_tokens: MaxTokens = 64,
    turns: Turns = 6,
    min_tokens: MinTokens = 192,
    has_labels: Labels = False,
    least_of_plain: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="What ours must reach of plain decoding.")
    ] = 0.98,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Throughput with several requests at once: plain, each fixed γ, a table by batch size, and γ by the price.

    Workloads of a model: chat, code_edit, mixed, phases, reasoning. Of a table
    model: high, low, both, phases; its passes take the time the table says and
    no processor, so that two cores can stand for a GPU.

    Examples:
      pilotfish bench load --workloads mixed --concurrency 1,8 --gammas 2,4
      pilotfish bench load --gammas 4,1:8,4:4,16:2,64:0
      pilotfish bench load --model table:benchmarks/tables/gpu.json \
        --drafter model:table:benchmarks/tables/gpu-drafter.json \
        --concurrency 1,2,4,8,16,32,64 --least-of-plain 0.95
    """
    from benchmarks import load as measurement
    from pilotfish.cli.up import running, unseen

    if is_smoke:
        per_set, concurrency, gammas, max_tokens, turns, min_tokens = 2, "1,3", "4", 8, 2, 16
    fixed, rows = draft_lengths(gammas)
    setup = Setup(model, drafter, dtype, threads, fixed)
    plan = measurement.Load(
        _workloads(model, workloads, per_set, max_tokens), numbers(concurrency, int), turns, min_tokens,
        has_labels=has_labels,
    )  # fmt: skip
    files = Files.new(out, "load", setup, plan)
    with running(setup.local, unseen) as fleet:
        arms = measurement.arms_of(fleet.address("coordinator"), setup.speculators[-1], setup.gammas, rows)
        blocks = _measured(plan, arms, files)
    _show(files.path, blocks, least_of_plain)


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.json …", help="Raw data of `bench load`.")],
    least_of_plain: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="What ours must reach of plain decoding.")
    ] = 0.98,
    to: Annotated[Path, typer.Option(metavar="FILE", help="Where table and picture go, with .md and .png.")] = (
        RESULTS / "load"
    ),
) -> None:
    """Table, picture and verdicts of one or several runs of `bench load` together; nothing is measured.

    Example:
      pilotfish bench report results/load-*.json --to docs/load
    """
    from benchmarks.load_report import read

    _show(to.with_suffix(".json"), read(files), least_of_plain)


def distance(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "auto",
    threads: Threads = 1,
    workloads: Workloads = "code_edit",
    per_set: PerSet = 6,
    concurrency: Concurrency = "1,4",
    round_trips: Annotated[str, typer.Option(metavar="R,…", help="In passes of one position.")] = "0,0.3,1,2",
    gammas: Gammas = "2,4,8",
    max_tokens: MaxTokens = 64,
    turns: Turns = 6,
    min_tokens: MinTokens = 128,
    least_of_fixed: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="What ours must reach of the best fixed γ at its distance.")
    ] = 0.97,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Round trips between a coordinator and its peers, injected: plain, each fixed γ, and γ by the price.

    One verifier and one drafter; at each distance a coordinator of its own behind
    a wire that holds every byte back, all of them by turns in one run. Counted
    is decoding, from the first piece of each answer on.

    Examples:
      pilotfish bench distance --gammas 4 --concurrency 1
      pilotfish bench distance --model table:benchmarks/tables/gpu.json \
        --drafter model:table:benchmarks/tables/gpu-drafter.json --workloads high
    """
    from benchmarks import distance as measurement
    from benchmarks.fleets import at_distances
    from benchmarks.load import Load, arms_of
    from benchmarks.load_report import table
    from benchmarks.verdicts import points
    from pilotfish.cli.up import running, unseen

    if is_smoke:
        per_set, concurrency, round_trips, gammas, max_tokens, turns, min_tokens = 2, "2", "0,1", "4", 8, 2, 16
    setup = Setup(model, drafter, dtype, threads, numbers(gammas, int))
    plan = Load(_workloads(model, workloads, per_set, max_tokens), numbers(concurrency, int), turns, min_tokens)
    trips = numbers(round_trips, float)
    files = Files.new(out, "distance", setup, plan)
    with running(setup.local, unseen) as fleet:
        near = fleet.address("coordinator")
        length_s = measurement.pass_s(near, plan.workloads[0].asks[0].prompt)
        files.facts |= {"pass_s": length_s, "round_trips": trips}
        with at_distances(setup.local, fleet, [trip * length_s for trip in trips]) as found:
            addresses = dict(zip(trips, found.values(), strict=True))
            arms = measurement.arms_at(addresses, arms_of(near, setup.speculators[-1], setup.gammas))
            blocks = [block.decoding for block in _measured(plan, arms, files)]
    print(f"a pass of one position: {1e3 * length_s:.1f} ms\n")
    print(table([point for trip in trips for point in points(measurement.at(blocks, trip))]), "\n")
    for verdict in (*measurement.judged(blocks, trips), *measurement.against_fixed(blocks, trips, least_of_fixed)):
        print(verdict)
    print(f"\nraw data: {files.path}")


def ttft(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "auto",
    threads: Threads = 1,
    workloads: Workloads = "mixed",
    per_set: PerSet = 6,
    concurrency: Concurrency = "4,16",
    max_tokens: MaxTokens = 32,
    turns: Turns = 8,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """Time to the first token under load, the verifier's start rule on and off, γ by the price.

    Two deployments side by side that answer by turns; no prompt is known to a
    cache. Counted are requests that come while others run.

    Example:
      pilotfish bench ttft --concurrency 8
    """
    from benchmarks import ttft as measurement
    from benchmarks.fleets import set_unlike
    from benchmarks.load import Arm, Load
    from pilotfish.tokenizer import load_tokenizer

    if is_smoke:
        per_set, concurrency, max_tokens, turns = 2, "3", 8, 2
    setup = Setup(model, drafter, dtype, threads, [])
    plan = Load(
        _workloads(model, workloads, per_set, max_tokens), numbers(concurrency, int), turns, min_tokens=8,
        num_answers=3, salt_ids=len(load_tokenizer(model).vocabulary),
    )  # fmt: skip
    files = Files.new(out, "ttft", setup, plan)
    with set_unlike(setup.local, "verifier", measurement.SETTINGS) as addresses:
        arms = [Arm(name, address, setup.speculators[-1], gammas=None) for name, address in addresses.items()]
        blocks = _measured(plan, arms, files)
    print(measurement.table(measurement.first_tokens(blocks)))
    print(f"\nraw data: {files.path}")


def predicted(
    model: Model = "smollm2-135m",
    drafter: Drafter = "ngram",
    dtype: Dtype = "auto",
    threads: Threads = 1,
    workloads: Workloads = "code_edit",
    per_set: PerSet = 6,
    concurrency: Concurrency = "1,4",
    gammas: Annotated[str, typer.Option(metavar="N,…", help="Draft lengths, besides γ by the price.")] = "2,4",
    max_tokens: MaxTokens = 64,
    turns: Turns = 8,
    min_tokens: MinTokens = 192,
    is_smoke: Smoke = False,
    out: Out = RESULTS,
) -> None:
    """The speedup that was realised at steady load, beside what `plan --from` makes of the same services.

    Each arm has services of its own, so that they have measured nothing else;
    plain decoding answers there by turns with it. Counted is decoding, from the
    first piece of each answer on: the plan knows nothing of prompts.

    Example:
      pilotfish bench predicted --concurrency 1 --gammas 4
    """
    from benchmarks import predicted as measurement
    from benchmarks.load import Load, arms_of
    from benchmarks.verdicts import OURS, PLAIN, ratio
    from pilotfish.cli.up import running, unseen

    if is_smoke:
        per_set, concurrency, gammas, max_tokens, turns, min_tokens = 2, "2", "4", 8, 2, 16
    setup = Setup(model, drafter, dtype, threads, numbers(gammas, int))
    chosen = _workloads(model, workloads, per_set, max_tokens)
    found, missing = [], []
    for at_once in numbers(concurrency, int):
        for gamma in (None, *setup.gammas):
            plan = Load(chosen, [at_once], turns, min_tokens)
            with running(setup.local, unseen) as fleet:
                address = fleet.address("coordinator")
                name = OURS if gamma is None else f"γ={gamma}"
                both = arms_of(address, setup.speculators[-1], setup.gammas)
                files = Files.new(out, f"predicted-{gamma or OURS}-{at_once}", setup, plan)
                measured = _measured(plan, [arm for arm in both if arm.name in {PLAIN, name}], files)
                blocks = [block.decoding for block in measured]
                one = measurement.prediction(address, name, gamma, at_once, ratio(blocks, name, PLAIN))
            if one is None:
                missing.append(f"{name} at {at_once}")
            else:
                found.append(one)
    print(measurement.table(found))
    if missing:
        print(f"\nnothing to predict from, for too little was drafted: {', '.join(missing)}")


@dataclass(slots=True)
class Files:
    """Where a run's raw data go, turn by turn."""

    path: Path
    setup: Setup
    plan: Load
    facts: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def new(out: Path, name: str, setup: Setup, plan: Load) -> Files:
        return Files(out / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json", setup, plan)

    def keep(self, blocks: Sequence[Block]) -> None:
        """Write what there is so far."""
        from benchmarks.load_report import write

        write(self.path, {**asdict(self.setup), **self.facts}, self.plan, blocks)


def _workloads(model: str, wanted: str, per_set: int, max_tokens: int) -> Sequence[Workload]:
    from benchmarks.workloads import workloads

    return workloads(model, names(wanted), per_set, max_tokens)


def _measured(plan: Load, arms: Sequence[Arm], files: Files) -> list[Block]:
    from benchmarks.load import measure, num_blocks

    return asyncio.run(measure(plan, arms, teller(num_blocks(plan, arms)), files.keep))


def _show(path: Path, blocks: Sequence[Block], least_of_plain: float) -> None:
    """Table and verdicts, on stdout and beside the raw data, with a picture."""
    from benchmarks.load_report import draw, table
    from benchmarks.verdicts import points, verdicts

    found = "\n".join(f"- {verdict}" for verdict in verdicts(blocks, least_of_plain))
    text = f"{table(points(blocks))}\n\n{found}\n"
    print(text)
    draw(path.with_suffix(".png"), blocks)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"written: {path.with_suffix('.md')}, {path.with_suffix('.png')}")
