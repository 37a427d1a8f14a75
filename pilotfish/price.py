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

MAX_PASSES = 4  # from one draft of a session to its next, at the most


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

    def tokens(self, gamma: int, passes: int) -> float:
        """Expected in `passes` passes, the last of which carries the draft and the others one token each."""
        return passes + self.expected_tokens[gamma] - self.expected_tokens[passes - 1]

    def num_worthy(self, price: float) -> int:
        """Depth to which nodes are worth the price."""
        return next((depth for depth, survival in enumerate(self.survival) if survival < price), len(self.survival))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a verifier means to run: what a position costs, and how often a pass starts."""

    price: float  # μ: what one more position in a pass costs everybody, in tokens
    period_s: float  # from the start of a pass to the start of the next
    pass_s: float  # length of a pass
    tokens_per_s: float  # what all sessions together are predicted to get
    kind: int = 0  # bit k is set where some session brings a draft to every (k+1)-th pass; 0: everybody runs free

    @staticmethod
    def plain(num_sessions: int, pass_s: float) -> Plan:
        """Everybody runs free: one position and one token a session and pass."""
        return Plan(math.inf, pass_s, pass_s, num_sessions / pass_s if pass_s else 0.0)


class Choice(NamedTuple):
    """How one session answers a plan."""

    gamma: int  # 0: it runs free
    passes: (
        int  # from one of its drafts to the next; 1: it is held until its draft is there, more: it runs on meanwhile
    )

    @property
    def is_held(self) -> bool:
        return self.gamma > 0 and self.passes == 1


def choose(profile: Profile, plan: Plan, max_gamma: int) -> Choice:
    """The γ that earns most under the plan: tokens less the price of the positions, per pass.

    A session whose draft can be back before the next pass is held for it. Where that takes k > 1 passes the session
    does not wait: it runs free, one token a pass, and of the draft counts what hangs below those tokens. That costs no
    position more than standing by (what is committed already need not be verified) and never commits less:

        held        1 + s₁ + … + s_γ   tokens a pass
        running on  k + s_k + … + s_γ  tokens in k passes
    """
    if math.isinf(plan.price):
        return Choice(0, 1)
    depth = min(profile.num_worthy(plan.price), max_gamma)
    best, best_worth = Choice(0, 1), 1.0 - plan.price
    for passes in range(1, MAX_PASSES + 1):
        spare_s = passes * plan.period_s - plan.pass_s - profile.away_s(0)
        gamma = _num_fitting(spare_s, profile.token_s, depth)
        if gamma < passes:
            continue
        worth = (profile.tokens(gamma, passes) - plan.price * (gamma + 1)) / passes
        if worth > best_worth + 1e-9:
            best, best_worth = Choice(gamma, passes), worth
        if gamma == depth:
            break  # more passes would only delay it
    return best


def _num_fitting(spare_s: float, token_s: float, most: int) -> int:
    """Draft steps that fit into the spare time, `most` at the most; a hair too late is in time."""
    if spare_s < -1e-9:
        return 0
    spare_s = max(spare_s, 0.0)
    return most if token_s <= 0.0 else min(most, int(spare_s / token_s * (1.0 + 1e-6) + 1e-6))
