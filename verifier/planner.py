"""The planner: keeps the plan in line with the sessions, and with what was measured under it.

The model proposes, measurement disposes. The plan is solved anew when sessions came or went or their profiles moved,
and a new one is taken only where it promises clearly more. Meanwhile the tokens committed under it are counted: what
they come to over what was predicted is the trust in plans of its kind, and a plan under which less is committed than
plain decoding would get is dropped for plain decoding, for a while that doubles each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from pilotfish.price import Plan, Profile
from verifier.plan import CostCurve, solve

MIN_WAIT_S = 0.2  # between two solutions
MAX_WAIT_S = 1.0
WINDOW_PASSES = 24  # measured before a plan is judged
WINDOW_S = 0.4  # likewise, both
HYSTERESIS = 0.02  # a new plan must promise so much more
LOSS = 0.985  # of plain decoding, under which a plan is dropped
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
TRUST_FORGETS_S = 60.0  # distrust halves in this time


@dataclass(slots=True)
class Window:
    """What was measured since the plan began, or since the window was last read."""

    start_s: float
    num_passes: int = 0
    num_tokens: int = 0
    num_plain_tokens: float = 0.0  # what plain decoding would have committed in the passes' own time

    def is_full(self, now_s: float) -> bool:
        return self.num_passes >= WINDOW_PASSES and now_s - self.start_s >= WINDOW_S


class Planner:
    """Owns the plan of one verifier. Called by the engine between passes; no clock of its own."""

    def __init__(self, cost: Callable[[int], CostCurve], max_gamma: int, now_s: float) -> None:
        """Plan for nobody yet.

        Args:
            cost: by number of sessions, T as a function of positions.
            max_gamma: most tokens in a draft.
            now_s: the time.
        """
        self._cost = cost
        self._max_gamma = max_gamma
        self._profiles: dict[Hashable, Profile] = {}
        self._is_stale = True
        self._solved_s = -1e9
        self._window = Window(now_s)
        self._trust: dict[int, float] = {}
        self._trusted_s = now_s
        self._pause_until_s = -1e9
        self._pause_s = FIRST_PAUSE_S
        self.plan = Plan.plain(0, 0.0)
        self.realised_speedup: float | None = None  # over plain decoding, in the last full window

    @property
    def num_sessions(self) -> int:
        return len(self._profiles)

    def put(self, session: Hashable, profile: Profile) -> None:
        """A session is there, or what is known of it has changed."""
        known = self._profiles.get(session)
        self._profiles[session] = profile
        self._is_stale = self._is_stale or known is None or _differ(known, profile)

    def remove(self, session: Hashable) -> None:
        """A session has ended."""
        if self._profiles.pop(session, None) is not None:
            self._is_stale = True

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A pass took so long from the end of the one before it, and committed so many tokens."""
        window = self._window
        window.num_passes += 1
        window.num_tokens += num_tokens
        window.num_plain_tokens += self._plain_rate() * seconds

    def update(self, now_s: float) -> Plan:
        """The plan in force now."""
        if self._window.is_full(now_s):
            self._judge(now_s)
        waited_s = now_s - self._solved_s
        if waited_s >= MAX_WAIT_S or (self._is_stale and waited_s >= MIN_WAIT_S) or not self.plan.tokens_per_s:
            self._solve(now_s)
        return self.plan

    def _judge(self, now_s: float) -> None:
        """Compare what was committed with what was predicted and with plain decoding; begin a new window."""
        window, self._window = self._window, Window(now_s)
        seconds = now_s - window.start_s
        rate, plain = window.num_tokens / seconds, self._plain_rate()
        if not plain:
            return
        self.realised_speedup = rate / plain
        if not self.plan.kind:
            return
        ratio = min(1.1, max(0.3, rate / self.plan.tokens_per_s)) if self.plan.tokens_per_s else 1.0
        self._trust[self.plan.kind] = 0.5 * self._trust.get(self.plan.kind, 1.0) + 0.5 * ratio
        self._is_stale = True
        if self.realised_speedup < LOSS:
            self._pause_until_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
            self._take(self._plain(), now_s)
        else:
            self._pause_s = max(FIRST_PAUSE_S, self._pause_s / 2)

    def _solve(self, now_s: float) -> None:
        self._solved_s, self._is_stale = now_s, False
        self._forget_distrust(now_s)
        if now_s < self._pause_until_s or not self._profiles:
            self._take(self._plain(), now_s)
            return
        found = solve(self._profiles.values(), self._cost(len(self._profiles)), self._max_gamma, self._trust)
        if found.kind != self.plan.kind and self.plan.kind and self.plan.tokens_per_s:
            trust = self._trust.get(self.plan.kind, 1.0)
            promised = found.tokens_per_s * self._trust.get(found.kind, 1.0)
            if promised < self.plan.tokens_per_s * trust * (1.0 + HYSTERESIS) and not self._has_shrunk(found):
                return
        self._take(found, now_s)

    def _has_shrunk(self, found: Plan) -> bool:
        """Whether fewer are there than the plan in force was made for, so that its promise is void."""
        return found.tokens_per_s < self.plan.tokens_per_s

    def _take(self, plan: Plan, now_s: float) -> None:
        if plan.kind != self.plan.kind:
            self._window = Window(now_s)
        self.plan = plan

    def _forget_distrust(self, now_s: float) -> None:
        share = 0.5 ** ((now_s - self._trusted_s) / TRUST_FORGETS_S)
        self._trusted_s = now_s
        self._trust = {kind: 1.0 - (1.0 - trust) * share for kind, trust in self._trust.items()}

    def _plain(self) -> Plan:
        rate = self._plain_rate()
        return Plan.plain(len(self._profiles), len(self._profiles) / rate if rate else 0.0)

    def _plain_rate(self) -> float:
        """Tokens per second if everybody ran free."""
        num = len(self._profiles)
        return num / float(self._cost(num)(np.array([float(num)]))[0]) if num else 0.0


def _differ(one: Profile, other: Profile) -> bool:
    """Whether a profile has moved enough to solve again."""
    if len(one.survival) != len(other.survival):
        return True
    depth = min(4, len(one.survival))
    moved = max((abs(one.survival[i] - other.survival[i]) for i in range(depth)), default=0.0)
    away, before = other.away_s(4), one.away_s(4)
    return moved > 0.05 or abs(away - before) > 0.1 * max(away, before)
