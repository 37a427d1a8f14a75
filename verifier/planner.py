"""The planner: keeps the plan in line with the sessions, and with what was measured under it.

The model proposes, measurement disposes. The plan is solved anew when sessions came or went or their profiles moved,
and a new one is taken only where it promises clearly more. Meanwhile the tokens committed under it are counted: what
they come to over what was predicted is the trust in plans of its kind, each window weighing as much as its chance
allows; and a plan under which surely less is committed than plain decoding would get is dropped for plain decoding, for
a while that doubles each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np

from pilotfish.price import Plan, Profile, differ
from verifier.crowd import Crowd
from verifier.plan import CostCurve, solve

MIN_WAIT_S = 0.2  # between two solutions
MAX_WAIT_S = 1.0
SOLVING_SHARE = 0.01  # of the time may go into solutions: passes wait for them
OTHER_CROWD = 0.5  # change in the number of sessions that does not wait
WINDOW_PASSES = 32  # measured before a plan is judged
WINDOW_S = 0.4  # likewise, both
FEW_PASSES = 8  # after which it is dropped before that, where it loses beyond doubt
SMOOTHING = 0.25  # of what is known of a session: how far it moves towards what is new
LOSS = 0.985  # of plain decoding, under which a plan is dropped
SURE = 2.0  # standard errors by which it must lie under that
BEYOND_DOUBT = 4.0  # likewise, after few passes: they are looked at again and again
CORRELATION = 1.5  # by which passes that hang together widen the standard error
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
TRUST_FORGETS_S = 60.0  # distrust halves in this time
TRUST_ERROR = 0.15  # of what the model promises, before anything was measured
TRUST_DRIFT = 0.01  # from window to window
MIN_TRUST, MAX_TRUST = 0.3, 1.1


@dataclass(slots=True)
class Window:
    """What was measured since the plan began, or since the window was last read."""

    start_s: float
    num_passes: int = 0
    num_tokens: int = 0
    sum_of_squares: float = 0.0  # of a pass's tokens
    num_plain_tokens: float = 0.0  # what plain decoding would have committed meanwhile
    num_promised_tokens: float = 0.0  # what the plan promised

    def is_full(self, now_s: float) -> bool:
        return self.num_passes >= WINDOW_PASSES and now_s - self.start_s >= WINDOW_S

    def is_loss(self, sureness: float) -> bool:
        """Whether less was committed than by plain decoding, by so many standard errors."""
        return self.num_tokens * (1.0 + sureness * self.error) < LOSS * self.num_plain_tokens

    def is_hopeless(self, now_s: float) -> bool:
        """Whether it need not be full to be judged."""
        is_long = self.num_passes >= FEW_PASSES and now_s - self.start_s >= WINDOW_S
        return is_long and self.is_loss(BEYOND_DOUBT)

    @property
    def border_error(self) -> float:
        """What the rate may be off by for the passes at its ends, which were drafted for under another plan."""
        return 1.0 / self.num_passes

    @property
    def error(self) -> float:
        """Standard error of the rate, relative."""
        mean = self.num_tokens / self.num_passes
        variance = max(0.0, self.sum_of_squares / self.num_passes - mean**2)
        return CORRELATION * math.sqrt(variance / self.num_passes) / mean if mean else 1.0


@dataclass(slots=True)
class Trust:
    """What plans of a kind come to over what they promise: a mean with its error."""

    factor: float = 1.0
    error: float = TRUST_ERROR

    def learn(self, ratio: float, error: float) -> None:
        """A window came to so much."""
        variance = self.error**2 + TRUST_DRIFT**2
        gain = variance / (variance + error**2) if error else 1.0
        self.factor = min(MAX_TRUST, max(MIN_TRUST, self.factor + gain * (ratio - self.factor)))
        self.error = math.sqrt(variance * (1.0 - gain))

    def fade(self, share: float) -> None:
        """Only so much is still held against it."""
        self.factor = 1.0 - (1.0 - self.factor) * share
        self.error = TRUST_ERROR - (TRUST_ERROR - self.error) * share


class Planner:
    """Owns the plan of one verifier. Called by the engine between passes, which tells it the time."""

    def __init__(
        self,
        cost: Callable[[int], CostCurve],
        max_gamma: int,
        now_s: float,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Plan for nobody yet.

        Args:
            cost: by number of sessions, T as a function of positions.
            max_gamma: most tokens in a draft.
            now_s: the time.
            stopwatch: what solving takes is measured with; without, it takes no time.
        """
        self._cost = cost
        self._stopwatch = stopwatch
        self._solving_s = 0.0  # what the last solution took
        self._max_gamma = max_gamma
        self._crowd = Crowd()
        self._is_stale = True
        self._solved_s = -math.inf
        self._num_solved = 0  # sessions then
        self._window = Window(now_s)
        self._trust: dict[int, Trust] = {}
        self._trusted_s = now_s
        self._pause_until_s = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self.plain_s = 0.0  # length of a pass in which everybody runs free
        self.plan = Plan.plain(0, 0.0)
        self.realised_speedup: float | None = None  # over plain decoding, in the last full window

    @property
    def num_sessions(self) -> int:
        return len(self._crowd)

    @property
    def is_for_others(self) -> bool:
        """Whether the plan was made for many more or many fewer sessions, so that it says little of those that are."""
        return abs(len(self._crowd) - self._num_solved) > OTHER_CROWD * self._num_solved

    def put(self, session: Hashable, profile: Profile) -> None:
        """A session is there, or what is known of it has changed."""
        known = self._crowd.get(session)
        smoothed = profile if known is None else _between(known, profile)
        self._is_stale = self._is_stale or known is None or differ(known, smoothed)
        self._crowd.put(session, smoothed)
        if known is None:
            self._measure_plain()

    def remove(self, session: Hashable) -> None:
        """A session has ended."""
        if self._crowd.remove(session):
            self._is_stale = True
            self._measure_plain()

    def observe(self, num_tokens: int, seconds: float, plain_rate: float | None = None) -> None:
        """A pass took so long from the end of the one before it, and committed so many tokens.

        Args:
            num_tokens: of all sessions.
            seconds: waiting for drafts included.
            plain_rate: tokens per second of plain decoding meanwhile, where the pass read prompts as well: the plan is
                then held to the same share of what it promises. None: it read none.
        """
        usual_rate = self._plain_rate
        if not usual_rate:
            return
        rate = usual_rate if plain_rate is None else plain_rate
        window = self._window
        window.num_passes += 1
        window.num_tokens += num_tokens
        window.sum_of_squares += num_tokens**2
        window.num_plain_tokens += rate * seconds
        window.num_promised_tokens += self.plan.tokens_per_s * rate / usual_rate * seconds

    def update(self, now_s: float) -> Plan:
        """The plan in force now."""
        window = self._window
        if window.is_full(now_s) or (self.plan.kind and window.is_hopeless(now_s)):
            self._judge(now_s)
        wait_s = max(MIN_WAIT_S if self._is_stale else MAX_WAIT_S, self._solving_s / SOLVING_SHARE)
        if now_s - self._solved_s >= wait_s or self.is_for_others:
            began_s = self._stopwatch()
            self._solve(now_s)
            self._solving_s = self._stopwatch() - began_s
        return self.plan

    def _judge(self, now_s: float) -> None:
        """Compare what was committed with what was promised and with plain decoding; begin a new window."""
        window, self._window = self._window, Window(now_s)
        if not window.num_plain_tokens:
            return
        self.realised_speedup = window.num_tokens / window.num_plain_tokens
        if not self.plan.kind:
            return
        self._learn(window)
        if window.is_loss(SURE):
            self._pause_until_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
            self._take(self._plain(), now_s)
        elif self.realised_speedup > 1.0:
            self._pause_s = max(FIRST_PAUSE_S, self._pause_s / 2)

    def _learn(self, window: Window) -> None:
        """What was committed under the plan that is in force, over what it promised."""
        if self.plan.kind and window.num_passes >= FEW_PASSES:
            error = math.hypot(window.error, window.border_error)
            trust = self._trust.setdefault(self.plan.kind, Trust())
            trust.learn(window.num_tokens / window.num_promised_tokens, error)

    def _solve(self, now_s: float) -> None:
        self._solved_s, self._is_stale, self._num_solved = now_s, False, len(self._crowd)
        self._measure_plain()
        self._forget_distrust(now_s)
        if now_s < self._pause_until_s or not self._crowd:
            self._take(self._plain(), now_s)
            return
        trust = {kind: known.factor for kind, known in self._trust.items()}
        cost = self._cost(len(self._crowd))
        self._take(solve(self._crowd, cost, self._max_gamma, trust, self.plan), now_s)

    def _take(self, plan: Plan, now_s: float) -> None:
        if plan.kind != self.plan.kind:
            self._learn(self._window)
            self._window = Window(now_s)
        self.plan = plan

    def _forget_distrust(self, now_s: float) -> None:
        share = 0.5 ** ((now_s - self._trusted_s) / TRUST_FORGETS_S)
        self._trusted_s = now_s
        for kind, trust in self._trust.items():
            if kind != self.plan.kind:
                trust.fade(share)

    def _plain(self) -> Plan:
        return Plan.plain(len(self._crowd), self.plain_s)

    @property
    def _plain_rate(self) -> float:
        """Tokens per second if everybody ran free."""
        return len(self._crowd) / self.plain_s if self.plain_s else 0.0

    def _measure_plain(self) -> None:
        num = len(self._crowd)
        self.plain_s = float(self._cost(num)(np.array([float(num)]))[0]) if num else 0.0


def _between(known: Profile, new: Profile) -> Profile:
    """The new profile, its survival smoothed: a plan is for many rounds, and must not follow the luck of one."""
    if len(known.survival) != len(new.survival):
        return new
    survival = tuple(a + SMOOTHING * (b - a) for a, b in zip(known.survival, new.survival, strict=True))
    offered = known.offered + SMOOTHING * (new.offered - known.offered)
    return replace(new, survival=survival, offered=offered)
