"""What is simulated: verifiers, drafters, networks and requests, as numbers. Times in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class VerifierModel:
    """A target on its device: T(n) = max(floor, positions / rate) smoothed by `memory_share`, plus context reads."""

    floor_s: float  # a memory-bound pass
    ridge: float  # positions from which a pass grows
    slope: float = 0.03  # share of the floor that positions below the ridge add up to
    context_s_per_token: float = 0.0  # reading the KV of one token
    max_sessions: int = 1 << 30

    def seconds(self, positions: float, context_tokens: float = 0.0) -> float:
        """Length of a pass."""
        share = positions / self.ridge
        body = self.floor_s * (self.slope * share + (1.0 - self.slope) * max(1.0, share))
        return body + context_tokens * self.context_s_per_token

    def curve(self, context_tokens: float = 0.0) -> Callable[[Array], Array]:
        """T as a function of positions."""

        def seconds(positions: Array) -> Array:
            share = positions / self.ridge
            body = self.floor_s * (self.slope * share + (1.0 - self.slope) * np.maximum(1.0, share))
            return np.asarray(body + context_tokens * self.context_s_per_token, dtype=np.float64)

        return seconds


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """A drafter: t(γ) = start + γ · token, longer when many draft at once."""

    token_s: float
    start_s: float = 0.0
    batch: float = 1e9  # sessions from which its steps grow


@dataclass(frozen=True, slots=True)
class Network:
    """One way between coordinator and a peer, both peers alike."""

    one_way_s: float = 0.0
    jitter: float = 0.02  # of the time away, uniform
    jitter_s: float = 0.0  # uniform


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of an answer with one acceptance."""

    num_tokens: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    arrival_s: float
    num_output_tokens: float  # infinite: a closed loop that never ends
    phases: tuple[Phase, ...]  # repeated
    round_trip_s: float  # drafter and verifier together
    workload: str = ""
    num_prompt_tokens: int = 0

    def alpha(self, num_tokens: float) -> float:
        """Acceptance at this point of the answer."""
        place = num_tokens % sum(phase.num_tokens for phase in self.phases)
        for phase in self.phases:
            if place < phase.num_tokens:
                return phase.alpha
            place -= phase.num_tokens
        return self.phases[-1].alpha


def closed_loop(
    alphas: Sequence[float], round_trips_s: Sequence[float], chance: random.Random, stagger_s: float
) -> list[Request]:
    """Sessions that are there from the start and never end."""
    return [
        Request(stagger_s * chance.random(), float("inf"), (Phase(float("inf"), alpha),), round_trip_s)
        for alpha, round_trip_s in zip(alphas, round_trips_s, strict=True)
    ]


def poisson(
    rate_per_s: float,
    duration_s: float,
    chance: random.Random,
    alphas: Sequence[float],
    num_output_tokens: float,
    round_trip_s: float,
) -> list[Request]:
    """Open-loop arrivals with exponential answers."""
    requests, now_s = [], 0.0
    while (now_s := now_s + chance.expovariate(rate_per_s)) < duration_s:
        phases = (Phase(float("inf"), chance.choice(alphas)),)
        length = max(2.0, float(round(chance.expovariate(1 / num_output_tokens))))
        requests.append(Request(now_s, length, phases, round_trip_s))
    return requests


@dataclass(slots=True)
class Outcome:
    """What a simulation measured after its warm-up."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0
    num_positions: int = 0
    latencies_s: list[float] = field(default_factory=list)  # per token of finished requests
    num_finished: int = 0
    num_switches: int = 0  # rounds whose γ differed from the session's last by more than exploring
    num_rounds: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0
