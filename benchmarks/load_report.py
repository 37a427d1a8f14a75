"""What was measured under load as a file of raw data, as a table, and as a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import Block, Load
from benchmarks.report import environment, markdown
from benchmarks.statistics import Estimate
from benchmarks.verdicts import LEAST_OF_FIXED, LEAST_OF_PLAIN, Point, points
from pilotfish.errors import ConfigurationError

LABELS = {"plain": "plain", "fixed": "best fixed γ", "auto": "by the price"}


def write(path: Path, setup: Mapping[str, Any], load: Load, blocks: Sequence[Block]) -> None:
    """All blocks, with what was asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {
        "workloads": {workload.name: [ask.name for ask in workload.asks] for workload in load.workloads},
        "max_tokens": {workload.name: workload.max_tokens for workload in load.workloads},
        "concurrencies": list(load.concurrencies),
        "turns": load.turns,
        "min_tokens": load.min_tokens,
        "has_labels": load.has_labels,
    }
    rows = [dataclasses.asdict(block) for block in blocks]
    content = {"environment": environment(), "setup": dict(setup), "load": asked, "blocks": rows}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def read(paths: Sequence[Path]) -> list[Block]:
    """The blocks of earlier runs together; a later run's turns follow the ones before it.

    Raises:
        ConfigurationError: a file that holds none, or runs whose arms differ.
    """
    blocks: list[Block] = []
    for path in paths:
        first = 2 * -(-(1 + max((block.turn for block in blocks), default=-1)) // 2)  # even: halves stay halves
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["blocks"]
            found = [Block(**{**row, "first_token_s": tuple(row["first_token_s"])}) for row in rows]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} holds no blocks of `pilotfish bench load`: {error}") from error
        blocks += [dataclasses.replace(block, turn=first + block.turn) for block in found]
        if {block.arm for block in found} != {block.arm for block in blocks}:
            raise ConfigurationError(f"{path} has other arms than {paths[0]}; give runs of the same --gammas")
    return blocks


def table(found: Sequence[Point]) -> str:
    """Three arms at each load."""
    head = (
        "workload", "at once", "plain, tokens/s", "best fixed γ", "its rate × plain", "ours × plain",
        f"≥ {LEAST_OF_PLAIN:g}", "ours × best fixed", f"≥ {LEAST_OF_FIXED:g}",
    )  # fmt: skip
    return markdown(head, [_row(point) for point in found])


def _row(point: Point) -> tuple[str, ...]:
    plain = point.tokens_per_s.get("plain")
    return (
        point.workload,
        str(point.concurrency),
        f"{plain.value:.1f}" if plain else "",
        point.best or "",
        str(point.fixed_over_plain or ""),
        str(point.ours_over_plain or ""),
        _reaches(point.ours_over_plain, LEAST_OF_PLAIN),
        str(point.ours_over_fixed or ""),
        _reaches(point.ours_over_fixed, LEAST_OF_FIXED),
    )


def _reaches(found: Estimate | None, least: float) -> str:
    if found is None:
        return ""
    return "yes" if found.reaches(least) else "no"


def draw(path: Path, blocks: Sequence[Block]) -> None:
    """Write a PNG: tokens per second of the three arms over the number of sessions, a panel a workload.

    Raises:
        ConfigurationError: there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"--plot {path} needs matplotlib; install it with: pip install matplotlib") from error
    found = points(blocks)
    names = list(dict.fromkeys(point.workload for point in found))
    figure = Figure(figsize=(max(4.5, 3.6 * len(names)), 3.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        of_load = sorted((point for point in found if point.workload == name), key=lambda point: point.concurrency)
        for arm, label in LABELS.items():
            own = [(point.concurrency, point.tokens_per_s[arm]) for point in of_load if arm in point.tokens_per_s]
            if own:
                sessions, rates = [number for number, _ in own], [rate for _, rate in own]
                axes.plot(sessions, [rate.value for rate in rates], marker="o", markersize=3, label=label)
                axes.fill_between(sessions, [rate.low for rate in rates], [rate.high for rate in rates], alpha=0.15)
        ticks = [point.concurrency for point in of_load]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set(title=name, xlabel="sessions at once", ylim=(0, None))
    figure.axes[0].set_ylabel("tokens per second")
    figure.axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
