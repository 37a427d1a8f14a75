"""Figures with their uncertainty: medians, ratios of paired runs, and acceptance by depth. No torch, no numpy."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95% confidence interval."""

    value: float
    low: float
    high: float
    num_samples: int

    def reaches(self, least: float) -> bool:
        """Whether it is at least so much: its interval does not lie below. Without an interval the value decides."""
        return (self.value if math.isnan(self.high) else self.high) >= least

    def exceeds(self, bound: float) -> bool:
        """Whether it is over that: its interval lies above. Without an interval the value decides."""
        return (self.value if math.isnan(self.low) else self.low) > bound

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def bootstrap(samples: Sequence[float], figure: Callable[[Sequence[float]], float], seed: int = 0) -> Estimate:
    """The figure of the samples, with a percentile bootstrap interval (Efron 1979).

    The interval is too narrow for a handful of samples; `num_samples` says how many there were. One sample has none.

    Args:
        samples: at least one.
        figure: of any such sequence.
        seed: of the resampling, so that a report can be made again from its raw data.
    """
    if not samples:
        raise ValueError("a figure of no samples")
    value = figure(samples)
    if len(samples) == 1:
        return Estimate(value, math.nan, math.nan, 1)
    chance = random.Random(seed)
    resampled = sorted(figure(chance.choices(samples, k=len(samples))) for _ in range(NUM_RESAMPLES))
    tail = (1.0 - CONFIDENCE) / 2.0
    last = NUM_RESAMPLES - 1
    return Estimate(value, resampled[round(tail * last)], resampled[round((1.0 - tail) * last)], len(samples))


def median(samples: Sequence[float]) -> Estimate:
    """The median, with a bootstrap interval."""
    return bootstrap(samples, statistics.median)


def geometric_mean(samples: Sequence[float]) -> Estimate:
    """The geometric mean of positive samples: the mean of ratios that does not depend on which is the divisor."""
    return bootstrap(samples, statistics.geometric_mean)


def paired_ratio(above: Iterable[Sequence[float]], below: Iterable[Sequence[float]]) -> Estimate:
    """How many times `above` is `below`, prompt by prompt: the geometric mean of the ratios of medians.

    Args:
        above: for each prompt its measurements in one arm.
        below: for the same prompts those of the other, measured in the same run.
    """
    pairs = zip(above, below, strict=True)
    return geometric_mean([statistics.median(a) / statistics.median(b) for a, b in pairs])


class RoundCounts(Protocol):
    """What acceptance is counted from: a chain's nodes and how many of them held."""

    @property
    def num_drafted(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Depth:
    """How often the draft token at one depth held, where all before it had held."""

    depth: int  # from 1
    num_reached: int
    num_held: int

    @property
    def alpha(self) -> float | None:
        """Acceptance; None where no draft went so deep."""
        return self.num_held / self.num_reached if self.num_reached else None


def acceptance_by_depth(rounds: Iterable[RoundCounts]) -> list[Depth]:
    """Acceptance of chains by depth; a token counts only where it was looked at."""
    drafted = [round_ for round_ in rounds if round_.num_drafted]
    deepest = max((round_.num_drafted for round_ in drafted), default=0)
    return [
        Depth(
            depth,
            sum(round_.num_drafted >= depth and round_.num_accepted >= depth - 1 for round_ in drafted),
            sum(round_.num_accepted >= depth for round_ in drafted),
        )
        for depth in range(1, deepest + 1)
    ]
