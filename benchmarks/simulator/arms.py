"""Ways of choosing γ: plain, fixed, a table by batch size, ours, and an oracle that knows the acceptance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulator.run import Verifier
from benchmarks.simulator.sequence import PLAIN, Decision, Served
from coordinator.estimator import Estimator, Evidence, Kind, SessionEstimator
from coordinator.explorer import Explorer
from pilotfish.price import Choice, Plan, Profile, choose
from pilotfish.speedup import expected_tokens
from verifier.planner import Planner

MAX_GAMMA = 16


class Fixed:
    """The same γ always, every session held for its draft; 0 is plain decoding."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma
        self.name = f"γ {gamma}" if gamma else "plain"

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """Nothing to remember."""

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """Nothing to forget."""

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> Decision:
        gamma = self.gamma_for(verifier)
        if not gamma:
            return PLAIN
        tokens = expected_tokens(sequence.request.alpha(sequence.num_tokens), gamma)
        return Decision(gamma, is_held=True, is_ahead=False, expected_tokens=tokens)

    def gamma_for(self, verifier: Verifier) -> int:
        return self.gamma

    def max_drafts(self, verifier: Verifier) -> int | None:
        return None

    def learn(self, sequence: Served, num_drafted: int, num_accepted: int) -> None:
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


@dataclass(slots=True)
class Memory:
    """What ours remembers of a session."""

    estimator: SessionEstimator
    explorer: Explorer
    last: Choice | None = None


class Ours:
    """The services' own plan, estimator and choice. An oracle is told the acceptance instead of learning it."""

    def __init__(self, *, knows_alpha: bool = False, may_draft_ahead: bool = False, seed: int = 0) -> None:
        self.name = ("oracle" if knows_alpha else "ours") + (" ahead" if may_draft_ahead else "")
        self._knows_alpha = knows_alpha
        self._may_draft_ahead = may_draft_ahead
        self._estimator = Estimator()
        self._seed = seed

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        kind = Kind.of("drafter", "model", sequence.request.workload, 0.0)
        sequence.memory = Memory(self._estimator.session(kind), Explorer(self._seed * 1_000_003 + sequence.number))
        planner = self._planner(verifier, now_s)
        planner.put(sequence, self._profile(verifier, sequence))
        planner.update(now_s)

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        self._planner(verifier, now_s).remove(sequence)

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> Decision:
        memory = sequence.memory
        assert isinstance(memory, Memory)
        planner = self._planner(verifier, now_s)
        profile = self._profile(verifier, sequence)
        planner.put(sequence, profile)
        memory.last = choice = choose(profile, planner.plan, MAX_GAMMA, memory.last)
        gamma = choice.gamma
        if not self._knows_alpha:
            gamma = memory.explorer.gamma(choice, profile, self._saturation(verifier), planner, MAX_GAMMA)
            if not choice.gamma:
                memory.estimator.fade(1)
        if not gamma:
            return PLAIN
        tokens = profile.expected_tokens[gamma]
        return Decision(gamma, choice.is_held, choice.ahead > 0, tokens, is_exploring=gamma != choice.gamma)

    def max_drafts(self, verifier: Verifier) -> int | None:
        return self._planner(verifier, 0.0).plan.num_drafts

    def learn(self, sequence: Served, num_drafted: int, num_accepted: int) -> None:
        memory = sequence.memory
        assert isinstance(memory, Memory)
        memory.estimator.observe(Evidence.of_round(num_drafted, num_drafted, num_accepted))

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        planner = self._planner(verifier, now_s)
        planner.observe(num_tokens, seconds)
        planner.update(now_s)

    def plan(self, verifier: Verifier) -> Plan:
        """The plan in force at a verifier."""
        return self._planner(verifier, 0.0).plan

    def _planner(self, verifier: Verifier, now_s: float) -> Planner:
        if verifier.state is None:
            model = verifier.model
            verifier.state = Planner(lambda num_sessions: model.curve(verifier.num_context_tokens), MAX_GAMMA, now_s)
        assert isinstance(verifier.state, Planner)
        return verifier.state

    def _profile(self, verifier: Verifier, sequence: Served) -> Profile:
        memory = sequence.memory
        assert isinstance(memory, Memory)
        if self._knows_alpha:
            alpha = sequence.request.alpha(sequence.num_tokens)
            survival = tuple(alpha ** (depth + 1) for depth in range(MAX_GAMMA))
        else:
            survival = memory.estimator.survival(MAX_GAMMA)
        drafter = verifier.drafter
        return Profile(
            survival,
            drafter.start_s,
            drafter.token_s * verifier.crowding,
            sequence.request.round_trip_s,
            self._may_draft_ahead,
        )

    @staticmethod
    def _saturation(verifier: Verifier) -> float:
        """(dT/dn)·n/T at the present load."""
        positions, context = float(verifier.num_sessions), verifier.num_context_tokens
        now, more = (verifier.model.seconds(n, context) for n in (positions, positions * 1.25))
        return min(1.0, (more / now - 1.0) / 0.25) if positions else 0.0
