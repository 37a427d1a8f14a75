"""When a pass starts: whether waiting for drafts that are due earns more than it costs.

Drafts that are not waited for come while the pass of the others runs: then they stand by until the next that both
share, or the two have passes in turn. With T the cost curve, r and R the tokens and positions that are ready, d and D
those of a set of drafts, and w the time until the last of them is due, a pass is held back for the set where waiting
costs less than either:

    (r + d)·w  <  d·T(R)                   what the set loses by standing by
    w  <  T(R) + T(D) - T(R + D)           what everybody loses by passes in turn

Where T rises with every position there is nothing to be shared, and nobody waits. What a session's context adds to a
pass is not shared either: T is that of the sessions which ride in it, and not of all.

No clock tick is needed: sessions of one round-trip time fall into step. A draft that is past its time is waited for by
nobody. A prompt counts as one token, and waits for a part of a pass at the most: without, each that comes would start a
pass of its own, in which all the others stand by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from verifier.plan import Array

PassLength: TypeAlias = Callable[[Array, Array], Array]  # positions and sessions of a pass -> seconds, elementwise

PROMPT_WAITS: Final = 0.25  # of a pass, at the most


@dataclass(frozen=True, slots=True)
class Due:
    """A draft on its way."""

    expected_s: float  # when it should be there, slack for jitter included
    tokens: float  # that waiting for it brings: E, or less where its session has one anyway
    num_positions: float
    num_sessions: int = 1  # that ride for it; 0: its session rides without it too


@dataclass(frozen=True, slots=True)
class Ready:
    """What a pass could take now."""

    tokens: float  # expected to be committed by it
    num_positions: int
    num_sessions: int


def wait_until(now_s: float, ready: Ready, due: Iterable[Due], length: PassLength) -> float | None:
    """When to look again; None: start the pass now.

    Args:
        now_s: the clock that `expected_s` is on.
        ready: what is there; no positions at all waits for whatever comes first.
        due: drafts on their way.
        length: T.
    """
    coming = sorted((draft for draft in due if draft.expected_s > now_s), key=attrgetter("expected_s"))
    if not coming:
        return None
    if not ready.num_positions:
        return coming[0].expected_s
    waits_s = np.array([draft.expected_s for draft in coming]) - now_s
    tokens = np.cumsum([draft.tokens for draft in coming])
    of_due = np.cumsum([(draft.num_positions, float(draft.num_sessions)) for draft in coming], axis=0).T
    of_ready = np.array([[float(ready.num_positions)], [float(ready.num_sessions)]])
    now = length(*of_ready)
    later, together = length(*of_due), length(*(of_ready + of_due))
    pays = ((ready.tokens + tokens) * waits_s < tokens * now) & (waits_s < now + later - together)
    return None if not pays.any() else coming[int(np.flatnonzero(pays)[-1])].expected_s
