"""The price: what a draft node must be worth, and how far a session drafts under a verifier's plan.

A verifier publishes one plan for all its sessions; every coordinator answers it for its own sessions with `choose`,
and the verifier's solver counts on just that answer. All times are in seconds, all worth is in tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

MAX_TURNS = 4  # a session that cannot make every pass takes every second, third or fourth


@dataclass(frozen=True)
class Profile:
    """What speculating would be like for one session, as far as it was measured."""

    survival: tuple[float, ...]  # probability that the first node, the first two, … hold; never rising
    start_s: float  # the drafter's time before its first node
    token_s: float  # its time per node
    round_trip_s: float  # from a verdict until the request reaches the drafter, and from the draft until the verifier

    def away_s(self, gamma: int) -> float:
        """From a verdict until the next draft of `gamma` tokens is there."""
        return self.start_s + gamma * self.token_s + self.round_trip_s

    @cached_property
    def expected_tokens(self) -> tuple[float, ...]:
        """E by γ, from γ = 0: one token, and one more for each node that holds."""
        return tuple(accumulate(self.survival, initial=1.0))

    def num_worthy(self, price: float) -> int:
        """Depth to which nodes are worth the price."""
        return next((depth for depth, survival in enumerate(self.survival) if survival < price), len(self.survival))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a verifier means to run: what a position costs, and how often a pass starts."""

    price: float  # μ: what one more position in a pass costs everybody, in tokens
    period_s: float  # from the start of a pass to the start of the next
    pass_s: float  # length of a pass
    capacity: int  # positions a pass should carry: what is ready beyond it takes the next one
    tokens_per_s: float  # what all sessions together are predicted to get
    kind: int = 0  # bit k is set where some session takes every (k+1)-th pass with a draft; 0: everybody runs free

    @staticmethod
    def plain(num_sessions: int, pass_s: float) -> Plan:
        """Everybody runs free: one position and one token a session and pass."""
        return Plan(math.inf, pass_s, pass_s, num_sessions, num_sessions / pass_s if pass_s else 0.0)


class Choice(NamedTuple):
    """How one session answers a plan."""

    gamma: int  # 0: it runs free
    turns: int  # it takes part in every `turns`-th pass


def choose(profile: Profile, plan: Plan, max_gamma: int) -> Choice:
    """The γ and turns that earn most under the plan: tokens less the price of the positions, per pass.

    For each number of turns the draft goes as deep as its nodes are worth the price and as it can be back in time.
    """
    if math.isinf(plan.price):
        return Choice(0, 1)
    depth = min(profile.num_worthy(plan.price), max_gamma)
    best, best_worth = Choice(0, 1), 1.0 - plan.price
    for turns in range(1, MAX_TURNS + 1):
        spare_s = turns * plan.period_s - plan.pass_s - profile.away_s(0)
        gamma = min(depth, _num_fitting(spare_s, profile.token_s, depth))
        if gamma < 1:
            continue
        worth = (profile.expected_tokens[gamma] - plan.price * (gamma + 1)) / turns
        if worth > best_worth + 1e-9:
            best, best_worth = Choice(gamma, turns), worth
        if gamma == depth:
            break  # more turns would only make it wait
    return best


def _num_fitting(spare_s: float, token_s: float, most: int) -> int:
    """Draft steps that fit into the spare time, `most` at the most; a hair too late is in time."""
    if spare_s < 0.0 and spare_s > -1e-9:
        spare_s = 0.0
    if spare_s < 0.0:
        return 0
    return most if token_s <= 0.0 else min(most, int(spare_s / token_s * (1.0 + 1e-6) + 1e-6))
