"""The drafter's side of one request: drafters come and go, the request goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from coordinator.admission import Admitted
from coordinator.estimator import Estimator, Kind, Phase
from coordinator.outlook import Meter, is_instant
from coordinator.peers import DrafterPeer, Inbox
from coordinator.record import Record
from coordinator.roster import Roster
from coordinator.sessions import ANYTHING, UNLIMITED, Committed, DrafterSession, Tempo, Worth
from pilotfish.errors import Overloaded
from pilotfish.messages import DrafterLoad, DraftPart, Refusal, Rule, SideLines, TraceContext

_FIRST_RETRY_S: Final = 0.05  # until a drafter is tried again; doubled while it does not answer
_LAST_RETRY_S: Final = 2.0
_SESSION_GOES_ON: Final = frozenset({"argument", "malformed", "internal"})  # reasons for which a draft alone is lost
_SHORT_WAY: Final = 0.25  # of a pass
_NO_LOAD: Final = DrafterLoad()


@dataclass(frozen=True, slots=True)
class Leave:
    """What the coordinator's settings let drafts do."""

    draft_ahead: bool  # lie ahead of the verdict
    early_stop: bool  # end where a node is not worth its price
    side_lines: int = 0  # so many lie ahead beside the likeliest, at the most


class Drafting:
    """Keeps a session at a drafter, as far as there is one. A drafter that fails costs drafts, never the request."""

    def __init__(
        self,
        admitted: Admitted,
        committed: Committed,
        roster: Roster,
        tempo: Tempo,
        record: Record,
        inbox: Inbox,
        estimator: Estimator,
        leave: Leave,
    ) -> None:
        self.session: DrafterSession | None = None
        self.meter: Meter | None = None  # of the session's drafts
        self._phase = Phase.ANSWER
        self._estimator = estimator
        self._admitted = admitted
        self._committed = committed
        self._roster = roster
        self._tempo = tempo
        self._record = record
        self._inbox = inbox
        self._leave = leave
        self._asked_s = 0.0
        self._goes_on = False  # what was asked for goes on with a line that has nodes already
        self._retry_at_s = 0.0
        self._retry_s = 0.0

    @property
    def address(self) -> str | None:
        return None if self.session is None else self.session.peer.address

    @property
    def load(self) -> DrafterLoad:
        return _NO_LOAD if self.session is None else self.session.peer.load

    def away_s(self, gamma: int) -> float:
        """From a verdict until a draft of γ nodes is at the verifier, as far as that is known; 0: nobody measures."""
        return 0.0 if self.meter is None else self.meter.away_s + self.load.draft_us(gamma) / 1e6

    @property
    def num_draftable(self) -> int:
        """Tokens until the drafter's context is full."""
        return UNLIMITED if self.session is None else self.session.num_draftable

    @property
    def max_nodes(self) -> int:
        """Most nodes that the drafter draws for a request."""
        return UNLIMITED if self.session is None else self.session.max_nodes

    @property
    def may_go_on(self) -> bool:
        """Whether drafts may lie ahead: by the settings, where nodes are chosen without chance or by that of `match`.

        A node is then right with the same probability whether it is checked or only guesses the bonus (docs/law.md).
        """
        is_match = self._admitted.opening.rule is Rule.MATCH
        return self._leave.draft_ahead and is_match and self.session is not None

    def is_near(self, gamma: int, pass_us: float) -> bool:
        """Whether a draft of γ nodes is looked up, and back so soon after a verdict that none need lie ahead of it."""
        return is_instant(self.load, pass_us, gamma) and 1e6 * self.away_s(gamma) < _SHORT_WAY * pass_us

    @property
    def num_side_lines(self) -> int:
        """Lines it may draw beside the likeliest: all its sessions share the time that it has for them."""
        return self._leave.side_lines // max(1, self.load.num_sessions)

    def is_of(self, session: bytes) -> bool:
        """Whether the session is the one at the drafter."""
        return self.session is not None and self.session.id == session

    def open(self) -> None:
        """Have a session that can follow: open one where there is none and it is time to try."""
        if self.session is not None and self.session.is_behind:
            self._close_session()
        now_s = asyncio.get_running_loop().time()
        if self.session is not None or now_s < self._retry_at_s:
            return
        peer = self._roster.choose_drafter(self._admitted.opening.speculator)
        if peer is None:
            self._retry_at_s = now_s + _FIRST_RETRY_S
            return
        self.session = DrafterSession(peer, self._committed, self._tempo)
        self._record.opened("drafter", self.session.id)
        try:
            self.session.open(self._inbox, self._admitted.opening, self._record.context)
        except Overloaded:
            self.lose("unread")
            return
        is_judged_by_law = self._admitted.opening.rule is not Rule.MATCH
        kind = self._kind(peer)
        common = peer.common[kind.speculator]
        estimator = self._estimator.session(kind)
        self.meter = Meter(estimator, peer.round_trip_us / 1e6, common, is_judged_by_law=is_judged_by_law)
        self.meter.enter(self._phase)

    def enter(self, phase: Phase) -> None:
        """The text goes on in this phase: its drafts are counted by themselves."""
        self._phase = phase
        if self.meter is not None:
            self.meter.enter(phase)

    def _kind(self, peer: DrafterPeer) -> Kind:
        """What drafts of this session are counted together with."""
        opening, info = self._admitted.opening, peer.info
        model = info.model if info is not None and info.model else peer.address
        speculator = opening.speculator or (info.speculators[0] if info and info.speculators else "")
        return Kind.of(model, speculator, self._admitted.request.workload, opening.sampling.temperature)

    def ask(
        self,
        number: int,
        gamma: int,
        trace: TraceContext | None,
        *,
        goes_on: bool = False,
        worth: Worth = ANYTHING,
        side_lines: SideLines | None = None,
    ) -> None:
        """Ask for nodes, as `DrafterSession.propose` has it; what confidence is worth, if it counts, is known here."""
        assert self.session is not None, "a policy drafts only where a drafter is up"
        self._asked_s, self._goes_on = asyncio.get_running_loop().time(), goes_on
        try:
            if not self._leave.early_stop:
                worth = ANYTHING
            elif self.meter is not None and (worth != ANYTHING or side_lines is not None):
                worth = worth._replace(calibration=self.meter.calibration)
            self.session.propose(number, gamma, trace, goes_on=goes_on, worth=worth, side_lines=side_lines)
        except Overloaded:  # it has not read for so long that no more can wait for it
            self.lose("unread")

    @property
    def is_answered(self) -> bool:
        """Whether nothing more is to come of what was asked for."""
        return self.session is None or self.session.due is None

    @property
    def is_silent(self) -> bool:
        """Whether a draft is due for so long that none is to be expected."""
        now_s = asyncio.get_running_loop().time()
        is_due = self.session is not None and self.session.due is not None
        return is_due and now_s - self._asked_s > self._tempo.silent_after_s

    def take(self, part: DraftPart) -> bool:
        """Whether a part is of what was asked for; counted where it is not."""
        session = self.session
        cause = session.problem(part) if session is not None and session.id == part.session else "stale"
        if session is None or cause is not None:
            self._record.drop(cause or "stale")
            return False
        if self.meter is not None:
            self.meter.received(part.draft)
        if part.is_complete and part.round == session.due:
            session.due = None
            self._retry_s = 0.0
            if self.meter is not None and not self._goes_on:
                self.meter.answered(part.first_node + len(part.draft))
        return True

    def lose(self, cause: str) -> None:
        """The session is gone; another one is opened with what is committed then."""
        self._record.drop(cause)
        self._record.fail_over("drafter")
        self._close_session()
        self._retry_at_s = asyncio.get_running_loop().time() + self._retry_s
        self._retry_s = min(2 * self._retry_s or _FIRST_RETRY_S, _LAST_RETRY_S)

    def refuse(self, refusal: Refusal) -> None:
        """Nothing comes of the draft that is due, and maybe of the session."""
        assert self.session is not None
        if refusal.reason in _SESSION_GOES_ON:
            self._record.drop(refusal.reason)
            self.session.due = None
        else:
            self.session.peer.doubt(refusal.incarnation)
            self.lose(refusal.reason)

    def close(self, trace: TraceContext | None = None) -> None:
        """End the session, if there is one; see `VerifierSession.close`."""
        if self.session is not None:
            self._close_session(trace)

    def _close_session(self, trace: TraceContext | None = None) -> None:
        session, self.session, self.meter = self.session, None, None
        if session is not None:
            session.close(trace)
