"""Ours against every fixed γ and tempo in hindsight, and against plain decoding: `python -m benchmarks.price_cells`.

Each cell is one load: sessions of one or two acceptances, a drafter's speed, round trips to drafter and verifier, and
how many sessions. The best fixed γ and tempo is chosen on half of the texts and compared on the other half; all arms
answer the same texts, and the ratio's interval is Student's over texts.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.simulator.arms import Ours
from benchmarks.simulator.reference import Cell, agreeing_runs, rates
from benchmarks.simulator.run import Simulation, Verifier
from benchmarks.simulator.world import DrafterModel, Network, VerifierModel, closed_loop

MIXES = ((0.8,), (0.5,), (0.9, 0.4))
TOKENS = (0.05, 0.2)  # the drafter's time per token, in passes
ROUND_TRIPS = ((0.0,), (0.3,), (1.0,), (0.0, 1.0))  # to drafter and to verifier, each
SESSIONS = (1, 4, 16, 32, 64, 128)
GAMMAS = (1, 2, 3, 4, 6, 8, 12)
TEMPOS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
ARMS = ((0, 1.0), *((gamma, tempo) for gamma in GAMMAS for tempo in TEMPOS))
PASS_S = 0.02
RIDGE, SLOPE, JITTER, JITTER_PASSES, STAGGER = 64.0, 0.03, 0.02, 1e-3, 0.1
WARM_SHARE = 0.3
NUM_PASSES = {1: 9000, 4: 3000, 16: 900, 32: 600, 64: 400, 128: 300}
NUM_TEXTS = 10  # half of them to choose on
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 10: 2.262}  # 97.5% for so many texts
LEAST_OF_BEST, LEAST_OF_PLAIN = 0.97, 0.99


class Ratio(NamedTuple):
    """A ratio of rates with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Result(NamedTuple):
    """One cell."""

    name: str
    num_sessions: int
    best_gamma: int
    best_tempo: float
    over_best: Ratio
    over_plain: Ratio
    switches_per_round: float
    kind: int


def cells(is_quick: bool) -> Iterator[tuple[str, int, Cell]]:
    """All loads; a tenth of them when quick."""
    number = 0
    for mix in MIXES:
        for token in TOKENS:
            for trips in ROUND_TRIPS:
                for num in SESSIONS:
                    number += 1
                    if is_quick and number % 10 != 1:
                        continue
                    alphas = tuple(mix[i % len(mix)] for i in range(num))
                    round_trips = tuple(2.0 * trips[(i // 2) % len(trips)] for i in range(num))
                    name = f"α {'/'.join(f'{a:g}' for a in mix)} td {token:g} rt {'/'.join(f'{t:g}' for t in trips)}"
                    yield name, num, Cell(alphas, round_trips, token, RIDGE, SLOPE, JITTER, JITTER_PASSES)


def compare(name: str, cell: Cell, arm: str, num_texts: int, scale: float) -> Result:
    """Run one cell."""
    num = len(cell.alphas)
    horizon = NUM_PASSES[num] * scale
    warm = horizon * WARM_SHARE
    seeds = [1000 + i for i in range(num_texts)]
    half = num_texts // 2
    runs = agreeing_runs(cell, seeds, int(horizon * 6) + 64)
    chosen = int(rates(cell, ARMS, runs[:half], horizon, warm, 1).mean(1).argmax())
    pair = rates(cell, (ARMS[chosen], ARMS[0]), runs[half:], horizon, warm, 2)
    ours, switches, kind = [], [], 0
    for seed in seeds[half:]:
        rate, switched, kind = simulate(cell, arm, seed, horizon, warm)
        ours.append(rate)
        switches.append(switched)
    mean = np.array(ours)
    return Result(
        name, num, *ARMS[chosen], ratio(mean / pair[0]), ratio(mean / pair[1]), statistics.fmean(switches), kind
    )


def simulate(cell: Cell, arm: str, seed: int, horizon: float, warm: float) -> tuple[float, float, int]:
    """Tokens per pass length, γ switches per round, and the plan's kind at the end."""
    model = VerifierModel(PASS_S, cell.ridge, cell.slope)
    network = Network(cell.jitter, cell.jitter_passes * PASS_S)
    verifier = Verifier(model, DrafterModel(cell.token * PASS_S), network)
    trips = [trip * PASS_S for trip in cell.round_trips]
    requests = closed_loop(cell.alphas, trips, random.Random(seed), STAGGER * PASS_S)
    policy = Ours(knows_alpha="oracle" in arm, may_draft_ahead="ahead" in arm, seed=seed)
    outcome = Simulation([verifier], requests, policy, seed).run(horizon * PASS_S, warm * PASS_S)
    kind = policy.plan(verifier).kind
    return outcome.tokens_per_s * PASS_S, outcome.switches_per_round, kind


def ratio(values: np.ndarray) -> Ratio:
    """Geometric mean of ratios, with Student's interval of their logarithms."""
    logs = np.log(values)
    mean = float(logs.mean())
    error = STUDENT.get(len(logs), 2.2) * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return Ratio(math.exp(mean), math.exp(mean - error), math.exp(mean + error))


def is_below(found: Ratio, least: float) -> bool:
    """Whether the whole interval lies below."""
    return found.high < least


def main(arguments: Sequence[str]) -> int:
    """Print every cell and how many are below."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells, shorter")
    parser.add_argument("--arm", default="ours", choices=["ours", "oracle", "ours ahead", "oracle ahead"])
    parser.add_argument("--texts", type=int, default=NUM_TEXTS, help="seeds; half of them choose the best fixed arm")
    parser.add_argument("--scale", type=float, default=1.0, help="of the horizons")
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--sessions", type=int, default=0, help="cells of so many sessions")
    options = parser.parse_args(arguments)
    began, results = time.monotonic(), []
    for name, num, cell in cells(options.quick):
        if options.only not in name or options.sessions not in {0, num}:
            continue
        found = compare(name, cell, options.arm, options.texts, options.scale * (0.3 if options.quick else 1.0))
        results.append(found)
        print(
            f"{name} B {num}: over γ {found.best_gamma} tempo {found.best_tempo:g} {found.over_best}, over plain "
            f"{found.over_plain}, switches a round {found.switches_per_round:.3f}, kind {found.kind}",
            flush=True,
        )
    print(summary(options.arm, results, time.monotonic() - began))
    return 0


def summary(arm: str, results: Sequence[Result], seconds: float) -> str:
    """How many cells lie below, and the spread."""
    best = sorted(found.over_best.value for found in results)
    plain = sorted(found.over_plain.value for found in results)
    below_best = [r for r in results if is_below(r.over_best, LEAST_OF_BEST)]
    below_plain = [r for r in results if is_below(r.over_plain, LEAST_OF_PLAIN)]
    lines = [
        f"{arm}: {len(results)} cells in {seconds:.0f} s",
        f"over the best fixed γ and tempo: {_spread(best)}; cells below {LEAST_OF_BEST}: {len(below_best)}",
        f"over plain: {_spread(plain)}; cells below {LEAST_OF_PLAIN}: {len(below_plain)}",
        f"γ switches a round: most {max(found.switches_per_round for found in results):.3f}",
    ]
    lines += [
        f"  below: {r.name} B {r.num_sessions} {r.over_best}, plain {r.over_plain}" for r in below_best + below_plain
    ]
    return "\n".join(lines)


def _spread(ordered: Sequence[float]) -> str:
    return f"least {ordered[0]:.3f}, median {statistics.median(ordered):.3f}, most {ordered[-1]:.3f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
