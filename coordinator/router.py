"""Which verifier and which drafter a request gets: pure functions over what is known of the peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pilotfish.messages import DrafterLoad, VerifierLoad


@dataclass(frozen=True, slots=True)
class VerifierView:
    """A verifier as the router sees it."""

    address: str
    is_up: bool
    num_sessions: int  # open there, of this coordinator
    load: VerifierLoad


@dataclass(frozen=True, slots=True)
class DrafterView:
    """A drafter as the router sees it."""

    address: str
    is_up: bool  # connected, and of the served vocabulary
    num_sessions: int  # open there, of this coordinator
    speculators: tuple[str, ...]  # the default first
    load: DrafterLoad


def choose_verifier(verifiers: Sequence[VerifierView], avoid: Iterable[str] = ()) -> str | None:
    """The least loaded verifier that is up: fewest waiting, then fewest sessions, then most free KV.

    One in `avoid` (it has just failed this request) only where there is no other. None: none is up.
    """
    avoided = set(avoid)
    up = [verifier for verifier in verifiers if verifier.is_up]
    best = min(up, key=lambda verifier: (verifier.address in avoided, *_verifier_load(verifier)), default=None)
    return None if best is None else best.address


def choose_drafter(drafters: Sequence[DrafterView], speculator: str | None = None) -> str | None:
    """The least loaded drafter that is up and offers the speculator (None: its default). None: there is none."""
    fitting = [
        drafter for drafter in drafters if drafter.is_up and (speculator is None or speculator in drafter.speculators)
    ]
    best = min(fitting, key=_drafter_load, default=None)
    return None if best is None else best.address


def _verifier_load(verifier: VerifierView) -> tuple[int, int, float]:
    load = verifier.load
    num_sessions = max(load.num_sessions, verifier.num_sessions)  # what it says lags behind what was opened since
    share_used = load.num_kv_pages_used / load.num_kv_pages if load.num_kv_pages else 0.0
    return load.num_queued, num_sessions, share_used


def _drafter_load(drafter: DrafterView) -> tuple[int, int]:
    return drafter.load.num_queued, max(drafter.load.num_sessions, drafter.num_sessions)
