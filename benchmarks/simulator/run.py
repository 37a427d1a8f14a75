"""The event loop: verifiers take passes, drafts travel, requests come and go."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from benchmarks.simulator.world import DrafterModel, Network, Outcome, Request, VerifierModel
from verifier.tempo import Due, Ready, wait_until

SLACK = 0.04  # of the time away: how much later than expected a draft may be and still be waited for


@dataclass(slots=True, eq=False)
class Served:
    """One request in service."""

    request: Request
    start_s: float
    num_tokens: float = 0.0
    gamma: int = 0
    arrives_s: float = 0.0  # of its next draft
    expected_s: float = 0.0  # the same as foreseen, slack included
    expected_tokens: float = 1.0
    first_token_s: float | None = None
    memory: object = None  # the arm's own
    drafts: int = 0


class Arm(Protocol):
    """A way of choosing γ."""

    name: str

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has come."""

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has ended."""

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> tuple[int, float]:
        """γ of the next round, and the tokens expected of it."""

    def learn(self, sequence: Served, gamma: int, num_accepted: int) -> None:
        """A round has ended."""

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        """A pass has ended; seconds since the end of the one before it."""

    def capacity(self, verifier: Verifier) -> int | None:
        """Positions a pass should carry; None: all that is ready."""


@dataclass(slots=True, eq=False)
class Verifier:
    """One simulated verifier with its sessions."""

    model: VerifierModel
    drafter: DrafterModel
    network: Network
    free: dict[Served, None] = field(default_factory=dict)
    away: dict[Served, None] = field(default_factory=dict)
    is_busy: bool = False
    last_end_s: float = 0.0
    last_pass_s: float = 0.0
    state: object = None  # the arm's own
    wake: int = 0  # number of the wake-up that counts

    @property
    def num_sessions(self) -> int:
        return len(self.free) + len(self.away)


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
                assert isinstance(payload, list)
                self._end_pass(verifier, payload, now_s)
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
        gamma, expected_tokens = self._arm.decide(verifier, sequence, now_s)
        if now_s > self._warm_s:
            self.outcome.num_rounds += 1
            self.outcome.num_switches += abs(gamma - sequence.gamma) > 1 or (gamma == 0) != (sequence.gamma == 0)
        sequence.gamma, sequence.expected_tokens = gamma, expected_tokens
        if not gamma:
            verifier.free[sequence] = None
            return
        drafter, network = verifier.drafter, verifier.network
        crowding = max(1.0, len(verifier.away) / drafter.batch)
        away_s = drafter.start_s + gamma * drafter.token_s * crowding + sequence.request.round_trip_s
        sequence.expected_s = now_s + away_s * (1.0 + SLACK) + network.jitter_s
        sequence.arrives_s = (
            now_s + away_s * (1.0 + network.jitter * self._chance.random()) + network.jitter_s * self._chance.random()
        )
        verifier.away[sequence] = None
        self._wake(verifier, sequence.arrives_s)

    def _wake(self, verifier: Verifier, time_s: float) -> None:
        self._at(time_s, "wake", verifier, verifier.wake)

    def _consider(self, verifier: Verifier, now_s: float) -> None:
        """Start a pass if it is time."""
        if verifier.is_busy:
            return
        there = [sequence for sequence in verifier.away if sequence.arrives_s <= now_s]
        if not there and not verifier.free:
            return
        capacity = self._arm.capacity(verifier)
        taken, positions, tokens = self._take(verifier, there, capacity)
        due = [
            Due(sequence.expected_s, sequence.expected_tokens, sequence.gamma + 1)
            for sequence in verifier.away
            if sequence.arrives_s > now_s
        ]
        if until_s := wait_until(now_s, Ready(tokens, positions), due, verifier.last_pass_s, capacity):
            self._wake(verifier, until_s)
            return
        verifier.is_busy = True
        verifier.wake += 1
        for sequence in taken:
            verifier.away.pop(sequence)
        batch = taken + list(verifier.free)
        verifier.free.clear()
        verifier.last_pass_s = verifier.model.seconds(positions)
        if now_s > self._warm_s:
            self.outcome.num_positions += positions
        self._at(now_s + verifier.last_pass_s, "end", verifier, batch)

    def _take(self, verifier: Verifier, there: list[Served], capacity: int | None) -> tuple[list[Served], int, float]:
        """Who rides in the pass: all that run free, and drafts by arrival up to the capacity."""
        positions, tokens = len(verifier.free), float(len(verifier.free))
        taken: list[Served] = []
        for sequence in sorted(there, key=lambda sequence: sequence.arrives_s):
            if capacity is not None and taken and positions + sequence.gamma + 1 > capacity:
                break
            taken.append(sequence)
            positions += sequence.gamma + 1
            tokens += sequence.expected_tokens
        return taken, positions, tokens

    def _end_pass(self, verifier: Verifier, batch: list[Served], now_s: float) -> None:
        verifier.is_busy = False
        num_committed = 0
        for sequence in batch:
            num_committed += self._verdict(sequence, now_s)
        self._arm.after_pass(verifier, num_committed, now_s - verifier.last_end_s, now_s)
        verifier.last_end_s = now_s
        for sequence in batch:
            if sequence.num_tokens >= sequence.request.num_output_tokens:
                self._finish(verifier, sequence, now_s)
            else:
                self._launch(verifier, sequence, now_s)
        for sequence in verifier.away:
            if sequence.arrives_s > now_s:
                self._wake(verifier, sequence.arrives_s)
        self._consider(verifier, now_s)

    def _verdict(self, sequence: Served, now_s: float) -> int:
        gamma, accepted = sequence.gamma, 0
        alpha = sequence.request.alpha(sequence.num_tokens)
        while accepted < gamma and self._chance.random() < alpha:
            accepted += 1
        left = sequence.request.num_output_tokens - sequence.num_tokens
        committed = int(min(accepted + 1, left))
        sequence.num_tokens += committed
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        self._arm.learn(sequence, gamma, accepted)
        if now_s > self._warm_s:
            self.outcome.num_tokens += committed
            self.outcome.num_drafted += gamma
            self.outcome.num_accepted += accepted
        return committed

    def _finish(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        self._arm.end(verifier, sequence, now_s)
        if now_s > self._warm_s:
            self.outcome.num_finished += 1
            self.outcome.latencies_s.append((now_s - sequence.request.arrival_s) / sequence.num_tokens)
        if self._waiting:
            self._serve(verifier, self._waiting.pop(0), now_s)
