"""The sessions of a drafter: what is committed, whether an item fits, and when a lease is over. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotfish import prefix
from pilotfish.errors import Overloaded, PrefixMismatch, StalePosition, UnknownSession
from pilotfish.messages import DraftRequest, Open, SessionId


@dataclass(slots=True)
class Session:
    """One sequence, as the coordinator told it: committed tokens only."""

    id: SessionId
    speculator: str
    lease_s: float
    expires_s: float  # on the monotonic clock
    tokens: list[int]
    prefix_hash: int = field(init=False)

    def __post_init__(self) -> None:
        self.prefix_hash = prefix.extend(prefix.EMPTY, self.tokens)

    @property
    def position(self) -> int:
        return len(self.tokens)

    def advance(self, request: DraftRequest) -> tuple[int, ...]:
        """Take what a request says was committed; the tokens that are new.

        Raises:
            StalePosition: the request lies behind what is known, or leaves a gap.
            PrefixMismatch: its tokens are others than those known. Nothing has changed in either case.
        """
        start = request.position - len(request.tokens)
        if request.position < self.position:
            raise self._wrong_position(f"position {request.position} is behind")
        if start > self.position:
            raise self._wrong_position(f"tokens from {start} on leave a gap")
        num_known = self.position - start
        if request.tokens[:num_known] != tuple(self.tokens[start:]):
            raise self._wrong_prefix(f"the tokens from {start} to {self.position} are not those known")
        new = request.tokens[num_known:]
        prefix_hash = prefix.extend(self.prefix_hash, new)
        if prefix_hash != request.prefix_hash:
            raise self._wrong_prefix(f"the hash up to {request.position} is not {request.prefix_hash:#018x}")
        self.tokens += new
        self.prefix_hash = prefix_hash
        return new

    def _wrong_position(self, what: str) -> StalePosition:
        message = f"{what}; the session is at {self.position}: send the committed tokens from there"
        return StalePosition(message, position=self.position)

    def _wrong_prefix(self, what: str) -> PrefixMismatch:
        return PrefixMismatch(f"{what}; open the session again with the right tokens", position=self.position)


class Sessions:
    """The open sessions by id. A lease is renewed by every item of its session."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[SessionId, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionId]:
        return iter(list(self._sessions))

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def open(self, start: Open, speculator: str, now_s: float) -> Session:
        """Start a session anew; one that is open under the id must have been closed.

        Raises:
            Overloaded: there are too many.
        """
        assert start.session not in self._sessions
        if len(self._sessions) >= self._max_sessions:
            raise Overloaded(
                f"{len(self._sessions)} sessions are open, the most this drafter takes (max_sessions); use another",
                retry_after_s=1.0,
            )
        session = Session(start.session, speculator, start.lease_s, now_s + start.lease_s, list(start.tokens))
        self._sessions[start.session] = session
        return session

    def find(self, session: SessionId, now_s: float) -> Session:
        """The session an item is for; renews its lease.

        Raises:
            UnknownSession: there is none.
        """
        found = self._sessions.get(session)
        if found is None:
            raise UnknownSession(
                f"no session {session.hex()}: never opened, closed, or its lease is over; open it again"
            )
        found.expires_s = now_s + found.lease_s
        return found

    def close(self, session: SessionId) -> Session | None:
        """End a session; None where it was not open."""
        return self._sessions.pop(session, None)

    def expired(self, now_s: float) -> list[SessionId]:
        """Sessions nobody has spoken of for as long as their lease."""
        return [session for session, state in self._sessions.items() if state.expires_s <= now_s]
