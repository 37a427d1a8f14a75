"""When a pass starts, and what it carries. Pure functions over a snapshot of the sessions.

A session's rows in a pass are its committed tokens that are not in KV yet, followed by its draft: *computed tokens
chase total tokens*. There is no prefill phase and no decoding phase; a long prompt merely takes several passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from verifier.sessions import SessionKey


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one session would bring to a pass that began now."""

    key: SessionKey
    num_pending: int  # committed tokens not in KV; at least 1
    num_nodes: int  # of the draft that counts now
    may_commit: bool  # with that draft, or by its grant; else only its pending tokens but the last are computed
    is_free: bool  # it commits by its grant: it needs no item and waits for none
    last_pass: int  # number of the pass that served it last
    due_at_s: float = inf  # when the item it waits for is expected; inf: none is

    @property
    def num_backlog(self) -> int:
        """Pending tokens whose logits nobody needs."""
        return self.num_pending - 1

    @property
    def has_work(self) -> bool:
        return self.may_commit or self.num_backlog > 0


@dataclass(frozen=True, slots=True)
class PassLimits:
    """How much a pass may carry."""

    max_positions: int
    prefill_positions: int  # of them for prompts: what bounds the time others wait for a token


class Share(NamedTuple):
    """One session's part of a pass."""

    key: SessionKey
    num_pending: int  # how many of its pending tokens
    has_logits: bool  # the last of them and the draft's nodes want logits: it commits


def plan(candidates: Sequence[Candidate], limits: PassLimits) -> list[Share]:
    """Which sessions ride, and with how many rows.

    Those that commit with one pending token come first, who waited longest first; what is left goes to prompts, in
    chunks, in the same order. A draft rides whole or not at all: trimming it would be a choice about its tokens.

    Args:
        candidates: in order of opening, which decides between equals.
    """
    shares: list[Share] = []
    backlog = sum(candidate.num_backlog for candidate in candidates)
    prefill_room = min(limits.prefill_positions, limits.max_positions)
    kept = min(backlog, prefill_room, limits.max_positions // 4)  # for prompts, however many others are ready
    room = limits.max_positions - kept
    in_turn = sorted((candidate for candidate in candidates if candidate.has_work), key=lambda each: each.last_pass)
    for candidate in in_turn:
        if candidate.num_backlog == 0 and 1 + candidate.num_nodes <= room:
            shares.append(Share(candidate.key, 1, has_logits=True))
            room -= 1 + candidate.num_nodes
    room += kept
    for candidate in in_turn:
        if candidate.num_backlog == 0:
            continue
        num_rows = min(candidate.num_pending, room, prefill_room)
        is_whole = num_rows == candidate.num_pending and num_rows + candidate.num_nodes <= room
        has_logits = is_whole and candidate.may_commit
        if not has_logits:
            num_rows = min(num_rows, candidate.num_backlog)
        if num_rows <= 0:
            continue
        shares.append(Share(candidate.key, num_rows, has_logits))
        prefill_room -= num_rows
        room -= num_rows + (candidate.num_nodes if has_logits else 0)
    return shares


@dataclass(frozen=True, slots=True)
class Moment:
    """What a start rule sees."""

    now_s: float
    candidates: Sequence[Candidate]
    ready_since_s: float  # since when something could have ridden; inf: nothing can
    pass_s: float  # length of the last pass


class StartRule(Protocol):
    """Decides when the next pass starts."""

    def start_at(self, moment: Moment) -> float:
        """The time; not after `moment.now_s`: at once; inf: not before something changes."""


@dataclass(frozen=True, slots=True)
class StartWhenReady:
    """Everything that is ready, after a short bounded wait for items that are due.

    Nobody who runs free and no prompt ever waits; nor does a session that is alone, since nothing else is due then.
    """

    max_wait_s: float
    pass_share: float = 0.25  # of the last pass: longer than this is not worth waiting for a fuller one
    lateness_s: float = 0.0005  # an item later than this is not waited for

    def start_at(self, moment: Moment) -> float:
        ready = [candidate for candidate in moment.candidates if candidate.has_work]
        if not ready:
            return inf
        if any(candidate.is_free or candidate.num_backlog for candidate in ready):
            return moment.now_s
        last = moment.ready_since_s + min(self.max_wait_s, self.pass_share * moment.pass_s)
        due = [candidate.due_at_s for candidate in moment.candidates if not candidate.may_commit]
        worth = [at + self.lateness_s for at in due if moment.now_s <= at + self.lateness_s and at <= last]
        return min(last, max(worth)) if worth else moment.now_s
