"""Goodput under targets for time per token: `python -m benchmarks.price_targets`.

A verifier with passes of 20 ms up to a ridge of 48 positions. Half of the requests want a token within a target that
plain decoding misses, the others within one that is easily kept. At each load: tokens per second of the requests that
met theirs, where nobody knows of targets (by each objective) and where sessions do; and how many of both kinds met
theirs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from benchmarks.simulator.arms import Fixed, Ours
from benchmarks.simulator.outcome import Outcome
from benchmarks.simulator.run import Arm, Simulation, Verifier
from benchmarks.simulator.world import DrafterModel, Network, Phase, Request, VerifierModel
from pilotfish.messages import Objective

MODEL = VerifierModel(0.02, ridge=48.0)
DRAFTER = DrafterModel(0.0015)
ALPHAS = (0.6, 0.7, 0.8)
ROUND_TRIP_S = 0.001
TIGHT_S, EASY_S = 0.016, 0.1
NUM_TOKENS = 200
RATES = (2.0, 5.0, 6.5, 8.0, 10.0)  # 12 is what plain decoding can do
DURATION_S, WARM_S = 60.0, 15.0


class Row(NamedTuple):
    """One arm at one load."""

    name: str
    goodput: float
    met_tight: float  # share of the requests
    met_easy: float


def requests(rate_per_s: float, seed: int) -> list[Request]:
    """Open-loop arrivals, every other one with the tight target."""
    chance, found, now_s = random.Random(seed), list[Request](), 0.0
    while (now_s := now_s + chance.expovariate(rate_per_s)) < DURATION_S:
        phases = (Phase(inf, chance.choice(ALPHAS)),)
        target_s = EASY_S if len(found) % 2 else TIGHT_S
        found.append(Request(now_s, NUM_TOKENS, phases, ROUND_TRIP_S, num_prompt_tokens=64, token_target_s=target_s))
    return found


def arms(seed: int) -> dict[str, Arm]:
    """Plain, ours by either objective for all, and ours that knows the targets."""
    return {
        "plain": Fixed(0),
        "latency for all": Ours(seed=seed, objective=Objective.LATENCY),
        "balanced for all": Ours(seed=seed),
        "targets": Ours(seed=seed, knows_targets=True),
    }


def rows(rate_per_s: float, seeds: Sequence[int]) -> list[Row]:
    """Every arm at one load, mean over texts and arrivals."""
    by_name: dict[str, list[Row]] = {}
    for seed in seeds:
        asked = requests(rate_per_s, seed)
        for name, arm in arms(seed).items():
            verifier = Verifier(MODEL, DRAFTER, Network(jitter=0.02, jitter_s=20e-6))
            outcome = Simulation([verifier], asked, arm, seed).run(DURATION_S, WARM_S)
            row = Row(name, outcome.goodput(), _met(outcome, TIGHT_S), _met(outcome, EASY_S))
            by_name.setdefault(name, []).append(row)
    return [
        Row(name, *(sum(row[field] for row in found) / len(found) for field in range(1, 4)))  # type: ignore[misc]
        for name, found in by_name.items()
    ]


def _met(outcome: Outcome, target_s: float) -> float:
    kind = [done.token_s <= target_s for done in outcome.finished if done.token_target_s == target_s]
    return sum(kind) / len(kind) if kind else 0.0


def main(arguments: Sequence[str]) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES), help="requests per second")
    options = parser.parse_args(arguments)
    for rate_per_s in map(float, options.rates.split(",")):
        for row in rows(rate_per_s, range(1, 1 + options.seeds)):
            print(
                f"{rate_per_s:g}/s, {row.name}: goodput {row.goodput:.0f} tok/s, within {TIGHT_S * 1e3:g} ms "
                f"{row.met_tight:.2f}, within {EASY_S * 1e3:g} ms {row.met_easy:.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
