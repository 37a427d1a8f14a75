"""Ways of choosing γ: plain, fixed, a table by batch size, ours, and an oracle that knows the acceptance."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import mul

from benchmarks.simulator.run import Verifier
from benchmarks.simulator.sequence import PLAIN, Decision, Served
from coordinator.adaptive import AdaptivePolicy
from coordinator.estimator import Estimator, Evidence, Kind, SessionEstimator
from coordinator.outlook import Outlook
from coordinator.pace import Need, Pace
from coordinator.policy import Snapshot
from pilotfish.messages import DrafterLoad, Objective, Speculation, Targets, VerifierLoad
from pilotfish.price import Choice, Plan
from pilotfish.speedup import expected_tokens
from verifier.planner import Planner

MAX_GAMMA = 16
ENDLESS = 1 << 30


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
        return Decision(gamma, is_held=True, ahead=0, expected_tokens=tokens)

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
    chance: random.Random
    last: Choice | None = None
    num_rounds: int = 0


class Ours:
    """The services' own plan, estimator and policy. An oracle is told the acceptance instead of learning it."""

    def __init__(
        self,
        *,
        knows_alpha: bool = False,
        may_draft_ahead: bool = False,
        seed: int = 0,
        knows_targets: bool = False,
        objective: Objective = Objective.BALANCED,
    ) -> None:
        self.name = ("oracle" if knows_alpha else "ours") + (" ahead" if may_draft_ahead else "")
        self._knows_alpha = knows_alpha
        self._may_draft_ahead = may_draft_ahead
        self._estimator = Estimator()
        self._policy = AdaptivePolicy()
        self._seed = seed
        self._knows_targets = knows_targets
        self._objective = objective

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        kind = Kind.of("drafter", "model", sequence.request.workload, 0.0)
        chance = random.Random(self._seed * 1_000_003 + sequence.number)
        sequence.memory = memory = Memory(self._estimator.session(kind), chance)
        planner = self._planner(verifier, now_s)
        outlook = self._outlook(sequence, memory)
        planner.put(sequence, outlook.profile(_drafter_load(verifier), may_draft_ahead=self._may_draft_ahead))
        planner.update(now_s)

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        self._planner(verifier, now_s).remove(sequence)

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> Decision:
        memory = _memory_of(sequence)
        planner = self._planner(verifier, now_s)
        outlook, drafter = self._outlook(sequence, memory), _drafter_load(verifier)
        profile = outlook.profile(drafter, may_draft_ahead=self._may_draft_ahead)
        planner.put(sequence, profile)
        num_remaining = int(min(sequence.request.num_output_tokens - sequence.num_tokens, ENDLESS))
        found = self._policy.decide(
            Snapshot(
                position=sequence.num_context_tokens,
                num_remaining=num_remaining,
                num_draftable=ENDLESS,
                max_gamma=MAX_GAMMA,
                is_drafter_up=True,
                wishes=Speculation(),
                verifier=_verifier_load(verifier, planner),
                drafter=drafter,
                outlook=outlook,
                may_draft_ahead=self._may_draft_ahead,
                objective=self._objective,
                need=self._need(sequence, num_remaining, now_s),
                last=memory.last,
                chance=1.0 if self._knows_alpha else memory.chance.random(),
            )
        )
        memory.last = found.choice
        if not found.gamma:
            memory.estimator.fade(1)
            return PLAIN
        ahead = 0 if found.choice is None else found.choice.ahead
        tokens = profile.expected_tokens[found.gamma]
        return Decision(found.gamma, found.is_held, ahead, tokens, is_exploring=found.reason == "explore")

    def max_drafts(self, verifier: Verifier) -> int | None:
        return self.plan(verifier).num_drafts

    def learn(self, sequence: Served, num_drafted: int, num_accepted: int) -> None:
        memory = _memory_of(sequence)
        memory.num_rounds += 1
        memory.estimator.observe(Evidence.of_round(num_drafted, num_drafted, num_accepted))

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        planner = self._planner(verifier, now_s)
        planner.observe(num_tokens, seconds)
        planner.update(now_s)

    def plan(self, verifier: Verifier) -> Plan:
        """The plan in force at a verifier."""
        return self._planner(verifier, 0.0).plan

    def _need(self, sequence: Served, num_remaining: int, now_s: float) -> Need | None:
        """What the session's target leaves for a token, as the services reckon it."""
        target_s, first_s = sequence.request.token_target_s, sequence.first_token_s
        if not self._knows_targets or target_s == inf or first_s is None:
            return None
        return Pace(Targets(None, target_s), False, 0.0, sequence.num_tokens - 1, now_s - first_s).need(num_remaining)

    def _planner(self, verifier: Verifier, now_s: float) -> Planner:
        if verifier.state is None:
            model = verifier.model
            verifier.state = Planner(lambda _: model.curve(verifier.num_context_tokens), MAX_GAMMA, now_s)
        assert isinstance(verifier.state, Planner)
        return verifier.state

    def _outlook(self, sequence: Served, memory: Memory) -> Outlook:
        """What is known of a session's drafts; the oracle knows how likely the next nodes are."""
        round_trip_s = sequence.request.round_trip_s
        if not self._knows_alpha:
            return Outlook(memory.estimator.survival(MAX_GAMMA), 1.0, round_trip_s, memory.num_rounds)
        request, start = sequence.request, sequence.num_tokens
        survival = accumulate((request.alpha(start + depth) for depth in range(MAX_GAMMA)), mul)
        return Outlook(tuple(survival), 1.0, round_trip_s)


def _memory_of(sequence: Served) -> Memory:
    assert isinstance(sequence.memory, Memory)
    return sequence.memory


def _drafter_load(verifier: Verifier) -> DrafterLoad:
    drafter = verifier.drafter
    return DrafterLoad(round(drafter.start_s * 1e6), round(drafter.token_s * verifier.crowding * 1e6))


def _verifier_load(verifier: Verifier, planner: Planner) -> VerifierLoad:
    """What a verifier says of itself, saturation (dT/dn)·n/T included."""
    positions, context = float(max(1, verifier.num_sessions)), verifier.num_context_tokens
    now, more = (verifier.model.seconds(n, context) for n in (positions, positions * 1.25))
    return VerifierLoad(
        pass_us=round(1e6 * (verifier.last_pass_s or now)),
        num_sessions=planner.num_sessions,
        saturation=min(1.0, (more / now - 1.0) / 0.25),
        plan=planner.plan,
    )
