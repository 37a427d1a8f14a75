"""The verifier's side of one request: verifiers come and go, the request goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordinator.admission import Admitted
from coordinator.peers import Inbox, code_name
from coordinator.record import Record
from coordinator.roster import Roster
from coordinator.sessions import Committed, Tempo, VerifierSession
from pilotfish.errors import Unavailable, restore
from pilotfish.messages import Refusal, TraceContext

_MAX_REOPENINGS: Final = 5  # of a session without a verdict in between
_REOPENED: Final = frozenset({"position", "prefix", "unknown_session", "incarnation", "malformed"})  # reasons
_ELSEWHERE: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})  # another verifier may take what this one refuses


class Verifying:
    """Keeps a session at a verifier; where it is lost it is opened again, here or elsewhere, with what is committed."""

    def __init__(
        self,
        admitted: Admitted,
        committed: Committed,
        roster: Roster,
        tempo: Tempo,
        failover_s: float,
        record: Record,
        inbox: Inbox,
    ) -> None:
        """Have no session yet.

        Args:
            failover_s: how long the request waits for a verifier.
        """
        self._admitted = admitted
        self._committed = committed
        self._roster = roster
        self._tempo = tempo
        self._failover_s = failover_s
        self._record = record
        self._inbox = inbox
        self._session: VerifierSession | None = None
        self._num_reopenings = 0

    @property
    def session(self) -> VerifierSession:
        assert self._session is not None, "chosen before the first round"
        return self._session

    def is_of(self, session: bytes) -> bool:
        """Whether the session is the one at the verifier."""
        return self._session is not None and self._session.id == session

    async def choose(self, avoid: tuple[str, ...] = ()) -> None:
        """Have a session that is not opened yet, at a verifier that is up.

        Raises:
            Unavailable: none was in time.
        """
        peer = await self._roster.wait_for_verifier(self._failover_s, avoid)
        self._session = VerifierSession(peer, self._committed, self._tempo)
        self._record.opened("verifier", self._session.id)

    def open(self, gamma: int, patience_us: int) -> None:
        """Open the session, where it is not open.

        Args:
            gamma: tokens of the draft that is on its way; 0: none is.
            patience_us: how long it is held for that.
        """
        if not self.session.is_open:
            self._open(gamma + 1 + self._tempo.grant, patience_us)

    def open_for_one(self) -> None:
        """Open the session for the first token alone, which its prompt's own pass commits."""
        self._open(1, 0)

    def _open(self, grant: int, patience_us: int) -> None:
        template = replace(self._admitted.opening, first_token_us=self._first_token_us)
        self.session.open(self._inbox, template, grant, patience_us, self._record.context)

    @property
    def _first_token_us(self) -> int | None:
        """How long the client still wants to wait; None too where another coordinator gave it its first token."""
        left_s = None if self._committed.num_output else self._record.first_token_left_s
        return None if left_s is None else round(1e6 * left_s)

    def heard(self) -> None:
        """A verdict came: the session lives."""
        self._num_reopenings = 0

    async def reopen(self, cause: str, avoid: tuple[str, ...] = ()) -> None:
        """Open the session again, with what the client has; it sees no gap and no repeat.

        Raises:
            Unavailable: no verifier was in time, or sessions were lost too often.
        """
        self._record.drop(cause)
        self._record.fail_over("verifier")
        self._num_reopenings += 1
        old = self.session
        old.close()
        if self._num_reopenings > _MAX_REOPENINGS:
            raise Unavailable(
                f"the session was opened {_MAX_REOPENINGS} times and lost each time, last at {old.peer.address} "
                f"({cause}); see that verifier's log",
                retry_after_s=5.0,
            )
        await self.choose(avoid)
        self.open(0, 0)

    async def recover(self, refusal: Refusal) -> None:
        """Open the session again after a refusal for which that helps.

        Raises:
            PilotfishError: nothing would.
        """
        peer = self.session.peer
        if refusal.reason in _REOPENED:
            peer.doubt(refusal.incarnation)
            await self.reopen(refusal.reason)
        elif code_name(refusal.code) in _ELSEWHERE and self._roster.choose_verifier((peer.address,)) is not peer:
            await self.reopen(refusal.reason, avoid=(peer.address,))
        else:
            raise restore(code_name(refusal.code), f"verifier {peer.address}: {refusal.message}", reason=refusal.reason)

    def close(self, trace: TraceContext | None = None) -> None:
        """End the session, where it is open; see `VerifierSession.close`."""
        if self._session is not None and self._session.is_open:
            self._session.close(trace)
