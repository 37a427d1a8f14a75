"""Ways of choosing γ: plain, fixed, a table by batch size, ours, and an oracle that knows the acceptance."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

from benchmarks.simulator.run import Served, Verifier
from coordinator.estimator import Estimator, Evidence, Kind, SessionEstimator
from pilotfish.price import Profile, choose
from pilotfish.speedup import expected_tokens
from verifier.planner import Planner

MAX_GAMMA = 16
EXPLORE_SHARE = 0.02  # of the tokens, spent on drafts that are expected not to pay
EXPLORE_DEEPER = 24  # every so many rounds one more node
PROBE_GAMMA = 3


class Fixed:
    """The same γ always; 0 is plain decoding. All that is ready goes into a pass."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma
        self.name = f"γ {gamma}" if gamma else "plain"

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """Nothing to remember."""

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """Nothing to forget."""

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> tuple[int, float, bool]:
        gamma = self.gamma_for(verifier)
        return gamma, expected_tokens(sequence.request.alpha(sequence.num_tokens), gamma), True

    def gamma_for(self, verifier: Verifier) -> int:
        return self.gamma

    def learn(self, sequence: Served, gamma: int, num_accepted: int) -> None:
        """Learns nothing."""

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        """Plans nothing."""


class Table(Fixed):
    """γ by the number of sessions, as batch-size tables do."""

    def __init__(self, rows: Sequence[tuple[int, int]]) -> None:
        """Rows of (from so many sessions on, γ), ascending."""
        super().__init__(rows[0][1])
        self._from = [start for start, _ in rows]
        self._gammas = [gamma for _, gamma in rows]
        self.name = "table"

    def gamma_for(self, verifier: Verifier) -> int:
        return self._gammas[max(0, bisect_right(self._from, verifier.num_sessions) - 1)]


class Ours:
    """The services' own plan, estimator and choice. An oracle is told the acceptance instead of learning it."""

    def __init__(self, *, knows_alpha: bool = False, seed: int = 0) -> None:
        self.name = "oracle" if knows_alpha else "ours"
        self._knows_alpha = knows_alpha
        self._estimator = Estimator()
        self._chance = random.Random(seed)

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        kind = Kind.of("drafter", "model", sequence.request.workload, 0.0)
        sequence.memory = self._estimator.session(kind)
        planner = self._planner(verifier, now_s)
        planner.put(sequence, self._profile(verifier, sequence))
        planner.update(now_s)

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        self._planner(verifier, now_s).remove(sequence)

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> tuple[int, float, bool]:
        planner = self._planner(verifier, now_s)
        profile = self._profile(verifier, sequence)
        planner.put(sequence, profile)
        choice = choose(profile, planner.plan, MAX_GAMMA)
        gamma = choice.gamma
        if not self._knows_alpha:
            gamma = self._explore(verifier, sequence, gamma, planner.num_sessions)
        is_held = choice.is_held if choice.gamma else False
        return gamma, profile.expected_tokens[min(gamma, len(profile.survival))], is_held

    def _explore(self, verifier: Verifier, sequence: Served, gamma: int, num_sessions: int) -> int:
        sequence.drafts += 1
        if gamma:
            return min(gamma + 1, MAX_GAMMA) if sequence.drafts % EXPLORE_DEEPER == 0 else gamma
        memory = sequence.memory
        assert isinstance(memory, SessionEstimator)
        memory.fade(1)
        pass_s = verifier.last_pass_s or verifier.model.floor_s
        positions = float(num_sessions)
        saturation = verifier.model.seconds(positions + PROBE_GAMMA) / verifier.model.seconds(positions) - 1.0
        cost_in_tokens = 1.0 + sequence.request.round_trip_s / pass_s + saturation * num_sessions
        share = EXPLORE_SHARE / num_sessions**0.5  # all of a kind learn from one
        return PROBE_GAMMA if self._chance.random() < share / cost_in_tokens else 0

    def learn(self, sequence: Served, gamma: int, num_accepted: int) -> None:
        memory = sequence.memory
        assert isinstance(memory, SessionEstimator)
        if gamma:
            memory.observe(Evidence.of_round(gamma, gamma, num_accepted))

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        planner = self._planner(verifier, now_s)
        planner.observe(num_tokens, seconds)
        planner.update(now_s)

    def _planner(self, verifier: Verifier, now_s: float) -> Planner:
        if verifier.state is None:
            verifier.state = Planner(lambda num_sessions: verifier.model.curve(), MAX_GAMMA, now_s)
        assert isinstance(verifier.state, Planner)
        return verifier.state

    def _profile(self, verifier: Verifier, sequence: Served) -> Profile:
        memory = sequence.memory
        assert isinstance(memory, SessionEstimator)
        if self._knows_alpha:
            alpha = sequence.request.alpha(sequence.num_tokens)
            survival = tuple(alpha ** (depth + 1) for depth in range(MAX_GAMMA))
        else:
            survival = memory.survival(MAX_GAMMA)
        drafter = verifier.drafter
        return Profile(survival, drafter.start_s, drafter.token_s, sequence.request.round_trip_s)
