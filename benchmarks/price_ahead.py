"""Drafting ahead, for one session: `python -m benchmarks.price_ahead`.

A session that waits for its drafts at the best fixed γ (chosen on other texts) beside ours with drafts that lie ahead:
while a draft is verified the drafter goes on with its likeliest line, the guess of the bonus included.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.price_cells import JITTER, JITTER_PASSES, PASS_S, RIDGE, SLOPE, ratio
from benchmarks.simulator.arms import Fixed, Ours
from benchmarks.simulator.run import Arm, Simulation, Verifier
from benchmarks.simulator.world import DrafterModel, Network, VerifierModel, closed_loop

ALPHAS, TOKENS, ROUND_TRIPS = (0.85, 0.9, 0.95), (0.05, 0.1, 0.2, 0.4), (0.3, 1.0, 2.0)
GAMMAS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
NUM_PASSES = 4000
CHOOSING, COMPARING = (1, 2), (11, 12, 13, 14)
LEAST = 1.15


def rate(arm: Arm, alpha: float, token: float, round_trip: float, seed: int, num_passes: int) -> float:
    """Tokens a pass length of one session, lengths in passes."""
    network = Network(JITTER, JITTER_PASSES * PASS_S)
    verifier = Verifier(VerifierModel(PASS_S, RIDGE, SLOPE), DrafterModel(token * PASS_S), network)
    requests = closed_loop([alpha], [round_trip * PASS_S], random.Random(seed), 0.1 * PASS_S)
    duration_s = num_passes * PASS_S
    return Simulation([verifier], requests, arm, seed).run(duration_s, 0.3 * duration_s).tokens_per_s * PASS_S


def main(arguments: Sequence[str]) -> int:
    """Print a line for each acceptance, drafter and round trip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter")
    num_passes = NUM_PASSES // (8 if parser.parse_args(arguments).quick else 1)
    num_below, num = 0, 0
    for alpha in ALPHAS:
        for token in TOKENS:
            for trip in ROUND_TRIPS:
                at = (alpha, token, trip)
                gamma = max(GAMMAS, key=lambda g: sum(rate(Fixed(g), *at, seed, num_passes) for seed in CHOOSING))
                waiting = np.array([rate(Fixed(gamma), *at, seed, num_passes) for seed in COMPARING])
                near = np.array([rate(Ours(seed=seed), *at, seed, num_passes) for seed in COMPARING])
                ahead = np.array(
                    [rate(Ours(may_draft_ahead=True, seed=seed), *at, seed, num_passes) for seed in COMPARING]
                )
                gain = ratio(ahead / waiting)
                num, num_below = num + 1, num_below + (gain.high < LEAST)
                print(
                    f"α {alpha:g}, td {token:g}, round trip {trip:g}: over the best synchronous γ ({gamma}, "
                    f"{waiting.mean():.2f}× plain): ahead {gain}, ours without {ratio(near / waiting)}",
                    flush=True,
                )
    print(f"below {LEAST}: {num_below} of {num}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
