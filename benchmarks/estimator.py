"""What each ingredient of the acceptance estimator gains: `python -m benchmarks.estimator`.

Sessions whose acceptance is known are replayed: every round the estimator is asked, the γ that looks best is drafted,
and the estimator learns what came of it. Regret is what that γ earns by its true acceptance, less than the best γ does,
over all rounds. Ingredients are switched off one at a time; one that gains nowhere should go. With --rounds, γ is
replayed over the rounds of a JSONL file of `pilotfish bench` instead: how surely the estimator foresaw what held.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from coordinator.estimator import Estimator, Evidence, Kind, Phase, SessionEstimator, Weights

MAX_GAMMA = 12
COST, ROUND_TRIP = 0.1, 0.3  # of a draft token and of a round, in passes
PROBE_EVERY, PROBE_GAMMA = 10, 3  # tokens without a draft
NUM_SESSIONS, NUM_TOKENS = 40, 240
Course = Callable[[int, int], float]  # (position, depth) -> probability that the node holds, given its parent


class Drawn(NamedTuple):
    """One session."""

    label: str  # of its workload
    course: Course
    num_reasoning: int = 0  # tokens at its beginning that the model reasons


@dataclass(frozen=True, slots=True)
class Scenario:
    """A population of sessions."""

    name: str
    draw: Callable[[random.Random], Drawn]


def steady(_: random.Random) -> Drawn:
    """All alike."""
    return Drawn("one", lambda position, depth: 0.75)


def mixed(chance: random.Random) -> Drawn:
    """Bad, middling and good ones under one label."""
    alpha = chance.choice([0.3, 0.6, 0.9])
    return Drawn("one", lambda position, depth: alpha)


def labelled(chance: random.Random) -> Drawn:
    """The same under labels of their own."""
    alpha = chance.choice([0.3, 0.6, 0.9])
    return Drawn(f"{alpha}", lambda position, depth: alpha)


def spread(chance: random.Random) -> Drawn:
    """Around a mean."""
    alpha = min(0.98, max(0.05, chance.gauss(0.7, 0.1)))
    return Drawn("one", lambda position, depth: alpha)


def drifting(chance: random.Random) -> Drawn:
    """From good to bad or the other way, from beginning to end."""
    first, last = chance.choice([(0.9, 0.3), (0.3, 0.9)])
    return Drawn("one", lambda position, depth: first + (last - first) * min(1.0, position / NUM_TOKENS))


def phases(chance: random.Random) -> Drawn:
    """Good and bad stretches in turn."""
    length = chance.choice([40, 80])
    return Drawn("one", lambda position, depth: 0.92 if position // length % 2 else 0.35)


def falling(chance: random.Random) -> Drawn:
    """The deeper the worse."""
    first = chance.uniform(0.75, 0.95)
    return Drawn("one", lambda position, depth: first * 0.9**depth)


def bursts(chance: random.Random) -> Drawn:
    """Short stretches that are nearly certain, as where an answer copies."""
    length = chance.choice([8, 16])
    return Drawn("one", lambda position, depth: 0.97 if position // length % 3 == 0 else 0.4)


def reasoning(chance: random.Random) -> Drawn:
    """Reasoning that drafts well, then an answer that does not; some sessions are better than others at both."""
    better, num = chance.gauss(0.0, 0.05), chance.randrange(NUM_TOKENS // 3, 2 * NUM_TOKENS // 3)
    return Drawn("one", lambda position, depth: min(0.97, better + (0.88 if position < num else 0.45)), num)


SCENARIOS = tuple(
    Scenario(draw.__name__, draw)
    for draw in (steady, mixed, labelled, spread, drifting, phases, falling, bursts, reasoning)
)


def rate(survival: Sequence[float], gamma: int) -> float:
    """Tokens per pass length of a round of γ; plain decoding is 1."""
    return 1.0 if gamma == 0 else (1.0 + sum(survival[:gamma])) / (1.0 + ROUND_TRIP + COST * gamma)


def best(survival: Sequence[float]) -> int:
    """The γ that earns most."""
    return max(range(len(survival) + 1), key=lambda gamma: (rate(survival, gamma), -gamma))


def regret(scenario: Scenario, weights: Weights, seed: int) -> float:
    """Share of the tokens lost to choosing by estimate, over one population."""
    chance = random.Random(seed)
    estimator = Estimator(weights)
    earned = possible = 0.0
    sessions = [Replayed(estimator, scenario.draw(chance)) for _ in range(NUM_SESSIONS)]
    waiting = list(reversed(sessions))
    active: list[Replayed] = []
    while waiting or active:
        while waiting and len(active) < 8:
            active.append(waiting.pop())
        for session in active:
            gained, most = session.round(chance)
            earned, possible = earned + gained, possible + most
        active = [session for session in active if session.position < NUM_TOKENS]
    return 1.0 - earned / possible


class Replayed:
    """One session in replay."""

    def __init__(self, estimator: Estimator, drawn: Drawn) -> None:
        self.position = 0
        self._course = drawn.course
        self._num_reasoning = drawn.num_reasoning
        self._memory: SessionEstimator = estimator.session(Kind.of("drafter", "model", drawn.label, 0.0))
        self._num_free = 0

    def round(self, chance: random.Random) -> tuple[float, float]:
        """Draft by estimate, learn; what it earns per pass by the truth, and what the best γ does."""
        self._memory.enter(Phase.REASONING if self.position < self._num_reasoning else Phase.ANSWER)
        true = []
        alive = 1.0
        for depth in range(MAX_GAMMA):
            alive *= self._course(self.position, depth)
            true.append(alive)
        gamma = best(self._memory.survival(MAX_GAMMA))
        gained, most = rate(true, gamma), rate(true, best(true))
        if gamma == 0:
            self._num_free += 1
            self._memory.fade(1)
            gamma = PROBE_GAMMA if self._num_free % PROBE_EVERY == 0 else 0
        accepted = 0
        while accepted < gamma and chance.random() < self._course(self.position, accepted):
            accepted += 1
        if gamma:
            self._memory.observe(Evidence.of_round(gamma, gamma, accepted))
        self.position += accepted + 1
        return gained, most


WITHOUT: dict[str, Callable[[Weights], Weights]] = {
    "everything": lambda weights: weights,
    "without the kind": lambda weights: replace(weights, has_kind=False),
    "without the session": lambda weights: replace(weights, has_session=False),
    "without depth smoothing": lambda weights: replace(weights, depth_weight=0.05),
    "without the phase": lambda weights: replace(weights, has_phase=False),
    "without learned ways": lambda weights: replace(weights, learns_way=False),
}


def table(weights: Weights, num_seeds: int, without: dict[str, Callable[[Weights], Weights]]) -> str:
    """Regret by scenario and ingredient, mean and standard error."""
    width = max(map(len, without)) + 2
    lines = ["regret, %".ljust(width) + "".join(scenario.name.rjust(11) for scenario in SCENARIOS) + "       mean"]
    for name, change in without.items():
        means, cells = [], ""
        for scenario in SCENARIOS:
            found = [100 * regret(scenario, change(weights), seed) for seed in range(num_seeds)]
            mean = sum(found) / len(found)
            error = math.sqrt(sum((value - mean) ** 2 for value in found) / max(1, len(found) - 1) / len(found))
            means.append(mean)
            cells += f"{mean:.1f}±{error:.1f}".rjust(11)
        lines.append(name.ljust(width) + cells + f"{sum(means) / len(means):.2f}".rjust(11))
    return "\n".join(lines)


def foresight(rows: Iterable[dict[str, float]], weights: Weights) -> float:
    """Mean log loss, in bits, of the nodes of recorded rounds under what was estimated before each."""
    estimator = Estimator(weights)
    sessions: dict[tuple[object, ...], SessionEstimator] = {}
    bits, num_nodes = 0.0, 0
    for row in rows:
        drafted, accepted = int(row["num_drafted"]), int(row["num_accepted"])
        if not drafted:
            continue
        key = tuple(row.get(name) for name in ("arm", "set", "prompt", "repeat", "temperature"))
        kind = Kind.of(str(row.get("arm")), "", str(row.get("set")), float(row.get("temperature", 0.0)))
        memory = sessions.setdefault(key, estimator.session(kind))
        survival = (1.0, *memory.survival(drafted))
        for depth in range(min(accepted + 1, drafted)):
            share = min(0.999, max(0.001, survival[depth + 1] / survival[depth] if survival[depth] else 0.0))
            bits -= math.log2(share if depth < accepted else 1.0 - share)
            num_nodes += 1
        memory.observe(Evidence.of_round(drafted, drafted, accepted))
    return bits / num_nodes if num_nodes else math.nan


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=Path, default=None, help="a .rounds.jsonl of pilotfish bench")
    options = parser.parse_args(arguments)
    weights = Weights()
    if options.rounds is None:
        print(table(weights, options.seeds, WITHOUT))
        return 0
    by_arm: dict[str, list[dict[str, float]]] = defaultdict(list)
    for line in options.rounds.read_text().splitlines():
        row = json.loads(line)
        by_arm[str(row["arm"])].append(row)
    for arm, rows in by_arm.items():
        if any(row["num_drafted"] for row in rows):
            losses = ", ".join(f"{name} {foresight(rows, change(weights)):.3f}" for name, change in WITHOUT.items())
            print(f"{arm}: bits a node: {losses}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
