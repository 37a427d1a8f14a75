"""The drafter without its transport: takes messages, keeps sessions, sets speculators to work, gives answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from drafter import runner
from drafter.load import Arrival, DraftTimes
from drafter.rounds import Clock, Drawn
from drafter.runner import Runner
from drafter.sessions import Session, Sessions
from drafter.speculators import Facts, Speculator
from drafter.stopping import Context, Deadline, FirstOf, Gamma, StepPrice, StopRule
from pilotfish.errors import NotFound, PilotfishError, StaleIncarnation, VocabularyMismatch
from pilotfish.messages import Close, DrafterLoad, DraftPart, DraftRequest, Open, Opened, Refusal, SessionId
from pilotfish.telemetry import DRAFT, Attribute, Metric, Telemetry
from pilotfish.tracing import Span
from pilotfish.wire.drafter import FromDrafter, ToDrafter
from pilotfish.wire.values import refuse

Reply = Callable[[FromDrafter], None]


class Desk(NamedTuple):
    """A speculator at work, and how long it takes."""

    runner: Runner
    times: DraftTimes


@dataclass(slots=True)
class _Due:
    """The draft that is being drawn for a session."""

    request: DraftRequest
    span: Span
    first: Arrival | None = None
    last: Arrival | None = None
    num_drafted: int = 0
    path: list[int] = field(default_factory=list)  # tokens of the nodes sent


@dataclass(slots=True)
class _Seat:
    """A session, who drafts for it, and where its answers go."""

    session: Session
    desk: Desk
    reply: Reply  # to the stream that spoke of it last
    due: _Due | None = None


class Drafter:
    """Takes one message at a time; answers come through the reply that the session's last message brought.

    Must be made and used in an event loop. Sessions outlive the streams they were opened on.
    """

    def __init__(
        self,
        speculators: Mapping[str, Speculator],
        incarnation: int,
        *,
        max_sessions: int = 1024,
        clock: Clock = time.monotonic,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Set the speculators to work.

        Args:
            speculators: by name, the default first.
            incarnation: of this process.
            max_sessions: that may be open at once.
            clock: monotonic, in seconds.
            telemetry: where to report to; None: nowhere.
        """
        assert speculators, "settings require one"
        self.incarnation = incarnation
        self.telemetry = telemetry or Telemetry.off()
        self._clock = clock
        self._sessions = Sessions(max_sessions)
        self._seats: dict[SessionId, _Seat] = {}
        self._desks = {
            name: Desk(runner.start(speculator, self, clock, self.telemetry), DraftTimes())
            for name, speculator in speculators.items()
        }

    # -- what it says of itself --------------------------------------------------------------------------------------

    @property
    def speculators(self) -> tuple[str, ...]:
        return tuple(self._desks)

    @property
    def facts(self) -> Facts:
        """Of the first speculator with a model; without any, those of a drafter that only copies."""
        all_facts = [desk.runner.facts for desk in self._desks.values()]
        return next((facts for facts in all_facts if facts.vocabulary_hash is not None), all_facts[0])

    @property
    def load(self) -> DrafterLoad:
        """The times are those of the first speculator that has been measured."""
        measured = [desk.times for desk in self._desks.values() if desk.times.start_us]
        times = measured[0] if measured else DraftTimes()
        num_queued = sum(seat.due is not None and seat.due.first is None for seat in self._seats.values())
        return DrafterLoad(times.start_us, times.token_us, num_queued, len(self._sessions))

    # -- what it is told ---------------------------------------------------------------------------------------------

    def take(self, message: ToDrafter | Refusal, reply: Reply) -> None:
        """Do what a message asks for. What cannot be done is refused, and touches nothing else."""
        try:
            match message:
                case DraftRequest():
                    self._draft(message, reply)
                case Open():
                    self._open(message, reply)
                case Close():
                    self._end(message.session)
                    if message.trace is not None:
                        self.telemetry.tracer.keep(message.trace)
                case Refusal():  # of an item that could not even be read
                    self.drop(message.reason)
                    reply(message)
        except PilotfishError as error:
            self._refuse(message.session, error, reply)

    def expire(self) -> None:
        """End the sessions whose lease is over."""
        for session in self._sessions.expired(self._clock()):
            self.telemetry.add(Metric.LEASES_EXPIRED)
            self._end(session)

    def drop(self, cause: str) -> None:
        """Count something that was dropped or refused."""
        self.telemetry.add(Metric.ITEMS_DROPPED, 1, cause)

    def leave(self, reply: Reply) -> None:
        """A stream is gone: nobody waits for the drafts it asked for. Its sessions stay, by lease.

        Args:
            reply: the very one that came with the stream's messages.
        """
        for seat in self._seats.values():
            if seat.reply is reply:
                seat.reply = _to_nobody
                if self._give_up(seat):
                    seat.desk.runner.observe(seat.session.id, ())

    def stop(self) -> None:
        """End all sessions and speculators; returns when they have ended."""
        for session in self._sessions:
            self._end(session)
        for desk in self._desks.values():
            desk.runner.stop()

    def _open(self, start: Open, reply: Reply) -> None:
        self._check_incarnation(start.incarnation)
        name = start.speculator or self.speculators[0]
        desk = self._desks.get(name)
        if desk is None:
            raise NotFound.of("speculator", name, f"this drafter has {', '.join(self.speculators)}")
        ours = desk.runner.facts.vocabulary_hash
        if ours is not None and ours != start.vocabulary_hash:
            raise VocabularyMismatch.of(
                "vocabulary_hash", start.vocabulary_hash, f"{name} ({desk.runner.facts.model}) has {ours}; its token "
                "strings differ from the target's, so its drafts would mean other texts: use another drafter"
            )  # fmt: skip
        self._end(start.session)  # opened again: whatever it was, it starts anew
        session = self._sessions.open(start, name, self._clock())
        self._seats[start.session] = _Seat(session, desk, reply)
        self.telemetry.set(Metric.SESSIONS, len(self._sessions))
        desk.runner.open(start)
        if start.session in self._seats:
            reply(Opened(start.session, session.position))

    def _draft(self, request: DraftRequest, reply: Reply) -> None:
        arrived_s = self._clock()
        self._check_incarnation(request.incarnation)
        session = self._sessions.find(request.session, arrived_s)
        seat = self._seats[request.session]
        seat.reply = reply
        tokens = session.advance(request)
        due = seat.due
        if self._give_up(seat) and due is not None:
            self._measure(seat, due)
            if not tokens or tuple(due.path[: len(tokens)]) != tokens:  # else the draft goes on
                self.drop("superseded")
        seat.desk.runner.observe(request.session, tokens)
        if request.gamma and request.session in self._seats:
            attributes: dict[str, str | int] = {
                Attribute.ROUND_INDEX: request.round,
                Attribute.GAMMA: request.gamma,
                Attribute.SPECULATOR: session.speculator,
                Attribute.SESSION: request.session.hex(),
            }
            seat.due = _Due(request, self.telemetry.tracer.begin(DRAFT, request.trace, attributes))
            seat.desk.runner.draft(request, arrived_s, stop_rule(request, seat.desk.runner.facts))

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            raise StaleIncarnation(
                f"incarnation {incarnation:#018x} is not this drafter's, {self.incarnation:#018x}: it has restarted; "
                "ask Info and open the sessions again"
            )

    def _refuse(self, session: SessionId, error: PilotfishError, reply: Reply) -> None:
        self.drop(error.reason)
        state = self._sessions.get(session)
        reply(refuse(error, session, self.incarnation, None if state is None else state.position))

    def _end(self, session: SessionId) -> None:
        seat = self._leave_seat(session)
        if seat is not None:
            seat.desk.runner.close(session)

    def _leave_seat(self, session: SessionId) -> _Seat | None:
        """Forget a session; its speculator is not told."""
        if self._sessions.close(session) is None:
            return None
        self.telemetry.set(Metric.SESSIONS, len(self._sessions))
        seat = self._seats.pop(session)
        self._give_up(seat)
        return seat

    def _give_up(self, seat: _Seat) -> bool:
        """Wait no more for the draft that is due; whether there was one."""
        due, seat.due = seat.due, None
        if due is None:
            return False
        due.span.set({Attribute.DRAFTED: due.num_drafted, Attribute.DROPPED: "given_up"})
        due.span.end()
        return True

    # -- what speculators bring about --------------------------------------------------------------------------------

    def drawn(self, drawn: Sequence[Drawn]) -> None:
        """Send the parts of drafts that are still due."""
        for request, part, num_drawn in drawn:
            seat = self._seats.get(request.session)
            if seat is None or seat.due is None or seat.due.request is not request:
                self.drop("late_part")
                continue
            due = seat.due
            due.path += part.draft.tokens
            if num_drawn:
                due.num_drafted += num_drawn
                self.telemetry.add(Metric.DRAFTED_TOKENS, num_drawn, seat.session.speculator)
                due.last = Arrival(due.num_drafted, part.draft_us)
                due.first = due.first or due.last
            if part.is_complete:
                self._complete(seat, due, part)
            seat.reply(part)

    def _complete(self, seat: _Seat, due: _Due, part: DraftPart) -> None:
        seat.due = None
        self._measure(seat, due)
        end = "" if part.end is None else part.end.value
        self.telemetry.observe(Metric.DRAFT_SECONDS, part.draft_us / 1e6)
        self.telemetry.add(Metric.DRAFT_ENDS, 1, end)
        due.span.set({Attribute.DRAFTED: due.num_drafted, Attribute.DRAFT_END: end})
        due.span.end()

    def _measure(self, seat: _Seat, due: _Due) -> None:
        """Learn from a draft that is over how long nodes take."""
        if due.first is not None and due.last is not None:
            seat.desk.times.add(due.first, due.last)

    def failed(self, sessions: Sequence[SessionId], error: Exception) -> None:
        """Refuse the requests of a step that failed; the sessions go on."""
        for session in sessions:
            seat = self._seats.get(session)
            if seat is not None and self._give_up(seat):
                self._refuse(session, PilotfishError(f"{seat.session.speculator} failed: {error}"), seat.reply)

    def lost(self, session: SessionId, error: Exception) -> None:
        """Refuse a session that its speculator has failed."""
        seat = self._leave_seat(session)
        if seat is not None:
            message = f"{seat.session.speculator} failed: {error}; open the session again, or use another drafter"
            self._refuse(session, PilotfishError(message), seat.reply)


def stop_rule(request: DraftRequest, facts: Facts) -> StopRule:
    """What ends a draft: whichever of its limits is met first."""
    rules: list[StopRule] = [Gamma(request.gamma), Deadline(request.deadline_us)]
    if request.calibration is not None:
        rules.append(StepPrice(request.price + request.step_price))
    if facts.context_length is not None:
        rules.append(Context(facts.context_length))
    return FirstOf(rules)


def _to_nobody(_: FromDrafter) -> None:
    """The stream is gone."""
