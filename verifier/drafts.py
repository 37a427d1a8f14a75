"""The draft of one round as far as it has come, and what of it still counts.

Nodes travel as they are drawn, and a session may commit tokens meanwhile. What counts in a pass is then what has come
before it began and hangs below what was committed: a matter of time alone, never of what the nodes say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pilotfish.draft import Draft
from pilotfish.messages import TraceContext, Work


class RestState(Enum):
    """What there is to expect of a draft."""

    USABLE = "usable"  # nodes that can be verified now
    COMING = "coming"  # none now, but later parts may bring some
    USED_UP = "used_up"  # everything in it has been committed already
    WRONG = "wrong"  # what was committed is not in it


class Rest(NamedTuple):
    """What of a draft is left below the committed tokens."""

    state: RestState
    draft: Draft = Draft.EMPTY
    num_reused: int = 0  # levels of it that were committed without it


@dataclass(slots=True)
class DraftInHand:
    """A round's draft, part by part."""

    round: int
    position: int  # the header's: what grant and prefix hash are counted from
    assumes: tuple[int, ...]
    draft: Draft
    is_complete: bool
    free_until: int  # from the round's verdict on
    patience_s: float  # likewise
    trace: TraceContext | None
    arrived_s: float  # when its last node came
    num_verified: int = 0  # nodes [0, num_verified) were verified when the patience ended; never again

    @staticmethod
    def begin(work: Work, now_s: float) -> DraftInHand:
        """The first part of a round, which may have no nodes yet."""
        return DraftInHand(
            round=work.round,
            position=work.position,
            assumes=work.assumes,
            draft=work.draft,
            is_complete=work.is_complete,
            free_until=work.position + work.grant,
            patience_s=work.patience_us / 1e6,
            trace=work.trace,
            arrived_s=now_s,
        )

    @property
    def base(self) -> int:
        """Position of the draft's first level."""
        return self.position + len(self.assumes)

    def add(self, work: Work, now_s: float) -> bool:
        """Take the next part; nodes that are here already are passed over.

        Returns:
            Whether it joins what is here: False where nodes in between are missing, then nothing has changed.
        """
        num_known = len(self.draft) - work.first_node
        if num_known < 0:
            return False
        part = work.draft
        if num_known < len(part):
            fresh = Draft(part.tokens[num_known:], part.parents[num_known:], part.q[num_known:])
            self.draft = self.draft.append(fresh)
            self.arrived_s = now_s
        self.is_complete = self.is_complete or work.is_complete
        self.free_until = work.position + work.grant
        self.patience_s = work.patience_us / 1e6
        return True

    def assumption_holds(self, tokens: Sequence[int]) -> bool:
        """Whether what it assumes is what was committed, as far as that goes."""
        committed = tokens[self.position : self.base]
        return tuple(committed) == self.assumes[: len(committed)]

    def rest(self, tokens: Sequence[int]) -> Rest:
        """What of it counts when `tokens` are committed (all of the session's, at least up to `base`)."""
        committed = tokens[self.base :]
        node = -1
        for token in committed:
            child = self.draft.child(node, token)
            if child is None:
                return self._without_path(node)
            node = child
        if node < self.num_verified and self.num_verified:
            return Rest(RestState.WRONG)
        found = self.draft.after(committed)
        assert found is not None
        tail, num_reused = found
        if tail.tokens:
            return Rest(RestState.USABLE, tail, num_reused)
        return Rest(RestState.USED_UP if self.is_complete else RestState.COMING, Draft.EMPTY, num_reused)

    def _without_path(self, node: int) -> Rest:
        """The rest where nothing below `node` carries the token that was committed there."""
        is_decided = self.is_complete or (self.draft.is_chain and node < len(self.draft) - 1)
        return Rest(RestState.WRONG if is_decided else RestState.COMING)


def clip(draft: Draft, num_levels: int) -> Draft:
    """The nodes of the first `num_levels` levels: near the end of the context no more can be committed."""
    depths = draft.depths
    if not depths or max(depths) < num_levels:
        return draft
    if draft.is_chain:
        return draft.truncate(num_levels)
    kept = [node for node, depth in enumerate(depths) if depth < num_levels]
    index = {node: i for i, node in enumerate(kept)} | {-1: -1}
    return Draft(
        tuple(draft.tokens[node] for node in kept),
        tuple(index[draft.parents[node]] for node in kept),
        tuple(draft.q[node] for node in kept),
    )
