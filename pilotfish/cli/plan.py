"""`pilotfish plan`: what speculation gains by the book, before anything is deployed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pilotfish import speedup as book
from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError

GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LOSS = "a loss"


def plan(
    alpha: Annotated[float, typer.Option(metavar="P", help="Acceptance probability of a draft token, 0 to 1.")] = 0.8,
    cost: Annotated[
        float, typer.Option("--cost", "--c", metavar="C", help="A draft step's time over a target pass's.")
    ] = 0.05,
    gamma: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens drafted in a round. Default: the best.", show_default=False)
    ] = None,
    round_trip: Annotated[
        float, typer.Option("--rtt", metavar="R", help="What a round waits for the network, in target passes.")
    ] = 0.0,
    batch: Annotated[int, typer.Option(metavar="B", help="Sessions that share each pass.")] = 1,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Whose ridge: {', '.join(book.ACCELERATORS)}.")
    ] = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="N", help="Positions from which a pass grows, instead of a GPU's.")
    ] = None,
    weights_gb: Annotated[
        float | None, typer.Option(metavar="GB", help="Size of the weights: shows bytes read per committed token.")
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
    """
    _check(alpha, cost, round_trip, gamma, batch)
    facts = figures(alpha, cost, gamma, round_trip, batch, _ridge(gpu, ridge), weights_gb)
    terminal = Terminal.of_process()
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
    weights_gb: float | None = None,
) -> dict[str, Any]:
    """Everything the command prints, by name; `gamma` None is the best one."""
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
    }
    if chosen:
        facts["break_even_alpha"] = book.break_even_alpha(cost, chosen, round_trip)
        facts["break_even_c"] = book.break_even_cost(alpha, chosen, round_trip)
        facts["levers"] = [
            {"name": lever.name, "before": lever.before, "after": lever.after, "gain": lever.gain}
            for lever in book.levers(alpha, cost, chosen, round_trip)
        ]
    if weights_gb is not None:
        facts["gigabytes_read_per_token"] = {"plain": weights_gb, "speculative": weights_gb / tokens}
    if ridge is not None:
        facts["saturation"] = _saturation(alpha, cost, chosen, round_trip, batch, ridge)
    return facts


def _saturation(
    alpha: float, cost: float, gamma: int, round_trip: float, batch: int, ridge: float
) -> dict[str, float | int | bool]:
    positions = batch * (gamma + 1)
    gains = [book.batch_speedup(alpha, cost, g, batch, ridge, round_trip) for g in range(book.MAX_GAMMA + 1)]
    return {
        "ridge": ridge,
        "batch": batch,
        "share_of_ridge_plain": batch / ridge,
        "positions": positions,
        "share_of_ridge_speculative": positions / ridge,
        "is_over_ridge": positions > ridge,
        "speedup": gains[gamma] if gamma < len(gains) else 0.0,
        "best_gamma": max(range(len(gains)), key=lambda g: (gains[g], -g)),
        "best_speedup": max(gains),
    }


def _sentences(facts: dict[str, Any]) -> list[str]:
    verdict = f"{facts['speedup']:.2f}×" + (f", {LOSS}" if facts["is_loss"] else "")
    best, most = f"best γ {facts['best_gamma']}: {facts['best_speedup']:.2f}×", facts["most_tokens_per_round"]
    lines = [
        f"α {facts['alpha']:g}, c {facts['c']:g}, γ {facts['gamma']}, round trip {facts['round_trip']:g} passes:",
        f"  {facts['tokens_per_round']:.2f} tokens a round, {verdict}",
        f"  {best}; no γ gives more than {most:.2f} tokens a round",
    ]
    if "levers" in facts:
        needed = facts["break_even_alpha"]
        lines.append(
            f"  breaks even at c {facts['break_even_c']:.2f}, "
            + (f"or at α {needed:.2f}" if needed is not None else "and at no α")
        )
        lever = facts["levers"][0]
        lines.append(
            f"  what pays most: {lever['name']} {lever['before']:.3g} → {lever['after']:.3g}, {lever['gain']:+.0%}"
        )
    if (read := facts.get("gigabytes_read_per_token")) is not None:
        lines.append(
            f"  weights read per token: {read['plain']:.2f} GB plain, {read['speculative']:.2f} GB speculating"
        )
    if (load := facts.get("saturation")) is not None:
        alone, together = _share(load["share_of_ridge_plain"]), _share(load["share_of_ridge_speculative"])
        over = ", over it" if load["is_over_ridge"] else ""
        lines.append(
            f"  ridge {load['ridge']:.0f} positions: batch {load['batch']} alone {alone}, "
            f"with γ {facts['gamma']} {load['positions']} positions, {together}{over}"
        )
        lines.append(
            f"  at this batch: {load['speedup']:.2f}×; best γ {load['best_gamma']}: {load['best_speedup']:.2f}×"
        )
    return lines


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _table(cost: float, round_trip: float) -> Table:
    title = f"speedup by α and γ at c {cost:g}, round trip {round_trip:g}; under 1.00 it loses"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("α", justify="right")
    for gamma in GAMMAS:
        table.add_column(f"γ {gamma}", justify="right")
    table.add_column("best", justify="right")
    for alpha in ALPHAS:
        gains = [book.speedup(alpha, cost, gamma, round_trip) for gamma in GAMMAS]
        cells = [f"{gain:.2f}" if gain >= 1.0 else f"[red]{gain:.2f}[/red]" for gain in gains]
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
        axes.plot(gammas, gains, label=f"α {value:g}", linewidth=2.5 if value == alpha else 1.2)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="γ: tokens drafted in a round", ylabel="speedup over plain decoding")
    axes.set_title(f"By the book: c {cost:g}, round trip {round_trip:g} passes")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _around(alpha: float) -> Sequence[float]:
    return sorted({0.5, 0.7, 0.9, alpha})


def _ridge(gpu: str | None, ridge: float | None) -> float | None:
    if ridge is not None:
        if ridge <= 0:
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
    if not 0.0 <= cost < float("inf"):
        raise ConfigurationError(f"--c {cost:g} is no cost; give a draft step's time over a target pass's, 0 or more")
    if not 0.0 <= round_trip < float("inf"):
        raise ConfigurationError(f"--rtt {round_trip:g} is no round trip; give it in target passes, 0 or more")
    if gamma is not None and not 0 <= gamma <= book.MAX_GAMMA:
        raise ConfigurationError(f"--gamma {gamma} is outside 0 to {book.MAX_GAMMA}")
    if batch < 1:
        raise ConfigurationError(f"--batch {batch} is no number of sessions; give 1 or more")
