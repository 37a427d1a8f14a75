"""The engine: one thread that owns the model. `plan → forward → settle`, and between passes the items that came.

Commands go in through a queue, answers come out in batches; asyncio knows nothing of passes, passes nothing of asyncio.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, TypeAlias

from torch import Tensor

from pilotfish.engine.backend import Backend
from pilotfish.engine.batch import pack
from pilotfish.engine.kv import KVPool
from pilotfish.errors import FailedPrecondition, PilotfishError, TargetFailed, UnknownSession
from pilotfish.messages import Close, Open, Opened, Refusal, Verdict, VerifierLoad, Work
from pilotfish.wire.values import refuse
from verifier import acceptance
from verifier.acceptance import Outcome, Round
from verifier.admission import Capacity, Occupancy, objection, stale
from verifier.passes import Ride, rounds
from verifier.pricing import RUNS_FREE, PassYield, Pricing
from verifier.schedule import Candidate, Moment, PassLimits, Share, StartRule, plan
from verifier.seats import Seats
from verifier.sessions import Claim, Decision, Session, SessionKey
from verifier.traffic import Answer, Command, Emit, Observer, PassRecord, RoundTimes

__all__ = ["Answer", "Command", "Engine", "PassRecord"]

_log = logging.getLogger(__name__)

BREATH_S: Final = 0.001  # after a pass its verdicts go out first: they are waited for, the price is not

Accept: TypeAlias = Callable[[Sequence[Round], Tensor], list[Outcome]]


class Engine:
    """Sessions, their KV and the model behind them.

    `submit`, `stalled_s` and `is_draining` are for any thread; everything else belongs to the engine's.
    """

    def __init__(
        self,
        backend: Backend,
        capacity: Capacity,
        limits: PassLimits,
        start_rule: StartRule,
        emit: Emit,
        observer: Observer,
        accept: Accept = acceptance.accept,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allocate the KV; nothing runs before `start`, or `turn` in a test.

        Args:
            emit: is handed the answers of a turn, on the engine's thread; it must not block.
        """
        self.pool = KVPool(capacity.num_pages, capacity.page_size)
        backend.allocate(capacity.num_pages, capacity.page_size)
        self.sessions: dict[SessionKey, Session] = {}  # in order of opening
        self.is_draining = False
        self._backend = backend
        self._capacity = capacity
        self._limits = limits
        self._start_rule = start_rule
        self._emit = emit
        self._observer = observer
        self._accept = accept
        self._clock = clock
        self._pricing: Pricing | None = None
        self._counts_from_s = 0.0  # the time of the next pass counts from here
        self._seats = Seats(self.pool)
        self._commands: queue.SimpleQueue[tuple[Command, ...]] = queue.SimpleQueue()
        self._answers: list[Answer] = []
        self._has_news = False  # of sessions that ended without an answer
        self._claims: dict[SessionKey, Claim | None] = {}
        self._num_waiting = 0  # for KV
        self._num_left = 0  # that were ready for the last pass and found no place in it
        self._num_opened = 0
        self._num_passes = 0
        self._last_pass = PassRecord()
        self._unpriced: PassYield | None = None  # what the last pass brought, while the price has not heard of it
        self._ready_since_s = inf
        self._busy_since_s: float | None = None  # None: it waits for commands
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- for any thread ----------------------------------------------------------------------------------------------

    def submit(self, *commands: Command) -> None:
        """Hand items in; those of one call are taken together, so that they can share a pass."""
        self._commands.put(commands)

    def set_price(self, pricing: Pricing | None) -> None:
        """Before `start`: who keeps the plan. None: none is published, and coordinators decide by themselves."""
        self._pricing = pricing

    @property
    def pricing(self) -> Pricing | None:
        """Who keeps the plan."""
        return self._pricing

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after the pass it is in."""
        self._is_stopping = True
        self._commands.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def num_unread(self) -> int:
        """Calls of `submit` whose items it has not taken yet."""
        return self._commands.qsize()

    @property
    def unfinished(self) -> list[Session]:
        """Sessions that could still commit something."""
        return [session for session in list(self.sessions.values()) if session.finish is None]

    def stalled_s(self, now_s: float) -> float:
        """For how long it has been at one and the same turn; 0 while it waits for something to do."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._is_stopping:
            return inf
        busy_since_s = self._busy_since_s
        return 0.0 if busy_since_s is None else max(0.0, now_s - busy_since_s)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._wait(self._turn())
            except Exception as error:  # noqa: BLE001 - a fault ends the sessions it may have touched, not the engine
                _log.exception("the engine's turn failed; its sessions are closed")
                for session in list(self.sessions.values()):
                    self._fail(session, error)
                self._flush()
        self._flush()

    def turn(self) -> float:
        """Take the items that have come, run a pass if it is time for one, and give the answers.

        Returns:
            When the next turn is due on the engine's clock, unless an item comes before; 0: at once.
        """
        until_s = self._turn()
        self._flush()
        return until_s

    def _turn(self) -> float:
        """The same, but where all sessions run free their verdicts go out while the next pass runs.

        What they bring about could not ride in that one anyway, and the threads of a process take turns: sending them
        first would hold it up.
        """
        self._busy_since_s = self._clock()
        self._take_commands()
        now_s = self._clock()
        self._expire(now_s)
        candidates = self._candidates(now_s)
        starts_at_s = self._start_rule.start_at(self._moment(candidates, now_s))
        run_free = all(candidate.is_free for candidate in candidates)
        if starts_at_s > now_s or not run_free:
            self._flush()
        if starts_at_s > now_s:
            return min(starts_at_s, self._wakes_at_s(now_s))
        self._account()
        if self._pricing is not None:
            self._pricing.prepare(now_s)
        num_ready = sum(candidate.has_work for candidate in candidates)
        shares = plan(candidates, self._limits, self._max_drafts)
        if not self._pass(shares, num_ready, self._clock()):  # what the price took is no part of the pass
            self._flush()
            return self._wakes_at_s(now_s)  # KV is short: somebody must end, or wake, first
        self._ready_since_s = inf
        if not run_free:
            self._flush()
        return 0.0

    def _wait(self, until_s: float) -> None:
        """Block until a command comes or the time has come. The last pass is priced once nothing came for a moment."""
        now_s = self._clock()
        if until_s <= now_s or (self._unpriced and self._hears(min(until_s, now_s + BREATH_S))):
            return
        self._account()
        self._hears(until_s)

    def _hears(self, until_s: float) -> bool:
        """Whether commands came by then; they are obeyed."""
        timeout_s = until_s - self._clock()
        if timeout_s <= 0:
            return False
        self._busy_since_s = None
        try:
            commands = self._commands.get(timeout=None if timeout_s == inf else timeout_s)
        except queue.Empty:
            return False
        self._busy_since_s = self._clock()
        for command in commands:
            self._obey(command)
        return True

    @property
    def _max_drafts(self) -> int | None:
        """That a pass should carry, where sessions take turns; None: all that are there."""
        return None if self._pricing is None else self._pricing.plan.num_drafts

    def _moment(self, candidates: Sequence[Candidate], now_s: float) -> Moment:
        if any(candidate.has_work for candidate in candidates):
            self._ready_since_s = min(self._ready_since_s, now_s)
        length = None if self._pricing is None else self._pricing.length
        return Moment(now_s, candidates, self._ready_since_s, self._last_pass.length_s, length)

    def _wakes_at_s(self, now_s: float) -> float:
        wakes = [inf]
        for session in self.sessions.values():
            wakes.append(session.lease_until_s)
            if session.held_until_s > now_s:
                wakes.append(session.wakes_at_s)
        return min(wakes)

    # -- items in ----------------------------------------------------------------------------------------------------

    def _take_commands(self) -> None:
        while True:
            try:
                commands = self._commands.get_nowait()
            except queue.Empty:
                return
            for command in commands:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        session = self.sessions.get(command.key)
        match command.item:
            case Open() as opened:
                self._open(command, opened, session)
            case Work() as work:
                self._work(command, work, session)
            case Close() as close:
                if session is not None and close.incarnation == self._capacity.incarnation:
                    self._forget(session)

    def _open(self, command: Command, opened: Open, session: Session | None) -> None:
        if session is not None:
            self._reopen(command, opened, session)
            return
        occupancy = Occupancy(len(self.sessions), self._num_waiting, self.is_draining)
        error = objection(opened, self._capacity, occupancy)
        if error is not None:
            self._refuse(command, error)
            return
        self._num_opened += 1
        session = Session(
            key=command.key,
            opened=opened,
            ordinal=self._num_opened,
            limit=self._capacity.limit(opened),
            stream=command.stream,
            count_drop=self._observer.dropped,
            held_until_s=command.arrived_s + opened.patience_us / 1e6,
            lease_s=min(opened.lease_s, self._capacity.max_lease_s),
            now_s=command.arrived_s,
        )
        if self._pricing is not None:
            self._pricing.put(session.key, opened.profile or RUNS_FREE)
        self.sessions[session.key] = session
        self._recount()
        self._answer(session, Opened(session.key.session, session.start, self._seats.num_found(session)))

    def _reopen(self, command: Command, opened: Open, session: Session) -> None:
        answers = session.resume(opened, command.stream, command.arrived_s)
        if answers is None:
            what = "a session with this id is open for another request: ids are 128 random bits, draw a new one"
            self._refuse(command, FailedPrecondition(what))
            return
        self._answer(session, Opened(session.key.session, len(opened.tokens)))
        for answer in answers:
            self._answer(session, answer)

    def _work(self, command: Command, work: Work, session: Session | None) -> None:
        if work.incarnation != self._capacity.incarnation:
            self._refuse(command, stale(work.incarnation, self._capacity.incarnation))
        elif session is None:
            what = "no such session: it was never opened, was closed, failed, or its lease ran out; open it again"
            self._refuse(command, UnknownSession(what))
        else:
            if self._pricing is not None and work.profile is not None and session.finish is None:
                self._pricing.put(session.key, work.profile)
            for answer in session.take(work, command.stream, command.arrived_s, command.cut):
                self._answer(session, answer)

    def _expire(self, now_s: float) -> None:
        for session in [session for session in self.sessions.values() if session.lease_until_s <= now_s]:
            self._observer.expired()
            what = f"nothing was heard of the session for {session.lease_s:g} s, its lease; open it again"
            self._answer(session, session.refuse(UnknownSession(what)))
            self._forget(session)

    def _recount(self) -> None:
        """Sessions came or went: waiting counts from here on, and not what may have been idleness."""
        if self._counts_from_s:
            self._counts_from_s = self._clock()

    def _forget(self, session: Session) -> None:
        self._recount()
        self._release(session)
        del self.sessions[session.key]
        self._has_news = True

    def _release(self, session: Session) -> None:
        """Free what a session holds that commits nothing more."""
        self._seats.release(session.key)
        if self._pricing is not None:
            self._pricing.remove(session.key)

    # -- plan --------------------------------------------------------------------------------------------------------

    def _candidates(self, now_s: float) -> list[Candidate]:
        """What each session would bring; on the way those without KV are seated, as far as there is room."""
        candidates: list[Candidate] = []
        self._claims.clear()
        self._num_waiting = 0
        for session in self.sessions.values():
            if session.finish is not None:
                continue
            if not self._seats.holds(session) and (self._num_waiting or not self._seats.take(session)):
                self._num_waiting += 1
                session.renew(now_s)
                continue
            claim = self._claims[session.key] = session.claim(now_s)
            candidates.append(
                Candidate(
                    key=session.key,
                    num_pending=len(session.tokens) - self._seats.num_computed(session),
                    num_nodes=0 if claim is None else len(claim.draft),
                    may_commit=claim is not None,
                    is_free=claim is not None and claim.hand is None,
                    last_pass=session.last_pass,
                    due_at_s=session.due_at_s(now_s) if claim is None or claim.hand is None else inf,
                    due_in_s=session.turnaround_s or 0.0,
                    due_within_s=session.deviation_s,
                    tokens_per_draft=session.tokens_per_draft,
                    nodes_per_draft=session.nodes_per_draft,
                    offered=session.offered,
                    may_put_off=session.may_put_off(now_s),
                    last_draft_pass=session.last_draft_pass,
                    first_by_s=session.first_by_s(now_s),
                )
            )
            if candidates[-1].has_work:
                session.renew(now_s)
        return candidates

    # -- forward -----------------------------------------------------------------------------------------------------

    def _pass(self, shares: Sequence[Share], num_ready: int, began_s: float) -> bool:
        """Run a pass; False: nobody could ride."""
        num_preempted = self._seats.num_preempted
        rides = self._rides(shares)
        self._num_left = num_ready - len(rides)
        if not rides:
            return False
        batch = pack([ride.item(self.pool.pages(ride.session.key)) for ride in rides], self.pool.page_size)
        asked = rounds(rides)
        self._flush()
        try:
            logits = self._backend.forward(batch)
            outcomes = self._accept(asked, logits[:, : self._capacity.vocabulary_size]) if asked else []
        except Exception as error:  # noqa: BLE001 - it fails the sessions of this pass and no others
            _log.exception("a pass of %d positions failed; its %d sessions are closed", len(batch), len(rides))
            for ride in rides:
                self._fail(ride.session, error)
            return True
        self._num_passes += 1
        self._last_pass = PassRecord(
            began_s=began_s,
            ended_s=self._clock(),
            num_positions=len(batch),
            num_sequences=len(rides),
            num_prefill_positions=sum(ride.num_prefill for ride in rides),
            num_preempted=self._seats.num_preempted - num_preempted,
        )
        self._settle(rides, outcomes)
        self._observer.passed(self._last_pass)
        self._unpriced = None if self._pricing is None else self._yield(rides)
        return True

    def _account(self) -> None:
        """Tell the price what the last pass brought: once its verdicts are out, and before the next pass."""
        brought, self._unpriced = self._unpriced, None
        if self._pricing is not None and brought is not None:
            self._pricing.passed(self._last_pass, brought)

    def _yield(self, rides: Sequence[Ride]) -> PassYield:
        """What the last pass brought. Waiting counts where sessions are held for their drafts."""
        record = self._last_pass
        tokens = sum(
            len(ride.session.last_verdict.tokens) for ride in rides if ride.claim and ride.session.last_verdict
        )
        context = sum(ride.num_context for ride in rides)
        since_s = max(self._counts_from_s, 0.0) or record.began_s
        is_held = any(session.held_until_s > record.ended_s for session in self.unfinished)
        self._counts_from_s = record.ended_s if is_held else 0.0
        return PassYield(context, tokens, since_s, self._num_running(rides) if record.num_prefill_positions else 0)

    def _num_running(self, rides: Sequence[Ride]) -> int:
        """Sessions that have read their prompts, those that ended in the last pass included."""
        num_ended = sum(ride.session.finish is not None for ride in rides)
        seated = (session for session in self.unfinished if self._seats.holds(session))
        return num_ended + sum(len(session.tokens) - self._seats.num_computed(session) == 1 for session in seated)

    def _rides(self, shares: Sequence[Share]) -> list[Ride]:
        """The shares for which there is KV. Who came first is asked first, so nobody loses what it has reserved."""
        by_age = sorted(shares, key=lambda share: self.sessions[share.key].ordinal)
        rides = [self._ride(share) for share in by_age]
        return [ride for ride in rides if ride is not None]

    def _ride(self, share: Share) -> Ride | None:
        session = self.sessions[share.key]
        if not self._seats.holds(session):
            return None  # preempted for one that came before it
        claim = self._claims[share.key] if share.has_logits else None
        if claim is not None and share.is_put_off:
            claim = Claim()
        ride = Ride(session, self._seats.num_computed(session), share.num_pending, claim)
        if self._seats.reserve(session, ride.num_computed + len(ride.draft), self.sessions.values()):
            return ride
        if claim is None or len(self.pool) > 1:
            return None
        # A tree too wide for the whole pool. Its committed path would fit: that was seen to at the opening.
        draft = claim.draft.truncate(self._seats.room(session) - ride.num_computed)
        self._seats.reserve(session, ride.num_computed + len(draft), ())
        return ride._replace(claim=claim._replace(draft=draft))

    # -- settle ------------------------------------------------------------------------------------------------------

    def _settle(self, rides: Sequence[Ride], outcomes: Sequence[Outcome]) -> None:
        """Commit what was decided; roll KV back to what is committed by saying how long it is."""
        decided = iter(outcomes)
        for ride in rides:
            ride.session.last_pass = self._num_passes
            if ride.draft.tokens:
                ride.session.last_draft_pass = self._num_passes
            ride.session.renew(self._last_pass.ended_s)
            if ride.claim is None:
                self.pool.advance(ride.session.key, ride.num_computed)
                continue
            outcome = next(decided)
            if outcome.error is not None:
                self._fail(ride.session, TargetFailed(f"{outcome.error} at position {ride.num_computed}"))
            else:
                self._commit(ride, ride.claim, outcome)

    def _commit(self, ride: Ride, claim: Claim, outcome: Outcome) -> None:
        session, hand, passed = ride.session, claim.hand, self._last_pass
        ready_s = passed.began_s if hand is None else max(hand.arrived_s, session.verdict_at_s or 0.0)
        decision = Decision(
            tokens=(*(claim.draft.tokens[node] for node in outcome.path), outcome.token),
            num_accepted=len(outcome.path),
            is_bonus=outcome.is_bonus,
            node_probabilities=outcome.node_probabilities,
            queue_us=round(max(0.0, passed.began_s - ready_s) * 1e6),
            pass_us=round(passed.length_s * 1e6),
            pass_positions=passed.num_positions,
        )
        verdict = session.commit(claim, decision, passed.ended_s)
        times = None if hand is None else RoundTimes(hand.trace, hand.arrived_s, passed)
        self._answers.append(Answer(session.key, session.stream, verdict, times))
        if session.finish is not None:
            self._release(session)
            return
        nodes = [ride.num_computed + node for node in outcome.path]
        sources, destinations = self.pool.move(session.key, nodes, ride.num_computed)
        if sources:
            self._backend.copy(sources, destinations)
        self.pool.advance(session.key, ride.num_computed + len(nodes))

    def _fail(self, session: Session, error: Exception) -> None:
        """End one session that cannot go on; the others do."""
        if not isinstance(error, PilotfishError):
            error = TargetFailed(f"the target failed ({type(error).__name__}); the verifier's log says more")
        self._answer(session, session.refuse(error))
        self._forget(session)

    # -- answers out -------------------------------------------------------------------------------------------------

    def _answer(self, session: Session, message: Opened | Verdict | Refusal) -> None:
        trace = session.opened.trace if isinstance(message, Refusal) else None
        self._answers.append(Answer(session.key, session.stream, message, trace=trace))

    def _refuse(self, command: Command, error: PilotfishError) -> None:
        refusal = refuse(error, command.item.session, self._capacity.incarnation)
        self._answers.append(Answer(command.key, command.stream, refusal))

    def _flush(self) -> None:
        if self._answers or self._has_news:
            answers, self._answers, self._has_news = self._answers, [], False
            self._emit(answers, self.load())

    def load(self) -> VerifierLoad:
        """What the verifier says of itself."""
        last = self._last_pass
        return VerifierLoad(
            pass_us=round(last.length_s * 1e6),
            pass_positions=last.num_positions,
            pass_sequences=last.num_sequences,
            num_queued=self._num_waiting + self._num_left,
            num_sessions=len(self.sessions),
            num_kv_pages=self.pool.num_pages,
            num_kv_pages_used=self.pool.num_used_pages,
            saturation=0.0 if self._pricing is None else self._pricing.saturation,
            plan=None if self._pricing is None else self._pricing.plan,
            realised_speedup=None if self._pricing is None else self._pricing.realised_speedup,
            plain_us=0 if self._pricing is None else round(1e6 * self._pricing.plain_s),
        )
