"""`pilotfish simulate`: what a deployment would do, before there is one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError

if TYPE_CHECKING:
    from benchmarks.simulator.scenario import Deployment, Load, Placement

PLACEMENTS: tuple[Placement, ...] = ("remote", "shared", "none")


def simulate(
    target: Annotated[str, typer.Option(metavar="SIZE", help="The target: 3b, 8b, 70b.")] = "70b",
    gpu: Annotated[str, typer.Option(metavar="NAME", help="The verifier's GPU.")] = "H100",
    num_gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", help="GPUs of each verifier. Default: as few as hold it.")
    ] = None,
    verifiers: Annotated[int, typer.Option(metavar="N", help="Verifiers.")] = 1,
    drafter: Annotated[str, typer.Option(metavar="SIZE", help="The drafter: ngram, 0.5b, 1b, 3b.")] = "0.5b",
    drafter_gpu: Annotated[str, typer.Option(metavar="NAME", help="The drafter's GPU.")] = "L4",
    pods: Annotated[int, typer.Option(metavar="N", help="Drafters for each verifier.")] = 1,
    placements: Annotated[
        str, typer.Option("--placement", metavar="NAME,…", help="Of the drafter: remote, shared (the verifier's GPU).")
    ] = "remote",
    round_trips: Annotated[
        str, typer.Option("--rtt-ms", metavar="MS,…", help="Verdict to draft and draft to verifier, together.")
    ] = "1",
    rates: Annotated[str, typer.Option("--rate", metavar="N,…", help="Requests per second, Poisson.")] = "4",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Arrivals from a .jsonl or .csv file instead.")
    ] = None,
    alphas: Annotated[str, typer.Option("--alpha", metavar="P,…", help="Acceptance; each request draws one.")] = "0.7",
    prompt_tokens: Annotated[float, typer.Option("--prompt", metavar="N", help="Mean length of a prompt.")] = 512,
    output_tokens: Annotated[float, typer.Option("--output", metavar="N", help="Mean length of an answer.")] = 256,
    arms: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="plain, a fixed γ, table, ours, oracle, ours-ahead, oracle-ahead."),
    ] = "plain,2,4,8,table,ours,oracle",
    duration_s: Annotated[float, typer.Option("--duration", metavar="S", help="Simulated time.")] = 40.0,
    warm_s: Annotated[float, typer.Option("--warm-up", metavar="S", help="Of it, what is not counted.")] = 10.0,
    verifier_dollars: Annotated[
        float | None, typer.Option(metavar="$", help="Price of a verifier's instance an hour.")
    ] = None,
    drafter_dollars: Annotated[
        float | None, typer.Option(metavar="$", help="Price of a drafter's instance an hour.")
    ] = None,
    first_token_target_ms: Annotated[
        float, typer.Option("--ttft-target", metavar="MS", help="Goodput counts requests that met it.")
    ] = math.inf,
    token_target_ms: Annotated[
        float, typer.Option("--tpot-target", metavar="MS", help="Likewise, time per token.")
    ] = math.inf,
    seed: Annotated[int, typer.Option(metavar="N", help="Of arrivals, acceptances and jitter.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw it.")] = None,
) -> None:
    """What a deployment would do, by discrete events: the services' own plan, policy and estimator, modelled hardware.

    Pass times follow from memory bandwidth and arithmetic; the assumptions
    stand at the head of benchmarks/simulator/hardware.py. A drafter on the
    verifier's own GPU takes memory for KV and slows its passes.

    Examples:
      pilotfish simulate --rate 1,4,16,32 --rtt-ms 0.3,20 --plot load.png
      pilotfish simulate --placement remote,shared --drafter 1b --arms plain,4,ours
      pilotfish simulate --trace monday.jsonl --verifiers 8 --arms plain,ours
    """
    _need_numpy()
    from benchmarks.simulator import picture, scenario
    from benchmarks.simulator import trace as arrivals
    from benchmarks.simulator.world import Workload

    targets = scenario.Targets(
        _number("--ttft-target", first_token_target_ms, 0.0, math.inf) / 1e3,
        _number("--tpot-target", token_target_ms, 0.0, math.inf) / 1e3,
    )
    deployment = _deployment(
        target, gpu, num_gpus, verifiers, drafter, drafter_gpu, pods, verifier_dollars, drafter_dollars
    )
    trips = [value / 1e3 for value in _numbers("--rtt-ms", round_trips, 0.0, 1e4)]
    workload = Workload(
        tuple(_numbers("--alpha", alphas, 0.0, 1.0)),
        _number("--prompt", prompt_tokens, 1.0, 1e6),
        _number("--output", output_tokens, 2.0, 1e6),
    )
    if not 0.0 <= warm_s < duration_s < math.inf:
        raise ConfigurationError(f"--warm-up {warm_s:g} and --duration {duration_s:g} leave nothing to count")
    load = scenario.Load(workload, 1.0, duration_s, warm_s)
    if trace is None:
        loads = [replace(load, rate_per_s=rate) for rate in _numbers("--rate", rates, 1e-6, 1e6)]
    else:
        found = arrivals.read(trace, workload.alphas, trips[0])
        loads = [replace(load, trace=found, rate_per_s=len(found) / max(found[-1].arrival_s, 1.0))]
    terminal = Terminal.of_process()
    rows = []
    for case in _cases(deployment, loads, trips, _arms(arms), _placements(placements)):
        terminal.say("simulating " + " ".join(map(str, case[2:])), style="dim")
        rows.append(scenario.run(*case, targets, seed))
    if plot is not None:
        picture.draw(plot, rows)
        terminal.say(f"drawn: {plot}")
    if as_json:
        facts = {"deployment": deployment_facts(deployment), "rows": rows}
        terminal.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        return
    terminal.write(_headline(deployment_facts(deployment)) + "\n")
    terminal.out.print(_table(rows))


def _need_numpy() -> None:
    if find_spec("numpy") is None:
        raise ConfigurationError("simulate needs numpy; install it with: pip install numpy")


def _cases(
    deployment: Deployment, loads: list[Load], trips: list[float], arms: list[str], placements: list[Placement]
) -> Iterator[tuple[Deployment, Load, float, str]]:
    """Every arm under every load, placement and round trip; plain decoding once, for it knows none of the two."""
    for load in loads:
        if "plain" in arms:
            yield replace(deployment, placement="none"), load, 0.0, "plain"
        for placement in placements:
            for trip in trips if placement == "remote" else trips[:1]:
                for arm in arms:
                    if arm != "plain":
                        yield replace(deployment, placement=placement), load, trip, arm


def deployment_facts(deployment: Deployment) -> dict[str, Any]:
    """What follows from the hardware, by name."""
    from benchmarks.simulator.world import Network

    verifier = deployment.verifiers(Network())[0]
    return {
        "target": deployment.target,
        "gpus": f"{deployment.num_gpus} × {deployment.gpu}",
        "pass_s": verifier.model.floor_s,
        "ridge": verifier.model.ridge,
        "kv_tokens": verifier.model.max_tokens,
        "drafter": deployment.drafter or "ngram",
        "drafter_gpu": deployment.drafter_gpu,
        "draft_token_s": verifier.drafter.token_s,
        "c": verifier.drafter.token_s / verifier.model.floor_s,
        "dollars_per_hour": deployment.dollars_per_hour,
    }


def _headline(facts: dict[str, Any]) -> str:
    where = f" on {facts['drafter_gpu']}" if facts["drafter"] != "ngram" else ""
    return (
        f"{facts['target']} on {facts['gpus']}: a pass {facts['pass_s'] * 1e3:.1f} ms up to {facts['ridge']:.0f} "
        f"positions, KV for {facts['kv_tokens'] / 1e3:.0f}k tokens; drafter {facts['drafter']}{where}: "
        f"{facts['draft_token_s'] * 1e3:.2f} ms a token, c {facts['c']:.2f}"
    )


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from benchmarks.simulator.picture import name_of

    table = Table(box=None, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for name in ("req/s", "tok/s", "good", "TTFT", "p99", "ms/tok", "p99", "$/M", "ampl.", "γ"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            name_of(row),
            f"{row['rate_per_s']:g}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['goodput']:.0f}",
            _ms(row["first_token_s_p50"]),
            _ms(row["first_token_s_p99"]),
            _ms(row["token_s_p50"], 2),
            _ms(row["token_s_p99"], 2),
            _or_dash(row["dollars_per_million_tokens"]),
            _or_dash(row["amplification"]),
            f"{row['drafted_per_round']:.1f}",
        )
    return table


def _ms(seconds: float | None, digits: int = 0) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.{digits}f}"


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _deployment(
    target: str,
    gpu: str,
    num_gpus: int | None,
    verifiers: int,
    drafter: str,
    drafter_gpu: str,
    pods: int,
    verifier_dollars: float | None,
    drafter_dollars: float | None,
) -> Deployment:
    from benchmarks.simulator import hardware
    from benchmarks.simulator.scenario import Deployment

    names = {name.lower(): name for name in hardware.MEMORY_GB}
    for option, name in (("--gpu", gpu), ("--drafter-gpu", drafter_gpu)):
        if name.lower() not in names:
            raise ConfigurationError(f"{option} {name} is not known; known are {', '.join(names.values())}")
    for option, name, known in (
        ("--target", target, list(hardware.MODELS)),
        ("--drafter", drafter, ["ngram", *hardware.MODELS]),
    ):
        if name.lower() not in known:
            raise ConfigurationError(f"{option} {name} is not known; known are {', '.join(known)}")
    for option, number in (("--verifiers", verifiers), ("--pods", pods), ("--gpus", num_gpus or 1)):
        if not 1 <= number <= 1024:
            raise ConfigurationError(f"{option} {number} is outside 1 to 1024")
    for option, price in (("--verifier-dollars", verifier_dollars), ("--drafter-dollars", drafter_dollars)):
        if price is not None:
            _number(option, price, 0.0, 1e6)
    size = hardware.MODELS[target.lower()]
    least = hardware.num_devices_for(size, gpu)
    if num_gpus is not None and size.weight_bytes > hardware.host(gpu, num_gpus).memory_bytes:
        raise ConfigurationError(f"--gpus {num_gpus}: {target} does not fit on {num_gpus} × {gpu}; give {least}")
    return Deployment(
        size.name,
        names[gpu.lower()],
        num_gpus or least,
        None if drafter.lower() == "ngram" else drafter.lower(),
        names[drafter_gpu.lower()],
        verifiers,
        pods,
        "remote",
        verifier_dollars,
        drafter_dollars,
    )


def _arms(text: str) -> list[str]:
    from benchmarks.simulator.scenario import arm_of

    names = _words(text)
    for name in names:
        try:
            arm_of(name, 0)
        except KeyError as error:
            known = "plain, a number, table, ours, oracle, ours-ahead, oracle-ahead"
            raise ConfigurationError(f"--arms {name} is none; there are {known}") from error
        if name.isdecimal() and not 1 <= int(name) <= 64:
            raise ConfigurationError(f"--arms {name}: a fixed γ is 1 to 64; plain is the arm that drafts nothing")
    if not names:
        raise ConfigurationError("--arms is empty; give at least one, say plain,ours")
    return names


def _placements(text: str) -> list[Placement]:
    """Where drafters are to be; none is what the plain arm has."""
    for name in (names := _words(text)):
        if name not in PLACEMENTS:
            raise ConfigurationError(f"--placement {name} is none; there are {', '.join(PLACEMENTS)}")
    return [placement for placement in PLACEMENTS if placement in names and placement != "none"]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str, least: float, most: float) -> list[float]:
    try:
        values = [float(word) for word in _words(text)]
    except ValueError as error:
        raise ConfigurationError(f"{option} {text}: no numbers ({error}); write them with commas") from error
    if not values:
        raise ConfigurationError(f"{option} is empty; give at least one number")
    return [_number(option, value, least, most) for value in values]


def _number(option: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ConfigurationError(f"{option} {value:g} is outside {least:g} to {most:g}")
    return value
