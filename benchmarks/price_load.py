"""From one session to past saturation, near and far: `python -m benchmarks.price_load`.

A 70B target on H100s, drafters on L4s. At every round trip and number of sessions: ours beside an oracle that knows
the acceptances, and beside plain decoding; whether goodput falls off a cliff between neighbouring loads; how often γ
switches; and what one straggler costs the others (that alone with --straggler).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from benchmarks.simulator.arms import Fixed, Ours
from benchmarks.simulator.outcome import Outcome
from benchmarks.simulator.run import Arm, Simulation
from benchmarks.simulator.scenario import Deployment
from benchmarks.simulator.world import Network, Request, closed_loop

DEPLOYMENT = Deployment("70b", "H100", 4, "0.5b", "L4")
ALPHAS = (0.6, 0.7, 0.8)
ROUND_TRIPS_S = (0.0003, 0.003, 0.01, 0.03, 0.08)
SESSIONS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
NUM_PASSES = {1: 6000, 2: 4000, 4: 2500, 8: 1500, 12: 1200, 16: 1000}
FEWEST_PASSES = 500
MIN_OF_ORACLE, MAX_CLIFF, MAX_SWITCHES, MAX_STRAGGLER = 0.97, 0.05, 0.05, 0.03


class Point(NamedTuple):
    """One load."""

    round_trip_s: float
    num_sessions: int
    plain: float  # tokens per second
    ours: float
    oracle: float
    switches_per_round: float


def simulate(arm: Arm, requests: Sequence[Request], num_passes: int, seed: int) -> Outcome:
    """A closed loop for about so many passes, a third of them for warming up."""
    verifiers = DEPLOYMENT.verifiers(Network(jitter=0.02, jitter_s=20e-6 + 0.02 * requests[0].round_trip_s))
    duration_s = num_passes * verifiers[0].model.seconds(len(requests))
    return Simulation(verifiers, requests, arm, seed).run(duration_s, duration_s / 3)


def loop(num_sessions: int, round_trip_s: float, seed: int) -> list[Request]:
    """Sessions that never end."""
    alphas = [ALPHAS[i % len(ALPHAS)] for i in range(num_sessions)]
    return closed_loop(alphas, [round_trip_s] * num_sessions, random.Random(seed), 0.005)


def point(round_trip_s: float, num_sessions: int, seeds: Sequence[int], scale: float) -> Point:
    """Three arms at one load, on the same texts."""
    num_passes = round(scale * NUM_PASSES.get(num_sessions, FEWEST_PASSES))
    plain = ours = oracle = switches = 0.0
    for seed in seeds:
        requests = loop(num_sessions, round_trip_s, seed)
        plain += simulate(Fixed(0), requests, num_passes, seed).tokens_per_s / len(seeds)
        oracle += simulate(Ours(knows_alpha=True, seed=seed), requests, num_passes, seed).tokens_per_s / len(seeds)
        outcome = simulate(Ours(seed=seed), requests, num_passes, seed)
        ours += outcome.tokens_per_s / len(seeds)
        switches += outcome.switches_per_round / len(seeds)
    return Point(round_trip_s, num_sessions, plain, ours, oracle, switches)


def straggler(seeds: Sequence[int], scale: float) -> float:
    """What a session whose drafts come two passes late costs the 15 others: share of their tokens, by the mean."""
    lost = 0.0
    for seed in seeds:
        requests = loop(16, 0.003, seed)
        late = [replace(requests[0], straggles_s=0.035), *requests[1:]]
        rates = []
        for load in (requests, late):
            by_session = simulate(Ours(seed=seed), load, round(1000 * scale), seed).tokens_by_session
            rates.append(sum(num for session, num in by_session.items() if session))
        lost += (1.0 - rates[1] / rates[0]) / len(seeds)
    return lost


def main(arguments: Sequence[str]) -> int:
    """Print every point, and what was to be shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few loads, shorter")
    parser.add_argument("--straggler", action="store_true", help="only what one straggler of 16 costs the others")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(arguments)
    began, scale, seeds = time.monotonic(), 0.3 if options.quick else 1.0, range(1, 1 + options.seeds)
    if options.straggler:
        print(_straggling(straggler(seeds, scale)))
        return 0
    points = []
    for round_trip_s in ROUND_TRIPS_S[:: 2 if options.quick else 1]:
        for num_sessions in SESSIONS[:: 3 if options.quick else 1]:
            found = point(round_trip_s, num_sessions, seeds, scale)
            points.append(found)
            print(
                f"rtt {round_trip_s * 1e3:g} ms, {num_sessions} sessions: plain {found.plain:.0f} tok/s, "
                f"ours {found.ours / found.plain:.3f}×, oracle {found.oracle / found.plain:.3f}×, "
                f"ours over oracle {found.ours / found.oracle:.3f}, switches a round {found.switches_per_round:.3f}",
                flush=True,
            )
    print(summary(points, straggler(seeds, scale)))
    print(f"{time.monotonic() - began:.0f} s")
    return 0


def summary(points: Sequence[Point], lost: float) -> str:
    """The worst of each figure, beside what it must be."""
    of_oracle = min(points, key=lambda p: p.ours / p.oracle)
    of_plain = min(points, key=lambda p: p.ours / p.plain)
    switching = max(points, key=lambda p: p.switches_per_round)
    falls = [
        (1.0 - after.ours / before.ours, before)
        for before, after in pairwise(points)
        if before.round_trip_s == after.round_trip_s
    ]
    cliff, before = max(falls)
    lines = [
        f"ours over oracle: least {of_oracle.ours / of_oracle.oracle:.3f} (at least {MIN_OF_ORACLE}){_at(of_oracle)}",
        f"ours over plain: least {of_plain.ours / of_plain.plain:.3f}{_at(of_plain)}",
        f"goodput from a load to the next: falls by {max(cliff, 0.0):.3f} (at most {MAX_CLIFF}){_at(before)}",
        f"γ switches a round: {switching.switches_per_round:.3f} (at most {MAX_SWITCHES}){_at(switching)}",
        _straggling(lost),
    ]
    return "\n".join(lines)


def _straggling(lost: float) -> str:
    return f"one straggler of 16 costs the others {lost:.3f} (at most {MAX_STRAGGLER})"


def _at(worst: Point) -> str:
    return f", at {worst.num_sessions} sessions, rtt {worst.round_trip_s * 1e3:g} ms"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
