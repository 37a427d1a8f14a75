"""Which sessions are taken: everything that can be said of one before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.errors import (
    InvalidArgument,
    Overloaded,
    PilotfishError,
    PoolFull,
    PromptTooLong,
    StaleIncarnation,
    Unavailable,
    VocabularyMismatch,
)
from pilotfish.messages import Open


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the verifier has, for all sessions and for one."""

    incarnation: int
    vocabulary_hash: str
    vocabulary_size: int  # ids that have a string
    context_length: int
    page_size: int
    num_pages: int
    max_sessions: int
    max_waiting: int  # sessions that wait for KV
    max_lease_s: float
    retry_after_s: float = 1.0

    def limit(self, opened: Open) -> int:
        """Most tokens the session will have, prompt included."""
        return min(self.context_length, len(opened.prompt) + opened.max_tokens)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What is taken of it now."""

    num_sessions: int
    num_waiting: int
    is_draining: bool


def objection(opened: Open, capacity: Capacity, occupancy: Occupancy) -> PilotfishError | None:
    """Why a session is not taken; None: it is."""
    if opened.incarnation != capacity.incarnation:
        return stale(opened.incarnation, capacity.incarnation)
    if occupancy.is_draining:
        return Unavailable("this verifier is shutting down: open the session at another")
    return _mismatch(opened, capacity) or _oversize(opened, capacity) or _overload(capacity, occupancy)


def stale(incarnation: int, ours: int) -> StaleIncarnation:
    """The error of an item that means an earlier life of this verifier."""
    return StaleIncarnation(f"incarnation {incarnation:#x} is not this verifier's {ours:#x}: ask Info, then reopen")


def _mismatch(opened: Open, capacity: Capacity) -> PilotfishError | None:
    if opened.vocabulary_hash != capacity.vocabulary_hash:
        return VocabularyMismatch(
            f"vocabulary {opened.vocabulary_hash!r} is not the target's {capacity.vocabulary_hash!r}: the token "
            "strings differ; pair peers of one tokenizer",
            field="vocabulary_hash",
        )
    largest = max(*opened.tokens, *opened.end_ids, 0)
    if largest >= capacity.vocabulary_size:
        return InvalidArgument.of("prompt", largest, f"the target's ids are below {capacity.vocabulary_size}")
    return None


def _oversize(opened: Open, capacity: Capacity) -> PilotfishError | None:
    num_tokens, limit = len(opened.tokens), capacity.limit(opened)
    if num_tokens >= capacity.context_length:
        remedy = f"the target's context is {capacity.context_length} tokens, one of which must be left; shorten it"
        return PromptTooLong.of("num_prompt_tokens", num_tokens, remedy)
    num_pages = -(-limit // capacity.page_size)
    if num_pages > capacity.num_pages:
        return PoolFull(
            f"{limit} tokens (prompt and max_tokens, at most the context) need {num_pages} KV pages of "
            f"{capacity.page_size}, there are {capacity.num_pages} in all: ask for fewer, or give the verifier more KV"
        )
    return None


def _overload(capacity: Capacity, occupancy: Occupancy) -> PilotfishError | None:
    if occupancy.num_sessions >= capacity.max_sessions:
        what = f"{occupancy.num_sessions} sessions are open, the most this verifier takes"
    elif occupancy.num_waiting >= capacity.max_waiting:
        what = f"{occupancy.num_waiting} sessions wait for KV, the most this verifier lets wait"
    else:
        return None
    after_s = capacity.retry_after_s
    return Overloaded(f"{what}: try again in {after_s:g} s, or elsewhere", retry_after_s=after_s)
