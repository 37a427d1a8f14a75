"""What it gains to know how sure the drafter is: `python -m benchmarks.stopping FILE…`, replayed on recorded drafts.

Two tables. *Foresight*: bits by which what holds was not foreseen, a node, by depth and session alone (the estimator)
and by the drafter's confidence. *Stopping*: tokens less the price of the drafted positions, per pass length, over what
the estimator's γ earns without stopping; beside it the share of verified nodes that were accepted, and how many were
verified. Everything is learned on the way, on one reading of all answers, and counted on a second.

    one price    a node is drawn only if its survival is worth its position and the step that computed its law
    position     only if it is worth its position
    both         so, and no further step begins below a node whose survival is not worth that step too (what we do)

Files come from --record, which needs a target and a drafter: what they say is recorded once, at every position of every
answer (`benchmarks.confidences`).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import confidences, prompts
from benchmarks.confidences import Position
from coordinator.calibration import Line
from coordinator.estimator import Estimator, Evidence, Kind, SessionEstimator

NUM_READINGS = 2  # of which the last counts
NUM_RESAMPLES = 400
WAYS = ("one price", "position", "both")
# of a draft step and of a round trip, in passes; of a position, in tokens
COSTS = tuple((step, 0.1, price) for price in (0.05, 0.1, 0.2, 0.3) for step in (0.0, 0.05, 0.1, 0.2))


@dataclass(slots=True)
class Earned:
    """What an answer came to."""

    num_tokens: int = 0
    num_passes: float = 0.0  # time, in lengths of a pass
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(slots=True)
class Replayed:
    """One answer on its way."""

    positions: list[Position]
    estimator: SessionEstimator
    next: int = 0
    earned: Earned = field(default_factory=Earned)


@dataclass(frozen=True, slots=True)
class Replay:
    """How answers are gone through: costs, and what stops a draft."""

    way: str | None  # None: nothing but γ
    step: float
    round_trip: float
    price: float

    def run(self, answers: Sequence[list[Position]]) -> list[Earned]:
        """What each answer comes to, learned on the way."""
        line, estimator = Line(), Estimator()
        replays: list[Replayed] = []
        for _ in range(NUM_READINGS):
            replays = [Replayed(answer, estimator.session(_kind(answer))) for answer in answers]
            while waiting := [replay for replay in replays if replay.next < len(replay.positions)]:
                for replay in waiting:
                    self._round(replay, line)
        return [replay.earned for replay in replays]

    def _round(self, replay: Replayed, line: Line) -> None:
        here = replay.positions[replay.next]
        survival = replay.estimator.survival(len(here.confidences))
        gamma = max(range(len(survival) + 1), key=lambda gamma: (self._worth(survival, gamma), -gamma))
        speed = (1.0 + sum(survival[:gamma])) / self._time(gamma)
        num_drafted, num_steps = self._draft(here, gamma, line, speed * self.step)
        num_kept = min(here.num_kept, num_drafted)
        replay.next += num_kept + 1
        earned = replay.earned
        earned.num_tokens += num_kept + 1
        earned.num_passes += self._time(num_steps)
        earned.num_drafted += num_drafted
        earned.num_accepted += num_kept
        if gamma == 0:
            replay.estimator.fade(1)
            return
        line.observe(here.confidences[:num_drafted], num_kept)
        if num_drafted:
            evidence = Evidence.of_round(num_drafted, num_drafted, num_kept)
            if num_kept == num_drafted < gamma:
                last_told = here.confidences[min(num_steps, gamma) - 1]
                evidence = evidence.with_undrawn(line.calibration.probability(last_told))
            replay.estimator.observe(evidence)

    def _worth(self, survival: Sequence[float], gamma: int) -> float:
        return (1.0 + sum(survival[:gamma]) - self.price * (gamma + 1)) / self._time(gamma)

    def _time(self, num_steps: int) -> float:
        return 1.0 + (self.round_trip + self.step * num_steps if num_steps else 0.0)

    def _draft(self, here: Position, gamma: int, line: Line, step_price: float) -> tuple[int, int]:
        """Nodes drawn, and steps made for them."""
        if self.way is None:
            return gamma, gamma
        survival = 1.0
        draw_price = self.price + (step_price if self.way == "one price" else 0.0)
        for node, confidence in enumerate(here.confidences[:gamma]):
            survival *= line.calibration.probability(confidence)
            if survival < draw_price:
                return node, node + 1
            if self.way == "both" and survival < self.price + step_price:
                return node + 1, node + 1
        return gamma, gamma


def _kind(answer: Sequence[Position]) -> Kind:
    return Kind.of("drafter", "", answer[0].set, 0.0)


def speed(earned: Sequence[Earned], price: float) -> float:
    """Tokens less the price of the drafted positions, per pass length."""
    worth = sum(one.num_tokens - price * one.num_drafted for one in earned)
    return worth / sum(one.num_passes for one in earned)


def gain(ours: Sequence[Earned], theirs: Sequence[Earned], price: float) -> tuple[float, float, float]:
    """Ratio of the speeds, and its 95% interval over answers."""
    chance = random.Random(1)
    found = []
    for _ in range(NUM_RESAMPLES):
        chosen = [chance.randrange(len(ours)) for _ in ours]
        found.append(speed([ours[i] for i in chosen], price) / speed([theirs[i] for i in chosen], price))
    found.sort()
    edge = NUM_RESAMPLES // 40
    return speed(ours, price) / speed(theirs, price), found[edge], found[-1 - edge]


def foresight(answers: Sequence[list[Position]]) -> tuple[float, float, int]:
    """Bits a node by the estimator and by the calibration, and the number of nodes."""
    line, estimator = Line(), Estimator()
    by_estimator = by_line = 0.0
    num_nodes = 0
    replays = [Replayed(answer, estimator.session(_kind(answer))) for answer in answers]
    while waiting := [replay for replay in replays if replay.next < len(replay.positions)]:
        for replay in waiting:
            here = replay.positions[replay.next]
            num_drafted = len(here.confidences)
            survival = (1.0, *replay.estimator.survival(num_drafted))
            for depth, confidence in enumerate(here.confidences[: here.num_kept + 1]):
                rate = survival[depth + 1] / survival[depth] if survival[depth] else 0.0
                by_estimator += _bits(rate, depth < here.num_kept)
                by_line += _bits(line.calibration.probability(confidence), depth < here.num_kept)
                num_nodes += 1
            line.observe(here.confidences, here.num_kept)
            if num_drafted:
                replay.estimator.observe(Evidence.of_round(num_drafted, num_drafted, here.num_kept))
            replay.next += here.num_kept + 1
    return by_estimator / num_nodes, by_line / num_nodes, num_nodes


def _bits(rate: float, is_kept: bool) -> float:
    bounded = min(0.999, max(0.001, rate))
    return -math.log2(bounded if is_kept else 1.0 - bounded)


def print_tables(answers: Sequence[list[Position]]) -> None:
    """Foresight, then a row for each pair of costs."""
    by_estimator, by_line, num_nodes = foresight(answers)
    print(f"{len(answers)} answers, {num_nodes} nodes: {by_estimator:.3f} bits a node by depth and session, ", end="")
    print(f"{by_line:.3f} by confidence")
    print(f"{'price':>6}{'step':>6}{'γ alone':>22}" + "".join(f"{way:>38}" for way in WAYS))
    for step, round_trip, price in COSTS:
        plain = Replay(None, step, round_trip, price).run(answers)
        row = f"{price:>6}{step:>6}{speed(plain, price):>10.3f}{_accepted(plain):>12}"
        for way in WAYS:
            earned = Replay(way, step, round_trip, price).run(answers)
            ratio, low, high = gain(earned, plain, price)
            row += f"{ratio:>12.3f} [{low:.3f}, {high:.3f}]{_accepted(earned):>10}"
        print(row)


def _accepted(earned: Sequence[Earned]) -> str:
    drafted, accepted = sum(one.num_drafted for one in earned), sum(one.num_accepted for one in earned)
    return f"{accepted / max(1, drafted):.0%} {drafted}"


def main(arguments: Sequence[str]) -> int:
    """Record, or print the tables of all files together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="to read; with --record the one to write")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b", help="a model, or ngram")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=56, help="of an answer")
    parser.add_argument("--gamma", type=int, default=8)
    parser.add_argument("--sets", nargs="+", default=["chat", "reasoning", "code"])
    parser.add_argument("--per-set", type=int, default=2)
    parser.add_argument("--held-out", action="store_true", help="prompts nobody tuned on")
    given = parser.parse_args(arguments)
    if not given.record:
        print_tables([answer for path in given.files for answer in confidences.read(path)])
        return 0
    found = prompts.prompts(is_held_out=given.held_out, per_set=given.per_set)
    chosen = [prompt for prompt in found if prompt.set in given.sets]
    confidences.record(
        given.files[0], given.target, given.drafter, given.dtype, given.temperature, given.tokens, given.gamma, chosen
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
