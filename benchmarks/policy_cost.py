"""What deciding costs: `python -m benchmarks.policy_cost`.

A decision is what a coordinator computes for a session and round: survival, the profile, and the policy's answer to the
plan. A plan is what a verifier solves for 1,000 sessions of four acceptances, two drafters, three round trips, all of
them noisy. Times are of this process alone, the median of many.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.simulator.world import VerifierModel
from coordinator.adaptive import AdaptivePolicy
from coordinator.estimator import Estimator, Evidence, Kind
from coordinator.outlook import Outlook
from coordinator.policy import Snapshot
from pilotfish.messages import DrafterLoad, Speculation, VerifierLoad
from pilotfish.price import Plan, Profile, choose
from verifier.crowd import Crowd
from verifier.plan import solve

MAX_GAMMA = 16
MAX_DECISION_US, MAX_PLAN_MS = 20.0, 5.0
NUM_SESSIONS = 1000


def median_s(work: Callable[[], object], count: int, batch: int) -> float:
    """Median time of one call, in seconds of processor time."""
    found = []
    for _ in range(count):
        began = time.process_time_ns()
        for _ in range(batch):
            work()
        found.append((time.process_time_ns() - began) / batch / 1e9)
    return statistics.median(found)


def crowd(chance: random.Random) -> Crowd:
    """Sessions as they are found together."""
    profiles = []
    for _ in range(NUM_SESSIONS):
        alpha, alive, survival = chance.choice([0.4, 0.6, 0.8, 0.9]), 1.0, []
        for _ in range(MAX_GAMMA):
            alive *= min(0.99, max(0.02, alpha + chance.gauss(0.0, 0.05)))
            survival.append(alive)
        token_s = chance.choice([0.001, 0.004]) * chance.uniform(0.9, 1.1)
        round_trip_s = chance.choice([0.0005, 0.006, 0.02]) * chance.uniform(0.8, 1.2)
        profiles.append(Profile(tuple(survival), 0.002, token_s, round_trip_s, may_draft_ahead=chance.random() < 0.5))
    return Crowd.of(profiles)


def main() -> int:
    """Print both, beside what they may be."""
    chance = random.Random(1)
    session = Estimator().session(Kind.of("drafter", "model", "chat", 0.8))
    for accepted in (4, 2, 0, 3, 4, 1, 4) * 10:
        session.observe(Evidence.of_round(4, 4, accepted))
    plan = Plan(0.2, 0.024, 0.02, 5000.0, 1)
    drafter, load = DrafterLoad(500, 1000), VerifierLoad(pass_us=20_000, num_sessions=64, saturation=0.4, plan=plan)
    policy = AdaptivePolicy()

    def answer() -> object:
        outlook = Outlook(session.survival(MAX_GAMMA), 1.0, 0.001, 7)
        return choose(outlook.profile(drafter, may_draft_ahead=True), plan, MAX_GAMMA)

    def decide() -> object:
        outlook = Outlook(session.survival(MAX_GAMMA), 1.0, 0.001, 7)
        snapshot = Snapshot(100, 1000, 1000, MAX_GAMMA, True, Speculation(), load, drafter, outlook)
        return policy.decide(snapshot)

    def learn() -> None:
        session.observe(Evidence.of_round(4, 4, 2))

    print(
        f"a decision: {median_s(answer, 50, 200) * 1e6:.1f} µs of survival and choice (at most {MAX_DECISION_US:g}), "
        f"{median_s(decide, 50, 200) * 1e6:.1f} µs with the policy around it; "
        f"learning from a round: {median_s(learn, 50, 200) * 1e6:.1f} µs"
    )
    many = crowd(chance)
    for name, per_session in (("idle", 0.1), ("at the ridge", 1.0), ("saturated", 10.0)):
        curve = VerifierModel(0.02, ridge=NUM_SESSIONS * 3 / per_session).curve()
        found = solve(many, curve, MAX_GAMMA)
        milliseconds = median_s(lambda curve=curve: solve(many, curve, MAX_GAMMA), 30, 1) * 1e3  # type: ignore[misc]
        gain = found.tokens_per_s / (NUM_SESSIONS / float(curve(np.array([float(NUM_SESSIONS)]))[0]))
        print(
            f"a plan for {NUM_SESSIONS} sessions, {name}: {milliseconds:.1f} ms (at most {MAX_PLAN_MS:g}), "
            f"of which {median_s(many.classes, 30, 1) * 1e3:.1f} ms to group them; {gain:.2f} times plain"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
