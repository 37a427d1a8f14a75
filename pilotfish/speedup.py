"""Speedup by the book: what speculation gains in closed form, if acceptances were independent.

Leviathan et al. 2023 (arXiv:2211.17192), theorem 3.8, with a network term. Real acceptances are correlated, so these
figures stand beside what was measured, never in its place. Times are in target passes: c is a draft step's cost, a
round trip of 1 is as long as a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MAX_GAMMA = 64


def expected_tokens(alpha: float, gamma: int) -> float:
    """E: tokens committed in a round, (1 - α^(γ+1)) / (1 - α).

    Args:
        alpha: probability that a draft token is accepted, in [0, 1].
        gamma: tokens drafted in a round.
    """
    return gamma + 1.0 if alpha == 1.0 else (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def limit_tokens(alpha: float) -> float:
    """What E tends to as γ grows, 1 / (1 - α); infinite at α = 1."""
    return float("inf") if alpha == 1.0 else 1.0 / (1.0 - alpha)


def speedup(alpha: float, cost: float, gamma: int, round_trip: float = 0.0) -> float:
    """E / (γc + 1 + rtt): over plain decoding, which pays neither draft nor network. γ = 0 is plain decoding: 1.

    Args:
        alpha: acceptance probability of a draft token.
        cost: c, a draft step over a target pass.
        gamma: tokens drafted in a round.
        round_trip: what a round waits for the network, in passes.
    """
    return 1.0 if gamma == 0 else expected_tokens(alpha, gamma) / (gamma * cost + 1.0 + round_trip)


def best_gamma(alpha: float, cost: float, round_trip: float = 0.0, max_gamma: int = MAX_GAMMA) -> int:
    """The γ of the largest speedup; the smallest of several, 0 where speculation does not pay."""
    return max(range(max_gamma + 1), key=lambda gamma: (speedup(alpha, cost, gamma, round_trip), -gamma))


def break_even_alpha(cost: float, gamma: int, round_trip: float = 0.0) -> float | None:
    """The α from which γ tokens a round pay; None where not even α = 1 does."""
    if speedup(1.0, cost, gamma, round_trip) < 1.0:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-12:  # speedup rises with α
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle, cost, gamma, round_trip) >= 1.0 else (middle, high)
    return high


def break_even_cost(alpha: float, gamma: int, round_trip: float = 0.0) -> float:
    """The largest c at which γ tokens a round still pay; negative where no draft is cheap enough."""
    return (expected_tokens(alpha, gamma) - 1.0 - round_trip) / gamma


@dataclass(frozen=True, slots=True)
class Lever:
    """What a change of one quantity alone would gain."""

    name: str  # "alpha", "c", "gamma"
    before: float
    after: float
    gain: float  # speedup after over speedup before, minus 1


def levers(alpha: float, cost: float, gamma: int, round_trip: float = 0.0) -> tuple[Lever, ...]:
    """A fifth less rejection, a fifth less draft cost, the best γ: the one that gains most first."""
    now = speedup(alpha, cost, gamma, round_trip)
    better_alpha = 1.0 - 0.8 * (1.0 - alpha)
    best = best_gamma(alpha, cost, round_trip)
    found = (
        Lever("alpha", alpha, better_alpha, speedup(better_alpha, cost, gamma, round_trip) / now - 1.0),
        Lever("c", cost, 0.8 * cost, speedup(alpha, 0.8 * cost, gamma, round_trip) / now - 1.0),
        Lever("gamma", gamma, best, speedup(alpha, cost, best, round_trip) / now - 1.0),
    )
    return tuple(sorted(found, key=lambda lever: -lever.gain))


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What a data sheet says of a device; dense, no sparsity."""

    name: str
    tera_flops: float  # of 16-bit matrix products
    terabytes_per_s: float  # of memory

    @property
    def ridge(self) -> float:
        """Positions in a pass from which 16-bit weights are read slower than they are used, about.

        A position does two operations with each weight, which has two bytes: as many operations per byte as there
        are positions.
        """
        return self.tera_flops / self.terabytes_per_s


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("T4", 65, 0.32),
        Accelerator("L4", 121, 0.3),
        Accelerator("A10", 125, 0.6),
        Accelerator("L40S", 362, 0.864),
        Accelerator("A100", 312, 2.039),
        Accelerator("H100", 989, 3.35),
        Accelerator("H200", 989, 4.8),
        Accelerator("B200", 2250, 8.0),
        Accelerator("MI300X", 1307, 5.3),
    )
}


def pass_time(num_positions: float, ridge: float) -> float:
    """T(n) of a roofline, over that of a memory-bound pass: flat up to the ridge, then proportional."""
    return max(1.0, num_positions / ridge)


def batch_speedup(
    alpha: float,
    cost: float,
    gamma: int,
    batch: int,
    pass_length: Callable[[float], float],
    round_trip: float = 0.0,
) -> float:
    """Speedup when `batch` sessions share each pass: it ends where their positions make the pass longer.

    Args:
        alpha: acceptance probability of a draft token.
        cost: c, a draft step over a memory-bound pass.
        gamma: tokens drafted in a round.
        batch: sessions.
        pass_length: T(n) over that of a memory-bound pass, as `pass_time` is or as it was measured.
        round_trip: what a round waits for the network, in memory-bound passes.
    """
    if gamma == 0:
        return 1.0
    speculating = expected_tokens(alpha, gamma) / (gamma * cost + pass_length(batch * (gamma + 1)) + round_trip)
    return speculating * pass_length(batch)
