"""The event loop: verifiers take passes, drafts travel, requests come and go."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

from benchmarks.simulator.world import DrafterModel, Network, Outcome, Request, VerifierModel
from verifier.tempo import Due, Ready, wait_until

SLACK = 0.04  # of the time away: how much later than expected a draft may be and still be waited for


@dataclass(slots=True, eq=False)
class Served:
    """One request in service."""

    request: Request
    start_s: float
    num_tokens: float = 0.0
    gamma: int = 0  # of the draft on its way; 0: none is
    is_held: bool = False  # for the draft; else it runs on meanwhile
    base: float = 0.0  # tokens when the draft began
    num_right: int = 0  # leading nodes of the draft that the target agrees with
    arrives_s: float = 0.0  # of its next draft
    expected_s: float = 0.0  # the same as foreseen, slack included
    expected_tokens: float = 1.0
    first_token_s: float | None = None
    last_gamma: int = 0
    memory: object = None  # the arm's own
    drafts: int = 0


class Arm(Protocol):
    """A way of choosing γ."""

    name: str

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has come."""

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has ended."""

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> tuple[int, float, bool]:
        """γ of the next round, the tokens expected of it, and whether the session is held for it."""

    def learn(self, sequence: Served, gamma: int, num_accepted: int) -> None:
        """A round has ended."""

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        """A pass has ended; seconds since the end of the one before it."""


@dataclass(slots=True, eq=False)
class Verifier:
    """One simulated verifier with its sessions."""

    model: VerifierModel
    drafter: DrafterModel
    network: Network
    free: dict[Served, None] = field(default_factory=dict)  # ride in every pass
    away: dict[Served, None] = field(default_factory=dict)  # held until their draft is there
    is_busy: bool = False
    last_end_s: float = 0.0
    last_pass_s: float = 0.0
    num_drafting: int = 0
    state: object = None  # the arm's own
    wake: int = 0  # number of the wake-up that counts

    @property
    def num_sessions(self) -> int:
        return len(self.free) + len(self.away)


class Pass(NamedTuple):
    """A pass that is under way."""

    riders: list[Served]
    began_s: float


class Simulation:
    """Runs requests through verifiers under one arm."""

    def __init__(self, verifiers: Sequence[Verifier], requests: Sequence[Request], arm: Arm, seed: int) -> None:
        self._verifiers = verifiers
        self._arm = arm
        self._chance = random.Random(seed)
        self._numbers = count()
        self._events: list[tuple[float, int, str, Verifier | None, object]] = []
        self._waiting: list[Request] = []
        for request in requests:
            self._at(request.arrival_s, "arrive", None, request)
        self.outcome = Outcome()
        self._warm_s = 0.0

    def run(self, duration_s: float, warm_s: float) -> Outcome:
        """Until `duration_s`; what happens before `warm_s` is not counted."""
        self._warm_s = warm_s
        while self._events and self._events[0][0] < duration_s:
            now_s, _, kind, verifier, payload = heapq.heappop(self._events)
            if kind == "arrive":
                assert isinstance(payload, Request)
                self._arrive(payload, now_s)
            elif kind == "end":
                assert verifier is not None
                assert isinstance(payload, Pass)
                self._end_pass(verifier, payload.riders, payload.began_s, now_s)
            else:
                assert verifier is not None
                if payload == verifier.wake:
                    self._consider(verifier, now_s)
        self.outcome.seconds = duration_s - warm_s
        return self.outcome

    def _at(self, time_s: float, kind: str, verifier: Verifier | None, payload: object) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), kind, verifier, payload))

    def _arrive(self, request: Request, now_s: float) -> None:
        verifier = min(self._verifiers, key=lambda verifier: verifier.num_sessions)
        if verifier.num_sessions >= verifier.model.max_sessions:
            self._waiting.append(request)
            return
        self._serve(verifier, request, now_s)

    def _serve(self, verifier: Verifier, request: Request, now_s: float) -> None:
        sequence = Served(request, now_s)
        verifier.free[sequence] = None
        self._arm.begin(verifier, sequence, now_s)
        self._launch(verifier, sequence, now_s)
        self._consider(verifier, now_s)

    def _launch(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """Decide the sequence's next round."""
        gamma, expected_tokens, is_held = self._arm.decide(verifier, sequence, now_s)
        if now_s > self._warm_s:
            self.outcome.num_rounds += 1
            self.outcome.num_switches += abs(gamma - sequence.last_gamma) > 1
        sequence.gamma = sequence.last_gamma = gamma
        sequence.expected_tokens, sequence.is_held = expected_tokens, is_held
        if not gamma or not is_held:
            verifier.free[sequence] = None
        if not gamma:
            return
        sequence.base, sequence.num_right = sequence.num_tokens, self._num_right(sequence)
        drafter, network = verifier.drafter, verifier.network
        verifier.num_drafting += 1
        crowding = max(1.0, verifier.num_drafting / drafter.batch)
        away_s = drafter.start_s + gamma * drafter.token_s * crowding + sequence.request.round_trip_s
        sequence.expected_s = now_s + away_s * (1.0 + SLACK) + network.jitter_s
        sequence.arrives_s = (
            now_s + away_s * (1.0 + network.jitter * self._chance.random()) + network.jitter_s * self._chance.random()
        )
        if is_held:
            verifier.away[sequence] = None
            self._wake(verifier, sequence.arrives_s)

    def _num_right(self, sequence: Served) -> int:
        alpha, num_right = sequence.request.alpha(sequence.num_tokens), 0
        while num_right < sequence.gamma and self._chance.random() < alpha:
            num_right += 1
        return num_right

    def _wake(self, verifier: Verifier, time_s: float) -> None:
        self._at(time_s, "wake", verifier, verifier.wake)

    def _consider(self, verifier: Verifier, now_s: float) -> None:
        """Start a pass if it is time."""
        if verifier.is_busy:
            return
        there = [sequence for sequence in verifier.away if sequence.arrives_s <= now_s]
        if not there and not verifier.free:
            return
        riders = [*there, *verifier.free]
        positions = sum(self._num_positions(sequence, now_s) for sequence in riders)
        tokens = sum(sequence.expected_tokens for sequence in there) + len(verifier.free)
        due = [
            Due(sequence.expected_s, sequence.expected_tokens, sequence.gamma + 1)
            for sequence in verifier.away
            if sequence.arrives_s > now_s
        ]
        if until_s := wait_until(now_s, Ready(tokens, positions), due, verifier.last_pass_s):
            self._wake(verifier, until_s)
            return
        verifier.is_busy = True
        verifier.wake += 1
        for sequence in there:
            del verifier.away[sequence]
        verifier.free.clear()
        verifier.last_pass_s = verifier.model.seconds(positions)
        if now_s > self._warm_s:
            self.outcome.num_positions += positions
        self._at(now_s + verifier.last_pass_s, "end", verifier, Pass(riders, now_s))

    def _num_positions(self, sequence: Served, now_s: float) -> int:
        """Of a sequence in a pass that begins now: its last token, and what hangs below it of a draft that is there."""
        num_used = int(sequence.num_tokens - sequence.base)
        is_there = sequence.gamma > num_used and sequence.arrives_s <= now_s and sequence.num_right >= num_used
        return 1 + (sequence.gamma - num_used if is_there else 0)

    def _end_pass(self, verifier: Verifier, riders: list[Served], began_s: float, now_s: float) -> None:
        verifier.is_busy = False
        num_committed, decided = 0, []
        for sequence in riders:
            committed, is_over = self._verdict(verifier, sequence, began_s, now_s)
            num_committed += committed
            decided.append((sequence, is_over))
        self._arm.after_pass(verifier, num_committed, now_s - verifier.last_end_s, now_s)
        verifier.last_end_s = now_s
        for sequence, is_over in decided:
            if sequence.num_tokens >= sequence.request.num_output_tokens:
                self._finish(verifier, sequence, now_s)
            elif is_over:
                self._launch(verifier, sequence, now_s)
            else:
                verifier.free[sequence] = None
        for sequence in verifier.away:
            if sequence.arrives_s > now_s:
                self._wake(verifier, sequence.arrives_s)
        self._consider(verifier, now_s)

    def _verdict(self, verifier: Verifier, sequence: Served, began_s: float, now_s: float) -> tuple[int, bool]:
        """Tokens committed, and whether the sequence's round is over."""
        gamma = sequence.gamma
        num_used = int(sequence.num_tokens - sequence.base) if gamma else 0
        is_there = gamma > 0 and sequence.arrives_s <= began_s
        num_accepted = max(0, sequence.num_right - num_used) if is_there else 0
        left = sequence.request.num_output_tokens - sequence.num_tokens
        committed = int(min(num_accepted + 1, left))
        sequence.num_tokens += committed
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        if now_s > self._warm_s:
            self.outcome.num_tokens += committed
        if gamma and not is_there:
            return committed, False
        verifier.num_drafting -= gamma > 0
        self._arm.learn(sequence, gamma, sequence.num_right)
        if now_s > self._warm_s:
            self.outcome.num_drafted += max(0, gamma - num_used) if sequence.num_right >= num_used else 0
            self.outcome.num_accepted += num_accepted
        return committed, True

    def _finish(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        self._arm.end(verifier, sequence, now_s)
        if now_s > self._warm_s:
            self.outcome.num_finished += 1
            self.outcome.latencies_s.append((now_s - sequence.request.arrival_s) / sequence.num_tokens)
        if self._waiting:
            self._serve(verifier, self._waiting.pop(0), now_s)
