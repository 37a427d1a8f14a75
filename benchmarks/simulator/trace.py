"""Arrivals from a file: JSON lines or CSV with a header, one request each."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.simulator.world import Phase, Request
from pilotfish.errors import ConfigurationError, NotFound

FIELDS = "arrival_s, prompt_tokens, output_tokens, and if you like alpha, workload"


def read(path: Path, alphas: Sequence[float], round_trip_s: float) -> list[Request]:
    """The requests of a trace, in order of arrival; where a line has no alpha, `alphas` are taken in turn.

    Raises:
        NotFound: no such file.
        ConfigurationError: a line is not a request; the message names it.
    """
    if not path.is_file():
        raise NotFound(f"no trace at {path}; give a .jsonl or .csv file with {FIELDS}")
    found = [
        _request(row, f"{path}, line {number}", alphas[number % len(alphas)], round_trip_s)
        for number, row in _rows(path)
    ]
    if not found:
        raise ConfigurationError(f"{path} holds no request")
    return sorted(found, key=lambda request: request.arrival_s)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            yield from enumerate(csv.DictReader(file), start=2)
            return
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigurationError(f"{path}, line {number} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigurationError(f"{path}, line {number} is no object with {FIELDS}")
            yield number, row


def _request(row: Mapping[str, Any], where: str, alpha: float, round_trip_s: float) -> Request:
    arrival_s = _number(row, "arrival_s", where, 0.0, math.inf)
    num_prompt = _number(row, "prompt_tokens", where, 1.0, 1e7)
    num_output = _number(row, "output_tokens", where, 1.0, 1e7)
    own = row.get("alpha")
    if own not in {None, ""}:
        alpha = _number(row, "alpha", where, 0.0, 1.0)
    workload = str(row.get("workload") or f"α {alpha:g}")
    phases = (Phase(math.inf, alpha),)
    return Request(arrival_s, max(2.0, float(round(num_output))), phases, round_trip_s, workload, round(num_prompt))


def _number(row: Mapping[str, Any], name: str, where: str, least: float, most: float) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where} has no number {name}; a request has {FIELDS}") from error
    if not least <= value <= most:
        raise ConfigurationError(f"{where}: {name} {value:g} is outside {least:g} to {most:g}")
    return value
