"""Simulated figures as a picture: over the rate of requests where there are several, else side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigurationError

PANELS = (("tokens_per_s", "tokens per second", 1.0), ("token_s_p50", "time per token, median, ms", 1e3))


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a PNG.

    Raises:
        ConfigurationError: there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"--plot {path} needs matplotlib; install it with: pip install matplotlib") from error
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    names = list(dict.fromkeys(name_of(row) for row in rows))
    rates = sorted({row["rate_per_s"] for row in rows})
    for axes, (field, label, scale) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for place, name in enumerate(names):
            own = [row for row in rows if name_of(row) == name and row[field] is not None]
            values = [row[field] * scale for row in own]
            if len(rates) > 1:
                axes.plot([row["rate_per_s"] for row in own], values, marker="o", markersize=3, label=name)
            elif values:
                axes.bar(place, values[0])
        if len(rates) > 1:
            axes.set(xlabel="requests per second", ylabel=label)
            axes.legend(frameon=False, fontsize=8)
        else:
            axes.set(ylabel=label)
            axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    figure.savefig(path, dpi=150)


def name_of(row: dict[str, Any]) -> str:
    """What tells a line of the table apart, its load aside."""
    where = "" if row["placement"] in {"none", "remote"} else f", {row['placement']}"
    trip = f", {row['round_trip_s'] * 1e3:g} ms" if row["placement"] == "remote" else ""
    return f"{row['arm']}{where}{trip}"
