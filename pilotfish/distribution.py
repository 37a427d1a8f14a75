"""Sparse q: a drafter quantises its distribution first, then draws, then sends exactly what it drew from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite, log

UNIFORM_BITS = 53  # a uniform is an integer over 2**53, so that draws are integer arithmetic


@dataclass(frozen=True, slots=True)
class Distribution:
    """q(id) = weight / total over a few ids, 0 elsewhere; every weight is at least 1 and no id comes twice."""

    ids: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.weights)

    def probability(self, token: int) -> float:
        """q(token); 0.0 outside the support."""
        return self.weights[self.ids.index(token)] / self.total if token in self.ids else 0.0


def quantise(ids: Sequence[int], probabilities: Sequence[float], num_bits: int) -> Distribution:
    """The distribution in integer weights of at most `num_bits` bits: the largest gets the largest weight.

    An id whose weight rounds to 0 is left out, so what is drawn from the result has a weight.

    Args:
        ids: the ids kept (the top K), each once.
        probabilities: of those ids, in any scale.
        num_bits: of a weight, 1 to 32.

    Raises:
        ValueError: no id has a finite, positive probability, or `num_bits` is out of range.
    """
    if not 1 <= num_bits <= 32:
        raise ValueError(f"num_bits must be from 1 to 32, is {num_bits}")
    largest = max(probabilities, default=0.0)
    if not (0.0 < largest < inf) or not all(map(isfinite, probabilities)):
        raise ValueError(f"cannot quantise {len(ids)} probabilities whose largest is {largest}: not a distribution")
    scale = ((1 << num_bits) - 1) / largest
    weights = [round(probability * scale) for probability in probabilities]
    kept = [(token, weight) for token, weight in zip(ids, weights, strict=True) if weight > 0]
    return Distribution(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))


def draw(distribution: Distribution, uniform: float) -> int:
    """The id that a uniform of 53 bits in [0, 1) selects; exact in integers.

    Each id is chosen by as many of the 2**53 uniforms as its weight says, give or take one.
    """
    cumulated = list(accumulate(distribution.weights))
    point = int(uniform * (1 << UNIFORM_BITS)) * cumulated[-1] >> UNIFORM_BITS  # in [0, total)
    return distribution.ids[bisect_right(cumulated, point)]


def draw_coupled(distribution: Distribution, gumbel: Sequence[float]) -> int:
    """The id with the largest log q + Gumbel noise: coupled drafting; ties go to the lowest id.

    Args:
        gumbel: `noise.gumbel(seed, position, distribution.ids)`, the noise that `match` uses at that position.
    """
    scored = zip(distribution.ids, distribution.weights, gumbel, strict=True)
    best = max((log(weight) + noise, -token) for token, weight, noise in scored)
    return -best[1]
