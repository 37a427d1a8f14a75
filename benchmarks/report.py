"""Tables and files of what was measured."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.records import Measurement, RoundRecord, as_rows
from benchmarks.statistics import Depth, Estimate, acceptance_by_depth, median, paired_ratio

LEAST_TOKENS = 8  # an answer must be so long for its rate to count
PACKAGES = ("pilotfish", "torch", "transformers", "grpcio", "protobuf")


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on one prompt set."""

    set: str
    arm: str
    temperature: float
    num_answers: int
    tokens_per_s: Estimate | None  # None: no answer was long enough
    ratio: Estimate | None  # rate over that of the baseline, prompt by prompt
    ratio_beside_drafting: Estimate | None  # the same if drafting took no time; None: nothing was drafted
    tokens_per_pass: float
    acceptance: float | None  # None: nothing was drafted
    num_same: int | None  # answers with the baseline's very ids; None: drawn by chance, not comparable


Key = tuple[str, int]  # prompt, repeat


def cells(measurements: Sequence[Measurement], arms: Sequence[str], baseline: str) -> list[Cell]:
    """Every arm on every set, and on all together (set "all").

    Args:
        measurements: of one run.
        arms: their names, in the order they are to be shown.
        baseline: name of the arm that the others are compared with.
    """
    groups: dict[tuple[float, str], dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for one in measurements:
        groups[one.temperature, one.set][one.arm].append(one)
        groups[one.temperature, "all"][one.arm].append(one)
    result = []
    for (temperature, name), by_arm in groups.items():
        base = by_arm.get(baseline, [])
        result += [_cell(name, arm, temperature, by_arm[arm], base) for arm in arms if arm in by_arm]
    return sorted(result, key=lambda cell: cell.set == "all")


def _cell(name: str, arm: str, temperature: float, of_arm: list[Measurement], of_base: list[Measurement]) -> Cell:
    rates = _rates(of_arm)
    rounds = [round_ for one in of_arm for round_ in one.answer.rounds]
    num_drafted = sum(round_.num_drafted for round_ in rounds)
    return Cell(
        set=name,
        arm=arm,
        temperature=temperature,
        num_answers=len(of_arm),
        tokens_per_s=median([rate for of_prompt in rates.values() for rate in of_prompt]) if rates else None,
        ratio=_ratio(rates, _rates(of_base)),
        ratio_beside_drafting=_ratio(_rates(of_arm, is_beside_drafting=True), _rates(of_base)) if num_drafted else None,
        tokens_per_pass=sum(len(one.answer.ids) for one in of_arm) / max(1, len(rounds)),
        acceptance=sum(round_.num_accepted for round_ in rounds) / num_drafted if num_drafted else None,
        num_same=_num_same(of_arm, of_base) if temperature == 0 else None,
    )


def _ratio(rates: Mapping[str, Sequence[float]], base_rates: Mapping[str, Sequence[float]]) -> Estimate | None:
    common = [prompt for prompt in rates if prompt in base_rates]
    return paired_ratio((rates[p] for p in common), (base_rates[p] for p in common)) if common else None


def _rates(measurements: Iterable[Measurement], *, is_beside_drafting: bool = False) -> dict[str, list[float]]:
    """Rates by prompt, of the answers that are long enough."""
    rates = defaultdict(list)
    for one in measurements:
        answer = one.answer
        rate = answer.tokens_per_s_beside_drafting if is_beside_drafting else answer.tokens_per_s
        if len(answer.ids) >= LEAST_TOKENS and rate is not None:
            rates[f"{one.set}/{one.prompt}"].append(rate)
    return rates


def _num_same(of_arm: Iterable[Measurement], of_base: Iterable[Measurement]) -> int:
    expected = {(one.set, one.prompt, one.repeat): one.answer.ids for one in of_base}
    return sum(expected.get((one.set, one.prompt, one.repeat)) == one.answer.ids for one in of_arm)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """α by depth, of one arm on one set at one temperature."""

    set: str
    arm: str
    temperature: float
    depths: list[Depth]


def acceptances(measurements: Iterable[Measurement]) -> list[Acceptance]:
    """α by set, arm, temperature and depth, where anything was drafted."""
    rounds: dict[tuple[str, str, float], list[RoundRecord]] = defaultdict(list)
    for one in measurements:
        rounds[one.set, one.arm, one.temperature] += one.answer.rounds
    found = [Acceptance(*key, acceptance_by_depth(of_key)) for key, of_key in rounds.items()]
    return [one for one in found if one.depths]


def speed_table(measured: Sequence[Cell], baseline: str) -> str:
    """A Markdown table of cells."""
    head = (
        "set",
        "T",
        "arm",
        "answers",
        "tokens/s",
        f"× {baseline}",
        "drafting not counted",
        "tokens/pass",
        "acceptance",
        "same ids",
    )
    rows = [
        (
            cell.set,
            f"{cell.temperature:g}",
            cell.arm,
            str(cell.num_answers),
            "" if cell.tokens_per_s is None else f"{cell.tokens_per_s.value:.1f}",
            "" if cell.ratio is None or cell.arm == baseline else str(cell.ratio),
            "" if cell.ratio_beside_drafting is None else f"{cell.ratio_beside_drafting.value:.2f}",
            f"{cell.tokens_per_pass:.2f}",
            "" if cell.acceptance is None else f"{cell.acceptance:.0%}",
            "" if cell.num_same is None or cell.arm == baseline else f"{cell.num_same}/{cell.num_answers}",
        )
        for cell in measured
    ]
    return markdown(head, rows)


def acceptance_table(found: Sequence[Acceptance], max_depth: int = 8) -> str:
    """A Markdown table of α; a cell that fewer than 20 tokens reached is in brackets."""
    head = ("set", "T", "arm", *(f"α{depth}" for depth in range(1, max_depth + 1)))
    rows = [
        (one.set, f"{one.temperature:g}", one.arm, *(_alpha(depth) for depth in one.depths[:max_depth]))
        for one in found
    ]
    return markdown(head, rows)


def _alpha(depth: Depth) -> str:
    if depth.alpha is None:
        return ""
    return f"{depth.alpha:.2f}" if depth.num_reached >= 20 else f"({depth.alpha:.2f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are aligned in the source too."""
    filled = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    widths = [max(len(line[column]) for line in (head, *filled)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in (head, *filled)
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def environment() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def write(directory: Path, name: str, facts: Mapping[str, Any], measurements: Sequence[Measurement]) -> Path:
    """Write NAME.json (what was asked, all answers, all figures) and NAME.rounds.jsonl (a line per round)."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    content = {
        "environment": environment(),
        **facts,
        "measurements": [{**one.as_dict(), "answer": _without_rounds(one)} for one in measurements],
    }
    path.write_text(json.dumps(content, indent=1, default=_as_json), encoding="utf-8")
    with (directory / f"{name}.rounds.jsonl").open("w", encoding="utf-8") as lines:
        for row in as_rows(measurements):
            lines.write(json.dumps(row) + "\n")
    return path


def _without_rounds(one: Measurement) -> dict[str, Any]:
    answer = dataclasses.asdict(one.answer)
    del answer["rounds"]
    return answer


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
