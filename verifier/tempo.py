"""When a pass starts: whether waiting for drafts that are due earns more than it costs.

Waiting until a draft is there saves its session about one pass length of standing by; it costs everybody whose tokens
are ready, and those who are waited for, the time until then. So a pass is held back for a set of drafts while

    (their tokens) × (length of a pass)  >  (their tokens + ready tokens) × (time until the last of them is due).

No clock tick is needed: sessions of one round-trip time fall into step. A draft that is past its time is waited for by
nobody. A prompt counts as one token, and waits for a part of a pass at the most: without, each that comes would start a
pass of its own, in which all the others stand by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

PROMPT_WAITS: Final = 0.25  # of a pass, at the most


@dataclass(frozen=True, slots=True)
class Due:
    """A draft on its way."""

    expected_s: float  # when it should be there, slack for jitter included
    tokens: float  # E: what its verdict is expected to commit
    num_positions: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What a pass could take now."""

    tokens: float  # expected to be committed by it
    num_positions: int


def wait_until(now_s: float, ready: Ready, due: Iterable[Due], pass_s: float) -> float | None:
    """When to look again; None: start the pass now.

    Args:
        now_s: the clock that `expected_s` is on.
        ready: what is there; no positions at all waits for whatever comes first.
        due: drafts on their way.
        pass_s: length of the pass that would start.
    """
    coming = sorted((draft for draft in due if draft.expected_s > now_s), key=attrgetter("expected_s"))
    if not ready.num_positions:
        return coming[0].expected_s if coming else None
    gained, until = 0.0, None
    for draft in coming:
        if draft.expected_s - now_s >= pass_s:
            break
        gained += draft.tokens
        if gained * pass_s > (gained + ready.tokens) * (draft.expected_s - now_s):
            until = draft.expected_s
    return until
