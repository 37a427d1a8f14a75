"""Who holds KV: sessions are seated in order of opening, and the latest gives its seat up when room is short."""

from __future__ import annotations

from collections.abc import Iterable

from pilotfish.engine.kv import KVPool, PoolFull
from verifier.sessions import Session, SessionKey


class Seats:
    """The KV of the sessions.

    A session is seated with room for all its committed tokens, so that two long prompts cannot each hold half of the
    pool. Who came first keeps its seat: when it needs a page that is not there, the latest comer is preempted; its
    tokens stay and are computed again later. Nobody overtakes those who wait, so the first of them always gets on.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.num_preempted = 0

    def holds(self, session: Session) -> bool:
        return session.key in self.pool

    def num_computed(self, session: Session) -> int:
        """Tokens in KV: how far computing has come in chasing what is committed."""
        return self.pool.length(session.key)

    def num_found(self, session: Session) -> int:
        """Tokens that a session without a seat would find in the prefix cache."""
        return self.pool.lookup(session.tokens, session.opened.tenant)

    def take(self, session: Session) -> bool:
        """Give a session a seat if there is room for it now."""
        self.pool.open(session.key, session.tokens, session.opened.tenant)
        try:
            self.pool.reserve(session.key, len(session.tokens))
        except PoolFull:
            self.pool.release(session.key)
            return False
        return True

    def reserve(self, session: Session, num_tokens: int, others: Iterable[Session]) -> bool:
        """Make room for `num_tokens`, at the cost of later comers if need be; False: there is none in this pass."""
        while session.key in self.pool:
            try:
                self.pool.reserve(session.key, num_tokens)
            except PoolFull:
                later = [other for other in others if other.ordinal > session.ordinal and self.holds(other)]
                if not later:
                    return False
                self.release(max(later, key=lambda other: other.ordinal).key)
                self.num_preempted += 1
            else:
                return True
        return False

    def room(self, session: Session) -> int:
        """Tokens it may have without anybody being preempted."""
        return self.pool.capacity(session.key) + self.pool.num_available_pages * self.pool.page_size

    def release(self, key: SessionKey) -> None:
        """Take a session's KV away; nothing where it has none."""
        if key in self.pool:
            self.pool.release(key)
