"""A smaller causal language model drafts, token by token, for many sessions in one step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from drafter.speculators import Ask, Facts, Speculator
from drafter.speculators.model_draw import Drawer
from pilotfish.draft import Draft
from pilotfish.engine.batch import Item, pack
from pilotfish.engine.kv import KVPool, PoolFull
from pilotfish.messages import Open, SessionId

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from drafter.settings import DrafterSettings
    from pilotfish.engine.backend import Backend

logger = logging.getLogger(__name__)

READ_AHEAD = 16  # tokens; fewer are read in the step that needs them, which they hardly lengthen


@dataclass(slots=True)
class _Text:
    """One session's text, and which part of it is in KV.

        tokens     [0, num_committed)
        tail       [num_committed, num_committed + len(tail))    drafted, in KV; only if all tokens are too
        KV         [0, length in the pool)

    What was drafted and then committed need not be read again: `observe` moves it from tail to tokens.
    """

    start: Open
    tokens: list[int]
    tail: list[int] = field(default_factory=list)


class _Row(NamedTuple):
    """What one ask brings to a step."""

    ask: Ask
    pending: list[int]  # to be read
    num_context: int
    is_last: bool  # whether its nodes can be drawn after this step: nothing more is to be read


class ModelSpeculator(Speculator):
    """Any causal language model with the target's vocabulary.

    Sessions join and leave between steps. KV is a cache of what was read: a session that did not fit, or whose pages
    another needed, is read again.
    """

    is_repeatable: ClassVar[bool] = True

    def __init__(
        self,
        backend: Backend,
        facts: Facts,
        *,
        num_kv_pages: int = 1024,
        page_size: int = 16,
        num_ids: int = 64,
        num_bits: int = 8,
        chunk_tokens: int = 256,
    ) -> None:
        """Take over a backend whose KV is not allocated yet.

        Args:
            backend: the model.
            facts: of the model; its context must fit into the pool.
            num_kv_pages: in the pool.
            page_size: tokens in a page.
            num_ids: most ids in a q.
            num_bits: of a weight in a q.
            chunk_tokens: most tokens read in a step, over all sessions.
        """
        self._backend = backend
        self._facts = facts
        self._pool = KVPool(num_kv_pages, page_size)
        backend.allocate(num_kv_pages, page_size)
        self._drawer = Drawer(facts.vocabulary_size, num_ids, num_bits)
        self._chunk_tokens = chunk_tokens
        self._texts: dict[SessionId, _Text] = {}  # the one used last comes last

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        from drafter.speculators.model_load import load

        backend, facts, num_kv_pages = load(settings)
        return cls(
            backend,
            facts,
            num_kv_pages=num_kv_pages,
            page_size=settings.page_size,
            num_ids=settings.num_ids,
            num_bits=settings.num_bits,
            chunk_tokens=settings.chunk_tokens,
        )

    @property
    def facts(self) -> Facts:
        return self._facts

    def open(self, start: Open) -> None:
        self._texts[start.session] = _Text(start, list(start.tokens))
        self._pool.open(start.session, start.tokens, salt=start.tenant)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        text = self._texts[session]
        num_committed, num_read = len(text.tokens), self._pool.length(session)
        text.tokens += tokens
        if num_read > num_committed:
            num_held = _num_common(text.tail, tokens)
            text.tail = text.tail[num_held:] if num_held == len(tokens) else []
            self._truncate(session, min(num_read, num_committed + num_held + len(text.tail)))

    def close(self, session: SessionId) -> None:
        del self._texts[session]
        self._pool.release(session)

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        rows = self._plan(asks)
        logits = self._forward(rows)
        drawn = [row.ask for row in rows if row.is_last]
        starts = [self._texts[ask.session].start for ask in drawn]
        nodes = dict(zip((ask.session for ask in drawn), self._drawer.draw(logits, drawn, starts), strict=True))
        return [nodes.get(ask.session) for ask in asks]

    def read_ahead(self) -> bool:
        """Read part of the text of sessions that are far behind, as all are when they open."""
        rows: list[_Row] = []
        room = self._chunk_tokens
        for session, text in self._texts.items():
            num_read = self._pool.length(session)
            num_tokens = min(self._num_unread(text, num_read), room)
            if num_tokens and self._has_room(session, num_read + num_tokens):
                pending = text.tokens[num_read : num_read + num_tokens]
                rows.append(_Row(Ask(session, len(text.tokens), Draft.EMPTY, 1), pending, num_read, is_last=False))
                room -= num_tokens
        if rows:
            self._forward(rows)
        return bool(rows)

    def _num_unread(self, text: _Text, num_read: int) -> int:
        """Tokens worth reading ahead; the last one is read when its logits are wanted."""
        num_unread = len(text.tokens) - 1 - num_read
        is_beyond = self._facts.context_length is not None and len(text.tokens) > self._facts.context_length
        return num_unread if num_unread >= READ_AHEAD and not is_beyond else 0

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self._pool.check()
        assert set(self._texts) == {session for session in self._texts if session in self._pool}
        assert len(self._pool) == len(self._texts)
        for session, text in self._texts.items():
            num_read = self._pool.length(session)
            assert num_read <= len(text.tokens) + len(text.tail)
            assert not text.tail or num_read == len(text.tokens) + len(text.tail)

    # -- a step ------------------------------------------------------------------------------------------------------

    def _plan(self, asks: Sequence[Ask]) -> list[_Row]:
        """What each ask has to read, as far as pages and the step's length allow; the first ask always gets its part.

        An ask that gets nothing waits for the next step.
        """
        rows: list[_Row] = []
        room = self._chunk_tokens
        for i, ask in enumerate(asks):
            text = self._texts[ask.session]
            self._texts[ask.session] = self._texts.pop(ask.session)
            path, num_wanted = ask.draft.tokens, len(text.tokens) + len(ask.draft)
            num_read = self._roll_back(text, ask)
            num_rows = min(num_wanted - num_read, max(1, room))
            pending = [*text.tokens[num_read : num_read + num_rows], *path[max(0, num_read - len(text.tokens)) :]]
            del pending[num_rows:]
            if self._reserve(ask.session, num_read + num_rows, kept={other.session for other in asks[:i]}):
                rows.append(_Row(ask, pending, num_read, is_last=num_read + num_rows == num_wanted))
                room -= num_rows
        return rows

    def _forward(self, rows: Sequence[_Row]) -> Tensor:
        """Read the rows' pending tokens; the logits of those that are the last of theirs, [R, V]."""
        items = [
            Item(
                row.pending,
                row.num_context,
                self._pool.pages(row.ask.session),
                num_logits=int(row.is_last),
                num_prompt=len(self._texts[row.ask.session].start.prompt),
            )
            for row in rows
        ]
        logits = self._backend.forward(pack(items, self._pool.page_size))
        for row in rows:
            num_read = row.num_context + len(row.pending)
            self._pool.advance(row.ask.session, num_read)
            text = self._texts[row.ask.session]
            text.tail = list(row.ask.draft.tokens[: max(0, num_read - len(text.tokens))])
        return logits

    # -- KV ----------------------------------------------------------------------------------------------------------

    def _roll_back(self, text: _Text, ask: Ask) -> int:
        """Make what is in KV the beginning of what the ask builds on, one token short of it at least."""
        num_committed, num_read = len(text.tokens), self._pool.length(ask.session)
        path = ask.draft.tokens
        num_held = num_committed + _num_common(text.tail, path) if text.tail else num_read
        return self._truncate(ask.session, min(num_read, num_held, num_committed + len(path) - 1))

    def _truncate(self, session: SessionId, length: int) -> int:
        text = self._texts[session]
        if length < self._pool.length(session):
            length = self._pool.truncate(session, length)
        text.tail = text.tail[: max(0, length - len(text.tokens))]
        return length

    def _has_room(self, session: SessionId, length: int) -> bool:
        try:
            self._pool.reserve(session, length)
        except PoolFull:
            return False
        return True

    def _reserve(self, session: SessionId, length: int, kept: Iterable[SessionId]) -> bool:
        """Make room for a session, taking pages from the sessions used longest ago but not from `kept`."""
        spared = {session, *kept}
        for other in list(self._texts):
            if self._has_room(session, length):
                return True
            if other not in spared:
                self._truncate(other, 0)
        return self._has_room(session, length)


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts have in common from their beginning."""
    count = 0
    for ours, theirs in zip(left, right, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
