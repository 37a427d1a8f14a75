"""A target and a drafter that are tables, with a GPU's pass times: policy under load without the arithmetic.

    python -m benchmarks.tables.generate        # writes gpu.json and gpu-drafter.json beside this file

Passes take the time that the table says and sleep through it, so two cores can stand for a verifier with a GPU, and
everything else is real: services, streams, schedule, acceptance. The law looks at the last token alone; a text stays
in the region its prompt began in.

    region   ids        what a drafter's token is accepted with
    high     [0, 8)     .85
    low      [8, 16)    .4
    phases   [16, 32)   .9 in its first half, .3 in its second; a text changes halves every 40 tokens or so
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

SIZE: Final = 8  # ids in a half of a region
NUM_IDS: Final = 4 * SIZE
ALPHAS: Final = (0.85, 0.4, 0.9, 0.3)  # by eighth id
REGIONS: Final[Mapping[str, range]] = {"high": range(8), "low": range(8, 16), "phases": range(16, 32)}
CHANGE: Final = 1 / 40  # of the half, with each token
PASS_US: Final = ((64, 100_000), (128, 200_000))  # memory-bound up to 64 positions, then in proportion
DRAFT_PASS_US: Final = ((64, 5_000), (256, 10_000))


def rows(seed: int = 0) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """The laws p and q, by the last token.

    q is α·p and, with the rest, one id that p never has there: a token drawn from it is accepted with exactly α.
    """
    chance = random.Random(seed)
    target, drafter = {}, {}
    for token in range(NUM_IDS):
        half, alpha = token // SIZE, ALPHAS[token // SIZE]
        own = range(half * SIZE, (half + 1) * SIZE)
        wrong = chance.choice(own)
        p = {other: chance.uniform(0.2, 1.0) for other in own if other != wrong}
        whole = sum(p.values())
        stays = 1.0 - CHANGE if own.start in REGIONS["phases"] else 1.0
        p = {other: stays * weight / whole for other, weight in p.items()}
        if stays < 1.0:
            elsewhere = [other for other in REGIONS["phases"] if other not in own]
            p |= {other: CHANGE / len(elsewhere) for other in elsewhere}
        target[str(token)] = _rounded(p)
        drafter[str(token)] = _rounded({other: alpha * weight for other, weight in p.items()} | {wrong: 1.0 - alpha})
    return target, drafter


def tables() -> dict[str, dict[str, Any]]:
    """Contents by file name."""
    target, drafter = rows()
    return {
        "gpu.json": _table("a target with the pass times of a GPU", target, PASS_US),
        "gpu-drafter.json": _table("its drafter", drafter, DRAFT_PASS_US),
    }


def _table(description: str, law: Mapping[str, Any], pass_us: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {
        "description": f"{description}; made by benchmarks/tables/generate.py",
        "vocabulary": [f" {'klmnprst'[token % SIZE]}{'aeio'[token // SIZE]}" for token in range(NUM_IDS)],
        "law": {"*": [1] * NUM_IDS, **law},
        "pass_us": [list(point) for point in pass_us],
    }


def _rounded(row: Mapping[int, float]) -> dict[str, float]:
    return {str(token): round(weight, 6) for token, weight in row.items()}


def main() -> None:
    """Write the tables."""
    for name, content in tables().items():
        (Path(__file__).parent / name).write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
