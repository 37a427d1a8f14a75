"""Exploring: now and then a draft that is not expected to pay, so that what is known of drafts does not grow stale.

A session that speculates drafts one node more than it would in every 24th round; so the slope stays known. One that
runs free drafts a few nodes now and then, so seldom that all its kind together spend a given share of their tokens on
it: an odd bad spell does not switch speculation off for ever.
"""

from __future__ import annotations

import random
from typing import Protocol

from pilotfish.price import Choice, Profile

DEEPER_EVERY = 24  # rounds
PROBE_GAMMA = 3
PROBE_SHARE = 0.005  # of the tokens


class Crowded(Protocol):
    """A verifier's load."""

    @property
    def num_sessions(self) -> int: ...


class Explorer:
    """One session's exploring. Its chance depends on nothing that was drafted."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._num_rounds = 0

    def gamma(self, choice: Choice, profile: Profile, saturation: float, load: Crowded, max_gamma: int) -> int:
        """γ of the next round: the choice's, or another for the sake of knowing.

        Args:
            choice: what the plan and the profile say.
            profile: of the session.
            saturation: of its verifier, in [0, 1].
            load: of its verifier.
            max_gamma: most tokens in a draft.
        """
        self._num_rounds += 1
        if choice.gamma:
            is_deeper = self._num_rounds % DEEPER_EVERY == 0 and choice.gamma < max_gamma
            return choice.gamma + 1 if is_deeper else choice.gamma
        if not profile.survival:
            return 0
        cost = saturation * PROBE_GAMMA  # tokens that its positions take from everybody; it runs on meanwhile
        share = PROBE_SHARE / max(1, load.num_sessions) ** 0.5  # all of a kind learn from one
        return min(PROBE_GAMMA, max_gamma) if self._chance.random() < share / max(cost, 0.2) else 0
