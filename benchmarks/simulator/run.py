"""The event loop: verifiers take passes, drafts travel, requests come and go."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from benchmarks.simulator.outcome import Finished, Outcome
from benchmarks.simulator.sequence import Decision, Served
from benchmarks.simulator.world import DrafterModel, Network, Request, Text, VerifierModel
from coordinator.router import VerifierView, choose_verifier
from pilotfish.messages import VerifierLoad
from verifier.tempo import PROMPT_WAITS, Due, Ready, wait_until

SLACK = 0.04  # of the time away: how much later than expected a draft may be and still be waited for
LOOKS = 64  # a verifier with many sessions looks so often in a pass length whether to start the next
LOAD_MEMORY_S = 1.0  # over which a drafter's load is averaged


class Arm(Protocol):
    """A way of choosing γ."""

    name: str

    def begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has come."""

    def end(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """A request has ended."""

    def decide(self, verifier: Verifier, sequence: Served, now_s: float) -> Decision:
        """How the session goes on."""

    def max_drafts(self, verifier: Verifier) -> int | None:
        """Most drafts in a pass; None: all."""

    def learn(self, sequence: Served, num_drafted: int, num_accepted: int) -> None:
        """A round has ended."""

    def after_pass(self, verifier: Verifier, num_tokens: int, seconds: float, now_s: float) -> None:
        """A pass has ended; seconds since the end of the one before it."""


@dataclass(slots=True, eq=False)
class Verifier:
    """One simulated verifier with its sessions and its drafter."""

    model: VerifierModel
    drafter: DrafterModel
    network: Network
    free: dict[Served, None] = field(default_factory=dict)  # ride in every pass
    held: dict[Served, None] = field(default_factory=dict)  # until their draft is there
    prompts: deque[Served] = field(default_factory=deque)  # not read to the end yet
    waiting: deque[tuple[int, Request]] = field(default_factory=deque)  # for KV
    num_tokens_reserved: float = 0.0
    num_context_tokens: int = 0
    is_busy: bool = False
    last_end_s: float = 0.0
    last_pass_s: float = 0.0
    next_look_s: float = 0.0
    drafted_per_s: float = 0.0  # by all sessions, averaged
    drafted_at_s: float = 0.0
    state: object = None  # the arm's own

    @property
    def num_sessions(self) -> int:
        return len(self.free) + len(self.held) + len(self.prompts)

    @property
    def crowding(self) -> float:
        """How much slower the drafter's steps are for being many."""
        return max(1.0, self.drafted_per_s * self.drafter.token_s / self.drafter.batch)

    @property
    def slowdown(self) -> float:
        """How much longer passes take for a drafter on the same device: while it works they have half of it."""
        if not self.model.shares_device:
            return 1.0
        num_drafting = max(1, sum(sequence.decision.gamma > 0 for sequence in (*self.free, *self.held)))
        busy = min(1.0, self.drafted_per_s * self.drafter.token_s / num_drafting)
        return 1.0 / (1.0 - busy / 2.0)

    def count_drafted(self, num_nodes: int, now_s: float) -> None:
        """So many nodes were asked of the drafter."""
        fade = 0.5 ** ((now_s - self.drafted_at_s) / LOAD_MEMORY_S)
        self.drafted_at_s = now_s
        self.drafted_per_s = self.drafted_per_s * fade + num_nodes * 0.693 / LOAD_MEMORY_S


class Rider(NamedTuple):
    """A session's part of a pass."""

    sequence: Served
    num_prompt: int = 0  # positions of its prompt
    has_ended_prompt: bool = False
    num_nodes: int = 0
    num_arrived: int = 0  # nodes of its line, usable or not
    start: int = 0  # tokens it has before the pass


class Simulation:
    """Runs requests through verifiers under one arm."""

    def __init__(self, verifiers: Sequence[Verifier], requests: Sequence[Request], arm: Arm, seed: int) -> None:
        self._verifiers = verifiers
        self._arm = arm
        self._seed = seed
        self._chance = random.Random(seed)
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        for number, request in enumerate(requests):
            self._at(request.arrival_s, partial(self._arrive, number, request))
        self.outcome = Outcome()
        self._warm_s = 0.0

    def run(self, duration_s: float, warm_s: float) -> Outcome:
        """Until `duration_s`; what happens before `warm_s` is not counted."""
        self._warm_s = warm_s
        while self._events and self._events[0][0] < duration_s:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)
        self.outcome.seconds = duration_s - warm_s
        return self.outcome

    def _at(self, time_s: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), happen))

    # -- requests ----------------------------------------------------------------------------------------------------

    def _arrive(self, number: int, request: Request, now_s: float) -> None:
        self.outcome.num_arrived += now_s > self._warm_s
        verifier = self._route()
        if not self._admit(verifier, number, request, now_s):
            verifier.waiting.append((number, request))
        self._consider(verifier, now_s)

    def _route(self) -> Verifier:
        """The coordinators' own router."""
        if len(self._verifiers) == 1:
            return self._verifiers[0]
        views = [
            VerifierView(
                str(number),
                is_up=True,
                num_sessions=verifier.num_sessions,
                load=VerifierLoad(num_queued=len(verifier.waiting), num_sessions=verifier.num_sessions),
            )
            for number, verifier in enumerate(self._verifiers)
        ]
        address = choose_verifier(views)
        assert address is not None
        return self._verifiers[int(address)]

    def _admit(self, verifier: Verifier, number: int, request: Request, now_s: float) -> bool:
        """Reserve KV for the whole request; False where it does not fit now."""
        needed = request.num_kv_tokens
        if verifier.num_tokens_reserved + needed > verifier.model.max_tokens and verifier.num_sessions:
            return False
        verifier.num_tokens_reserved += needed
        sequence = Served(request, Text(request, self._seed, number), number)
        sequence.num_prompt_left = request.num_prompt_tokens
        if sequence.num_prompt_left:
            verifier.prompts.append(sequence)
        else:
            self._begin(verifier, sequence, now_s)
        return True

    def _begin(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        verifier.num_context_tokens += sequence.num_context_tokens
        self._arm.begin(verifier, sequence, now_s)
        self._decide(verifier, sequence, now_s, may_go_on=False)

    def _finish(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        request, outcome = sequence.request, self.outcome
        self._arm.end(verifier, sequence, now_s)
        verifier.num_context_tokens -= sequence.num_context_tokens
        verifier.num_tokens_reserved -= request.num_kv_tokens
        assert sequence.first_token_s is not None
        if now_s > self._warm_s:
            token_s = (now_s - sequence.first_token_s) / max(1, sequence.num_tokens - 1)
            first_s = sequence.first_token_s - request.arrival_s
            outcome.finished.append(Finished(first_s, token_s, sequence.num_tokens, request.token_target_s))
        while verifier.waiting and self._admit(verifier, *verifier.waiting[0], now_s):
            verifier.waiting.popleft()

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _decide(self, verifier: Verifier, sequence: Served, now_s: float, *, may_go_on: bool) -> None:
        """Decide the session's next round. It may go on with the drafter's line where that is right so far."""
        decision = self._arm.decide(verifier, sequence, now_s)
        if now_s > self._warm_s:
            self.outcome.num_rounds += 1
            self.outcome.num_switches += not decision.is_exploring and decision.gamma != sequence.last_gamma
        if not decision.is_exploring:
            sequence.last_gamma = decision.gamma
        goes_on = may_go_on and sequence.decision.ahead > 0 and decision.ahead > 0 and decision.gamma > 0
        sequence.decision = decision
        if not decision.gamma:
            verifier.free[sequence] = None
            return
        if not goes_on:
            self._restart(verifier, sequence, now_s)
        sequence.limit = decision.ahead if goes_on else decision.gamma
        verifier.count_drafted(sequence.limit + goes_on, now_s)
        if goes_on:
            sequence.ready_s = sequence.first_s + (sequence.num_tokens - sequence.base + 1) * sequence.token_s + 1e-9
            sequence.expected_s = sequence.ready_s
        if decision.is_held and sequence.ready_s > now_s:
            verifier.held[sequence] = None
            self._at(min(sequence.ready_s, sequence.expected_s + 1e-9), partial(self._look, verifier))
        else:
            verifier.free[sequence] = None

    def _restart(self, verifier: Verifier, sequence: Served, now_s: float) -> None:
        """The drafter begins a new line at what is committed."""
        drafter, network, gamma = verifier.drafter, verifier.network, sequence.decision.gamma
        stretch, late_s = 1.0 + network.jitter * self._chance.random(), network.jitter_s * self._chance.random()
        start_s = drafter.start_s + sequence.request.round_trip_s
        sequence.base, sequence.is_right = sequence.num_tokens, True
        sequence.token_s = drafter.token_s * verifier.crowding * stretch
        sequence.first_s = now_s + start_s * stretch + late_s + sequence.request.straggles_s
        away_s = start_s + gamma * drafter.token_s * verifier.crowding
        sequence.expected_s = now_s + away_s * (1.0 + SLACK) + network.jitter_s
        sequence.ready_s = sequence.first_s + gamma * sequence.token_s + 1e-9

    # -- passes ------------------------------------------------------------------------------------------------------

    def _look(self, verifier: Verifier, now_s: float) -> None:
        """A draft has come or a wait is over; with many sessions several are looked at together."""
        if verifier.is_busy:
            return
        if len(verifier.held) > LOOKS and now_s < verifier.next_look_s:
            self._at(verifier.next_look_s, partial(self._look, verifier))
            return
        self._consider(verifier, now_s)

    def _consider(self, verifier: Verifier, now_s: float) -> None:
        """Start a pass if it is time."""
        if verifier.is_busy:
            return
        there = [sequence for sequence in verifier.held if now_s >= sequence.ready_s or now_s > sequence.expected_s]
        if not there and not verifier.free and not verifier.prompts:
            return
        if until_s := self._wait_until(verifier, there, now_s):
            self._at(until_s, partial(self._look, verifier))
            verifier.next_look_s = now_s + verifier.last_pass_s / LOOKS
            return
        slowdown = verifier.slowdown
        riders = self._riders(verifier, [*there, *verifier.free], now_s)
        for sequence in there:
            del verifier.held[sequence]
        verifier.free.clear()
        riders += self._read_prompts(verifier)
        positions = sum(1 + rider.num_nodes if not rider.num_prompt else rider.num_prompt for rider in riders)
        verifier.is_busy = True
        seconds = slowdown * verifier.model.seconds(positions, verifier.num_context_tokens)
        if now_s > self._warm_s:
            self.outcome.num_passes += 1
            self.outcome.busy_s += seconds
            self.outcome.num_positions += positions - sum(rider.num_prompt for rider in riders)
        self._at(now_s + seconds, partial(self._end_pass, verifier, riders, seconds))

    def _riders(self, verifier: Verifier, ready: list[Served], now_s: float) -> list[Rider]:
        """Everybody rides; of the drafts so many as the arm wants in a pass, those that waited longest."""
        room = self._arm.max_drafts(verifier)
        if room is not None:
            ready.sort(key=attrgetter("ready_s"))
        riders = []
        for sequence in ready:
            num_nodes = sequence.num_usable(now_s)
            if room is not None and num_nodes:
                room -= 1
            if room is not None and room < 0:
                riders.append(Rider(sequence, start=sequence.num_tokens))
                continue
            riders.append(
                Rider(
                    sequence,
                    num_nodes=num_nodes,
                    num_arrived=sequence.num_arrived(now_s),
                    start=sequence.num_tokens,
                )
            )
        return riders

    def _wait_until(self, verifier: Verifier, there: list[Served], now_s: float) -> float | None:
        """The services' own start rule (`verifier.schedule.StartByWorth`)."""
        if verifier.num_sessions == 1:
            return None
        prompts, ready = verifier.prompts, [*there, *verifier.free]
        tokens, positions = float(len(prompts)), sum(sequence.num_prompt_left for sequence in prompts)
        for sequence in ready:
            num_nodes = sequence.num_usable(now_s)
            tokens += sequence.decision.expected_tokens if num_nodes else 1.0
            positions += 1 + num_nodes
        last_s = verifier.last_end_s + PROMPT_WAITS * verifier.last_pass_s if prompts else inf
        due = [
            Due(sequence.expected_s, sequence.decision.expected_tokens, sequence.decision.gamma + 1)
            for sequence in verifier.held
            if now_s < sequence.ready_s and now_s <= sequence.expected_s <= last_s
        ]
        if not prompts:  # what a session that runs on loses is its draft
            due += [
                Due(sequence.expected_s, decision.expected_tokens - 1.0, decision.gamma, num_sessions=0)
                for sequence in verifier.free
                if (decision := sequence.decision).gamma and sequence.is_right and now_s < sequence.ready_s
            ]
        length = verifier.model.length(verifier.num_context_tokens / verifier.num_sessions)
        return wait_until(now_s, Ready(tokens, positions, len(ready) + len(prompts)), due, length)

    def _read_prompts(self, verifier: Verifier) -> list[Rider]:
        """Prompt chunks within the pass's budget, first come first."""
        riders, room = [], verifier.model.prefill_positions
        while verifier.prompts and room > 0:
            sequence = verifier.prompts[0]
            num = min(room, sequence.num_prompt_left)
            room -= num
            sequence.num_prompt_left -= num
            has_ended = sequence.num_prompt_left == 0
            riders.append(Rider(sequence, num, has_ended))
            if not has_ended:
                break
            verifier.prompts.popleft()
        return riders

    def _end_pass(self, verifier: Verifier, riders: list[Rider], seconds: float, now_s: float) -> None:
        verifier.last_pass_s = seconds
        verifier.is_busy = False
        num_committed = sum(self._commit(rider, now_s) for rider in riders if not rider.num_prompt)
        verifier.num_context_tokens += num_committed
        if not any(rider.num_prompt for rider in riders):  # one that reads prompts says nothing of what drafts cost
            self._arm.after_pass(verifier, num_committed, now_s - verifier.last_end_s, now_s)
        verifier.last_end_s = now_s
        for rider in riders:
            self._settle(verifier, rider, now_s)
        self._consider(verifier, now_s)

    def _commit(self, rider: Rider, now_s: float) -> int:
        """The accepted nodes and one more."""
        sequence, num_nodes = rider.sequence, rider.num_nodes
        num_accepted = sequence.text.run(rider.start, num_nodes)
        committed = int(min(num_accepted + 1, sequence.request.num_output_tokens - rider.start))
        if sequence.decision.gamma and sequence.is_right:  # the bonus is what the line goes on with, or is not
            sequence.is_right = sequence.text.run(rider.start, num_nodes + 1) > num_nodes
        sequence.num_tokens += committed
        if now_s > self._warm_s:
            outcome = self.outcome
            outcome.num_tokens += committed
            outcome.num_drafted += num_nodes
            outcome.num_accepted += num_accepted
            by_session = outcome.tokens_by_session
            by_session[sequence.number] = by_session.get(sequence.number, 0) + committed
        return committed

    def _settle(self, verifier: Verifier, rider: Rider, now_s: float) -> None:
        """What becomes of a session after a pass."""
        sequence = rider.sequence
        if sequence.first_token_s is None and (rider.has_ended_prompt or not rider.num_prompt):
            sequence.first_token_s = now_s
        if rider.num_prompt:
            if not rider.has_ended_prompt:
                return  # it stands at the head of the prompts
            sequence.num_tokens = 1
            if now_s > self._warm_s:
                self.outcome.num_tokens += 1
            self._begin(verifier, sequence, now_s)
            return
        if sequence.num_tokens >= sequence.request.num_output_tokens:
            self._finish(verifier, sequence, now_s)
            return
        gamma = sequence.decision.gamma
        if gamma and self._is_round_over(rider):
            self._learn(rider)
            self._decide(verifier, sequence, now_s, may_go_on=sequence.is_right)
        elif not gamma:
            self._decide(verifier, sequence, now_s, may_go_on=False)
        else:
            verifier.free[sequence] = None

    def _is_round_over(self, rider: Rider) -> bool:
        """Whether the draft was verified, or was there and could not be used."""
        sequence = rider.sequence
        if rider.num_nodes:
            return True
        if not sequence.decision.ahead:
            return rider.num_arrived >= sequence.decision.gamma
        num_right = sequence.text.run(sequence.base, sequence.num_tokens - sequence.base)
        return not sequence.is_right and rider.num_arrived > num_right

    def _learn(self, rider: Rider) -> None:
        """Tell the arm how the draft went, the part that was committed already included."""
        sequence, decision = rider.sequence, rider.sequence.decision
        goes_on = decision.ahead > 0 and rider.num_nodes > 0
        start, num = (rider.start, rider.num_nodes) if goes_on else (sequence.base, decision.gamma)
        self._arm.learn(sequence, num, sequence.text.run(start, num))
