"""When a pass starts, and what it carries. Pure functions over a snapshot of the sessions.

A session's rows in a pass are its committed tokens that are not in KV yet, followed by its draft: *computed tokens
chase total tokens*. There is no prefill phase and no decoding phase; a long prompt merely takes several passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from verifier.plan import Array
from verifier.sessions import SessionKey
from verifier.tempo import PROMPT_WAITS, Due, PassLength, Ready, wait_until


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one session would bring to a pass that began now."""

    key: SessionKey
    num_pending: int  # committed tokens not in KV; at least 1
    num_nodes: int  # of the draft that counts now
    may_commit: bool  # with that draft, or by its grant; else only its pending tokens but the last are computed
    is_free: bool  # it commits by its grant: it needs no item and waits for none
    last_pass: int  # number of the pass that served it last
    due_at_s: float = inf  # when its next draft is expected, though it runs free meanwhile; inf: none is
    due_in_s: float = 0.0  # how long after its verdict that is
    due_within_s: float = 0.0  # how much later or earlier it usually is
    tokens_per_draft: float = 1.0  # what it commits with a draft, as lately
    nodes_per_draft: float = 1.0  # likewise its nodes
    offered: float = 1.0  # how often one came lately
    may_put_off: bool = False  # it may go without that draft, by its grant; the tail counts later
    last_draft_pass: int = 0  # number of the pass that carried its last draft
    first_by_s: float = inf  # when its prompt is to be read; inf: whenever there is room

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
    is_put_off: bool = False  # its draft does not ride: it commits by its grant


def plan(candidates: Sequence[Candidate], limits: PassLimits, max_drafts: int | None = None) -> list[Share]:
    """Which sessions ride, and with how many rows.

    Those that commit with one pending token come first, who waited longest first; what is left goes to prompts, in
    chunks, the earliest deadline first and among equals likewise. A draft rides whole or not at all: trimming it would
    be a choice about its tokens.

    Args:
        candidates: in order of opening, which decides between equals.
        max_drafts: that the pass should carry; drafts beyond are put off, where they may be. None: all ride.
    """
    put_off = set() if max_drafts is None else _put_off(candidates, max_drafts)
    if not put_off:
        return _shares(candidates, limits)
    plain = [replace(each, num_nodes=0) if each.key in put_off else each for each in candidates]
    return [share._replace(is_put_off=share.key in put_off) for share in _shares(plain, limits)]


def _put_off(candidates: Sequence[Candidate], max_drafts: int) -> set[SessionKey]:
    """Whose drafts do not ride; who waited longest for a pass with its draft rides first.

    Where a session may not be put off its draft rides and uses up the number like any other: it would stand by
    meanwhile, or its draft was drawn by chance. For such a draft the choice would have to be independent of its
    tokens; for the others any choice is exact (docs/law.md, "the trap"). This one sees counts and times all the same:
    how many sessions bring nodes, whether they may be put off, and the pass that carried their last draft.
    """
    drafts = [candidate for candidate in candidates if candidate.num_nodes]
    yielding = [candidate for candidate in drafts if candidate.may_put_off]
    yielding.sort(key=lambda each: (each.num_backlog > 0, each.last_draft_pass))
    room = max(0, max_drafts - (len(drafts) - len(yielding)))
    return {candidate.key for candidate in yielding[room:]}


def _shares(candidates: Sequence[Candidate], limits: PassLimits) -> list[Share]:
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
    for candidate in sorted(in_turn, key=lambda each: each.first_by_s):
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
    length: PassLength | None = None  # None: every pass is as long as the last

    def length_s(self, positions: Array, sessions: Array) -> Array:
        """T: how long a pass over so many positions of so many sessions takes."""
        return np.full_like(positions, self.pass_s) if self.length is None else self.length(positions, sessions)


class StartRule(Protocol):
    """Decides when the next pass starts."""

    def start_at(self, moment: Moment) -> float:
        """The time; not after `moment.now_s`: at once; inf: not before something changes."""


@dataclass(frozen=True, slots=True)
class StartByWorth:
    """Everything that is ready, held back for drafts that are due while that earns more than it costs.

    `verifier.tempo` says when it does. A session that is alone never waits, since nothing else is due then; nobody
    waits longer than `max_wait_s`; and a prompt only for drafts that are near, and not past the time when it is to be
    read: a pass that it started alone would have all the others stand by.
    """

    max_wait_s: float
    lateness: float = 0.04  # of the time since its verdict: so much later than usual a draft is still waited for
    lateness_s: float = 0.0005  # and so much in any case
    deviations: float = 2.0  # and so many times what it usually differs by

    def start_at(self, moment: Moment) -> float:
        ready = [candidate for candidate in moment.candidates if candidate.has_work]
        if not ready:
            return inf
        prompts = [candidate for candidate in ready if candidate.num_backlog]
        last_s = self._last_s(moment, prompts)
        if moment.now_s >= last_s:
            return moment.now_s
        tokens = sum(1.0 if candidate.is_free else candidate.tokens_per_draft for candidate in ready)
        positions = sum(candidate.num_pending + candidate.num_nodes for candidate in ready)
        due = self._due(moment, last_s, has_prompts=bool(prompts))
        until_s = wait_until(moment.now_s, Ready(tokens, positions, len(ready)), due, moment.length_s)
        return moment.now_s if until_s is None else until_s

    def _last_s(self, moment: Moment, prompts: Sequence[Candidate]) -> float:
        """When it starts at the latest."""
        if not prompts:
            return moment.ready_since_s + self.max_wait_s
        wait_s = min(self.max_wait_s, PROMPT_WAITS * moment.pass_s)
        return min(moment.ready_since_s + wait_s, *(prompt.first_by_s - moment.pass_s for prompt in prompts))

    def _due(self, moment: Moment, last_s: float, *, has_prompts: bool) -> list[Due]:
        """Drafts that can be waited for at all; a session that is alone waits for none, a prompt not for free ones."""
        if len(moment.candidates) == 1:
            return []
        waiting = (each for each in moment.candidates if not (each.may_commit and has_prompts))
        expected = ((each, each.due_at_s + self._lateness_s(each)) for each in waiting)
        return [_due(candidate, at_s) for candidate, at_s in expected if at_s <= last_s]

    def _lateness_s(self, candidate: Candidate) -> float:
        """How much later than expected its draft is still waited for."""
        return self.lateness_s + self.lateness * candidate.due_in_s + self.deviations * candidate.due_within_s


def _due(candidate: Candidate, expected_s: float) -> Due:
    """What waiting for its draft brings. A session that is held would stand by without it.

    One that runs free would not: it has a token, and the draft's tail in the next pass. What it loses is the draft that
    it could have had there by then, as often as there is one.
    """
    num_more = candidate.offered * (candidate.tokens_per_draft - 1.0)
    num_nodes = candidate.offered * candidate.nodes_per_draft
    if candidate.may_commit:
        return Due(expected_s, candidate.offered * num_more, num_nodes, num_sessions=0)
    return Due(expected_s, 1.0 + num_more, 1.0 + num_nodes)
