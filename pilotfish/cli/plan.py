"""`pilotfish plan`: what speculation gains by the book, before anything is deployed or beside what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pilotfish import speedup as book
from pilotfish.cli.measured import Measured, measured
from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError

GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DEEPER_GAMMA, BETTER_ALPHA = 10, 0.9  # what a round is compared with
DEFAULT_ALPHA, DEFAULT_COST = 0.8, 0.05
LOSS = "a loss"


def plan(
    alpha: Annotated[
        float | None,
        typer.Option(metavar="P", help="Acceptance probability of a draft token, 0 to 1. [default: 0.8]"),
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option("--cost", "--c", metavar="C", help="A draft step's time over a target pass's. [default: 0.05]"),
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens drafted in a round. [default: the best]")
    ] = None,
    round_trip: Annotated[
        float | None,
        typer.Option("--rtt", metavar="R", help="What a round waits for the network, in target passes. [default: 0]"),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", help="Sessions that share each pass.")] = 1,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Whose ridge: {', '.join(book.ACCELERATORS)}.")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="N", help="Positions from which a pass grows, instead of a GPU's.")
    ] = None,
    weights_gb: Annotated[
        float | None, typer.Option(metavar="GB", help="Size of the weights: bytes read per committed token.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="HOST[:PORT]", help="Take what is not given from a running coordinator."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw speedup over γ for several α.")
    ] = None,
) -> None:
    """Speedup by the book: E = (1 - α^(γ+1)) / (1 - α) tokens a round, over γc + 1 + rtt passes.

    It assumes independent acceptances; what a service realises stands beside it in `pilotfish bench`.

    Examples:
      pilotfish plan --alpha .8 --c .05 --gamma 4           3.36 tokens, 2.80 times
      pilotfish plan --alpha .8 --c .05 --rtt .5            the best γ over a network
      pilotfish plan --alpha .8 --gamma 4 --batch 64 --gpu H100
      pilotfish plan --from localhost                       what runs here, as measured
    """
    known = Measured("nobody") if source is None else measured(source)
    alpha = _first(alpha, known.alpha, DEFAULT_ALPHA)
    cost = _first(cost, known.cost, DEFAULT_COST)
    round_trip = _first(round_trip, known.round_trip, 0.0)
    _check(alpha, cost, round_trip, gamma, batch)
    length, at = _pass_length(gpu, ridge, known)
    facts = figures(alpha, cost, gamma, round_trip, batch, at, length, weights_gb)
    terminal = Terminal.of_process()
    if source is not None:
        facts["measured"] = {"source": known.source, "fields": _fields(known)}
        terminal.say(f"from {known.source}: {', '.join(facts['measured']['fields']) or 'nothing yet'}", style="dim")
    if plot is not None:
        _draw(plot, alpha, cost, round_trip)
        terminal.say(f"drawn: {plot}")
    if as_json:
        terminal.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        return
    for line in _sentences(facts):
        terminal.write(line + "\n")
    terminal.out.print(_table(cost, round_trip))


def figures(
    alpha: float,
    cost: float,
    gamma: int | None,
    round_trip: float,
    batch: int = 1,
    ridge: float | None = None,
    pass_length: Callable[[float], float] | None = None,
    weights_gb: float | None = None,
) -> dict[str, Any]:
    """Everything the command prints, by name; `gamma` None is the best one.

    Args:
        alpha: acceptance probability of a draft token.
        cost: c.
        gamma: tokens drafted in a round.
        round_trip: in passes.
        batch: sessions that share a pass.
        ridge: positions from which a pass grows; None where none is known.
        pass_length: T(n) over T(1); None where nothing is known of it.
        weights_gb: size of the target.
    """
    best = book.best_gamma(alpha, cost, round_trip)
    chosen = best if gamma is None else gamma
    tokens, gain = book.expected_tokens(alpha, chosen), book.speedup(alpha, cost, chosen, round_trip)
    facts: dict[str, Any] = {
        "alpha": alpha,
        "c": cost,
        "gamma": chosen,
        "round_trip": round_trip,
        "tokens_per_round": tokens,
        "speedup": gain,
        "is_loss": gain < 1.0,
        "best_gamma": best,
        "best_speedup": book.speedup(alpha, cost, best, round_trip),
        "most_tokens_per_round": book.limit_tokens(alpha),
        "weights_read_per_token": 1.0 / tokens,
    }
    if chosen:
        facts["break_even_alpha"] = book.break_even_alpha(cost, chosen, round_trip)
        facts["break_even_c"] = book.break_even_cost(alpha, chosen, round_trip)
        facts["levers"] = [
            {"name": lever.name, "before": lever.before, "after": lever.after, "gain": lever.gain}
            for lever in book.levers(alpha, cost, chosen, round_trip)
        ]
        facts["comparisons"] = list(_comparisons(alpha, chosen))
    if weights_gb is not None:
        facts["gigabytes_read_per_token"] = {"plain": weights_gb, "speculative": weights_gb / tokens}
    if pass_length is not None:
        facts["saturation"] = [
            _saturation(alpha, cost, chosen, round_trip, sessions, ridge, pass_length)
            for sessions in dict.fromkeys((1, batch))
        ]
    return facts


def _comparisons(alpha: float, gamma: int) -> list[dict[str, float | str]]:
    """What deeper drafts and a better drafter would commit in a round."""
    found: list[dict[str, float | str]] = []
    before = book.expected_tokens(alpha, gamma)
    if gamma < DEEPER_GAMMA:
        after, more = book.expected_tokens(alpha, DEEPER_GAMMA), DEEPER_GAMMA / gamma - 1.0
        found.append(_change("gamma", gamma, DEEPER_GAMMA, before, after) | {"more_drafting": more})
    if alpha < BETTER_ALPHA:
        found.append(_change("alpha", alpha, BETTER_ALPHA, before, book.expected_tokens(BETTER_ALPHA, gamma)))
    return found


def _change(name: str, at: float, to: float, before: float, after: float) -> dict[str, float | str]:
    return {
        "name": name,
        "from": at,
        "to": to,
        "tokens_before": before,
        "tokens_after": after,
        "gain": after / before - 1.0,
    }


def _saturation(
    alpha: float,
    cost: float,
    gamma: int,
    round_trip: float,
    batch: int,
    ridge: float | None,
    pass_length: Callable[[float], float],
) -> dict[str, float | int | bool | None]:
    positions = batch * (gamma + 1)
    gains = [book.batch_speedup(alpha, cost, g, batch, pass_length, round_trip) for g in range(book.MAX_GAMMA + 1)]
    return {
        "ridge": ridge,
        "batch": batch,
        "share_of_ridge_plain": None if ridge is None else batch / ridge,
        "positions": positions,
        "share_of_ridge_speculative": None if ridge is None else positions / ridge,
        "is_over_ridge": ridge is not None and positions > ridge,
        "speedup": gains[gamma],
        "best_gamma": max(range(len(gains)), key=lambda g: (gains[g], -g)),
        "best_speedup": max(gains),
    }


def _sentences(facts: dict[str, Any]) -> list[str]:
    verdict = f"{facts['speedup']:.2f}×" + (f", {LOSS}" if facts["is_loss"] else "")
    best, most = f"best γ {facts['best_gamma']}: {facts['best_speedup']:.2f}×", facts["most_tokens_per_round"]
    asked = f"α {facts['alpha']:.3g}, c {facts['c']:.3g}, γ {facts['gamma']}"
    lines = [
        f"{asked}, round trip {facts['round_trip']:.3g} passes:",
        f"  {_tokens(facts['tokens_per_round'])}, {verdict}",
        f"  {best}; no γ gives more than {most:.2f} tokens a round",
    ]
    if "levers" in facts:
        needed = facts["break_even_alpha"]
        even = f"c {facts['break_even_c']:.2f}, " if facts["break_even_c"] > 0.0 else "no c, "
        lines.append("  breaks even at " + even + (f"or at α {needed:.2f}" if needed is not None else "and at no α"))
        levers = (f"{x['name']} {x['before']:.3g} → {x['after']:.3g} {x['gain']:+.0%}" for x in facts["levers"])
        lines.append(f"  what pays most: {', '.join(levers)}")
        lines += [f"  {_comparison(found)}" for found in facts["comparisons"]]
    lines.append(_weights(facts))
    for load in facts.get("saturation", []):
        lines += _load(load, facts["gamma"])
    return lines


def _tokens(value: float) -> str:
    """Two digits, rounded; and cut, where that differs, for some write it so."""
    cut = math.floor(value * 100.0 + 1e-9) / 100.0
    written = f"{value:.2f} tokens a round"
    return written if f"{cut:.2f}" == f"{value:.2f}" else f"{written} ({cut:.2f} cut)"


def _comparison(found: dict[str, Any]) -> str:
    sign = {"gamma": "γ", "alpha": "α"}[found["name"]]
    line = (
        f"{sign} {found['from']:.3g} → {found['to']:.3g}: {found['tokens_before']:.2f} → {found['tokens_after']:.2f} "
    )
    line += f"tokens a round ({found['gain']:+.0%})"
    return line + (f" for {found['more_drafting']:+.0%} drafting" if "more_drafting" in found else "")


def _weights(facts: dict[str, Any]) -> str:
    if (read := facts.get("gigabytes_read_per_token")) is None:
        return f"  weights read per token: {facts['weights_read_per_token']:.2f} times their size, plain 1"
    return f"  weights read per token: {read['plain']:.2f} GB plain, {read['speculative']:.2f} GB speculating"


def _load(load: dict[str, Any], gamma: int) -> list[str]:
    gains = f"{load['speedup']:.2f}×; best γ {load['best_gamma']}: {load['best_speedup']:.2f}×"
    if load["ridge"] is None:
        return [f"  no ridge was measured; at batch {load['batch']}: {gains}"]
    over = ", over it" if load["is_over_ridge"] else ""
    alone, together = _share(load["share_of_ridge_plain"]), _share(load["share_of_ridge_speculative"])
    positions = f"with γ {gamma} {load['positions']} positions, {together}{over}"
    return [
        f"  ridge {load['ridge']:.0f} positions: batch {load['batch']} alone {alone}, {positions}",
        f"    at this batch: {gains}",
    ]


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _table(cost: float, round_trip: float) -> Table:
    title = f"speedup by α and γ at c {cost:.3g}, round trip {round_trip:.3g}; ▾ loses"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("α", justify="right")
    for gamma in GAMMAS:
        table.add_column(f"γ {gamma}", justify="right")
    table.add_column("best", justify="right")
    for alpha in ALPHAS:
        gains = [book.speedup(alpha, cost, gamma, round_trip) for gamma in GAMMAS]
        cells = [f"{gain:.2f} " if gain >= 1.0 else f"[red]{gain:.2f}▾[/red]" for gain in gains]
        best = book.best_gamma(alpha, cost, round_trip)
        table.add_row(f"{alpha:g}", *cells, f"γ {best}: {book.speedup(alpha, cost, best, round_trip):.2f}")
    return table


def _draw(path: Path, alpha: float, cost: float, round_trip: float) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"--plot {path} needs matplotlib; install it with: pip install matplotlib") from error
    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    gammas = range(21)
    for value in _around(alpha):
        gains = [book.speedup(value, cost, gamma, round_trip) for gamma in gammas]
        axes.plot(gammas, gains, label=f"α {value:.3g}", linewidth=2.5 if value == alpha else 1.2)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="γ: tokens drafted in a round", ylabel="speedup over plain decoding")
    axes.set_title(f"By the book: c {cost:.3g}, round trip {round_trip:.3g} passes")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _around(alpha: float) -> Sequence[float]:
    return sorted({0.5, 0.7, 0.9, alpha})


def _first(*values: float | None) -> float:
    """The first that is known."""
    return next(value for value in values if value is not None)


def _fields(known: Measured) -> list[str]:
    """What was measured, in words."""
    found = {"α": known.alpha, "c": known.cost, "round trip": known.round_trip, "cost curve": known.curve}
    return [name for name, value in found.items() if value is not None]


def _pass_length(
    gpu: str | None, ridge: float | None, known: Measured
) -> tuple[Callable[[float], float] | None, float | None]:
    """T(n) over T(1), and the ridge: given, of a GPU, or measured; None where nothing is known."""
    at = _ridge(gpu, ridge)
    if at is not None:
        return partial(book.pass_time, ridge=at), at
    if known.curve is not None:
        return known.curve.pass_length, known.curve.ridge
    return None, None


def _ridge(gpu: str | None, ridge: float | None) -> float | None:
    if ridge is not None:
        if not 0.0 < ridge < math.inf:
            raise ConfigurationError(f"--ridge {ridge:g} is no number of positions; give one above 0")
        return ridge
    if gpu is None:
        return None
    found = {name.lower(): accelerator for name, accelerator in book.ACCELERATORS.items()}.get(gpu.lower())
    if found is None:
        raise ConfigurationError(f"--gpu {gpu} is not known; known are {', '.join(book.ACCELERATORS)}, or give --ridge")
    return found.ridge


def _check(alpha: float, cost: float, round_trip: float, gamma: int | None, batch: int) -> None:
    """Refuse values outside the formula's reach, by name."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigurationError(f"--alpha {alpha:g} is no probability; give one from 0 to 1")
    if not 0.0 <= cost < math.inf:
        raise ConfigurationError(f"--c {cost:g} is no cost; give a draft step's time over a target pass's, 0 or more")
    if not 0.0 <= round_trip < math.inf:
        raise ConfigurationError(f"--rtt {round_trip:g} is no round trip; give it in target passes, 0 or more")
    if gamma is not None and not 0 <= gamma <= book.MAX_GAMMA:
        raise ConfigurationError(f"--gamma {gamma} is outside 0 to {book.MAX_GAMMA}")
    if batch < 1:
        raise ConfigurationError(f"--batch {batch} is no number of sessions; give 1 or more")
