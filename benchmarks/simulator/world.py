"""What is simulated: verifiers, drafters, networks and requests, as numbers. Times in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from verifier.plan import Array
from verifier.tempo import PassLength


@dataclass(frozen=True)
class VerifierModel:
    """A target on its device: T(n) flat to the ridge, then rising; and what reading the context adds."""

    floor_s: float  # a memory-bound pass
    ridge: float  # positions from which a pass grows
    slope: float = 0.03  # share of the floor that positions below the ridge add up to
    context_s_per_token: float = 0.0  # reading the KV of one token
    shares_device: bool = False  # with the drafter, whose steps then slow its passes
    max_tokens: float = inf  # of KV
    prefill_positions: int = 512  # of a pass, for prompts

    def seconds(self, positions: float, context_tokens: float = 0.0) -> float:
        """Length of a pass."""
        share = positions / self.ridge
        body = self.floor_s * (self.slope * share + (1.0 - self.slope) * max(1.0, share))
        return body + context_tokens * self.context_s_per_token

    def curve(self, context_tokens: float = 0.0) -> Callable[[Array], Array]:
        """T as a function of positions."""
        return lambda positions: self._body_s(positions) + context_tokens * self.context_s_per_token

    def length(self, context_tokens: float) -> PassLength:
        """T as a function of positions and of sessions, with so much context each."""
        return lambda positions, sessions: (
            self._body_s(positions) + sessions * context_tokens * self.context_s_per_token
        )

    def _body_s(self, positions: Array) -> Array:
        share = positions / self.ridge
        return np.asarray(self.floor_s * (self.slope * share + (1.0 - self.slope) * np.maximum(1.0, share)))


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """A drafter: t(γ) = start + γ · token, longer when many draft at once."""

    token_s: float
    start_s: float = 0.0
    batch: float = inf  # sessions that draft at once without slowing one another


@dataclass(frozen=True, slots=True)
class Network:
    """How uneven times are: on top of what is expected."""

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
    straggles_s: float = 0.0  # how much later than promised its drafts are
    token_target_s: float = inf  # mean time of every later token that it wants

    @property
    def num_kv_tokens(self) -> float:
        """What its KV takes in the end; one that never ends is not counted."""
        return self.num_prompt_tokens + self.num_output_tokens if self.num_output_tokens < inf else 0.0

    def alpha(self, position: int) -> float:
        """Acceptance at this point of the answer."""
        if len(self.phases) == 1:
            return self.phases[0].alpha
        place = position % sum(phase.num_tokens for phase in self.phases)
        for phase in self.phases:
            if place < phase.num_tokens:
                return phase.alpha
            place -= phase.num_tokens
        return self.phases[-1].alpha


class Text:
    """Where the draft's line and the target agree, position by position: the same whatever the arm drafts."""

    def __init__(self, request: Request, seed: int, number: int) -> None:
        self._request = request
        self._chance = random.Random(seed * 1_000_003 + number)
        self._agrees: list[bool] = []

    def run(self, position: int, most: int) -> int:
        """Agreeing positions in a row from `position` on, `most` at the most."""
        agrees = self._agrees
        while len(agrees) < position + most:
            agrees.append(self._chance.random() < self._request.alpha(len(agrees)))
        for length in range(most):
            if not agrees[position + length]:
                return length
        return most


def closed_loop(
    alphas: Sequence[float], round_trips_s: Sequence[float], chance: random.Random, stagger_s: float
) -> list[Request]:
    """Sessions that are there from the start and never end."""
    return [
        Request(stagger_s * chance.random(), inf, (Phase(inf, alpha),), round_trip_s)
        for alpha, round_trip_s in zip(alphas, round_trips_s, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Workload:
    """What requests are like."""

    alphas: tuple[float, ...]  # one is drawn for each request
    num_prompt_tokens: float  # mean of a geometric law
    num_output_tokens: float  # likewise


def poisson(
    rate_per_s: float, duration_s: float, workload: Workload, round_trip_s: float, chance: random.Random
) -> list[Request]:
    """Open-loop arrivals."""
    requests, now_s = [], 0.0
    while (now_s := now_s + chance.expovariate(rate_per_s)) < duration_s:
        alpha = chance.choice(workload.alphas)
        num_output = max(2.0, float(round(chance.expovariate(1.0 / workload.num_output_tokens))))
        num_prompt = max(1, round(chance.expovariate(1.0 / max(workload.num_prompt_tokens, 1.0))))
        phases = (Phase(inf, alpha),)
        requests.append(Request(now_s, num_output, phases, round_trip_s, f"α {alpha:g}", num_prompt))
    return requests
