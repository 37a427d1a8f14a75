from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.policy import FixedPolicy, Snapshot, TablePolicy
from coordinator.router import DrafterView, VerifierView, choose_drafter, choose_verifier
from pilotfish.gammas import GammaTable
from pilotfish.messages import DrafterLoad, Speculation, VerifierLoad

SNAPSHOT = Snapshot(
    position=10,
    num_remaining=100,
    num_draftable=100,
    max_gamma=16,
    is_drafter_up=True,
    wishes=Speculation(),
    verifier=VerifierLoad(),
    drafter=DrafterLoad(),
)


@pytest.mark.parametrize(
    ("change", "gamma", "reason"),
    [
        ({}, 4, "fixed"),
        ({"wishes": Speculation(is_off=True)}, 0, "request"),
        ({"wishes": Speculation(gamma=7)}, 7, "request"),
        ({"wishes": Speculation(gamma=0)}, 0, "request"),
        ({"wishes": Speculation(max_gamma=2)}, 2, "request"),
        ({"wishes": Speculation(max_gamma=9)}, 4, "fixed"),
        ({"is_drafter_up": False}, 0, "drafter_down"),
        ({"is_drafter_up": False, "wishes": Speculation(is_off=True)}, 0, "request"),
        ({"num_remaining": 3}, 2, "limit"),
        ({"num_remaining": 1}, 0, "limit"),
        ({"num_draftable": 3}, 3, "draft_context"),
        ({"num_draftable": -5}, 0, "draft_context"),
        ({"max_gamma": 3}, 3, "fixed"),
    ],
)
def test_fixed_policy(change: dict[str, object], gamma: int, reason: str) -> None:
    """γ is what request or settings say, as far as drafter, limit and context allow; the reason says which it was."""
    decision = FixedPolicy(4).decide(replace(SNAPSHOT, **change))  # type: ignore[arg-type]
    assert (decision.gamma, decision.reason) == (gamma, reason)


@pytest.mark.parametrize(("num_sessions", "gamma"), [(0, 8), (1, 8), (4, 4), (63, 2), (64, 0)])
def test_table_policy(num_sessions: int, gamma: int) -> None:
    """γ is the table's for as many sessions as run at the verifier; a request's own comes first."""
    policy = TablePolicy(GammaTable.parse("1:8,4:4,16:2,64:0"))
    crowd = replace(SNAPSHOT, verifier=VerifierLoad(num_sessions=num_sessions))
    assert policy.may_draft(crowd.wishes)
    assert policy.decide(crowd)[:2] == (gamma, "fixed")
    assert policy.decide(replace(crowd, wishes=Speculation(gamma=3)))[:2] == (3, "request")
    assert not policy.may_draft(Speculation(is_off=True))


def verifier(address: str, is_up: bool = True, num_sessions: int = 0, **load: Any) -> VerifierView:
    return VerifierView(address, is_up, num_sessions, VerifierLoad(**load))


def test_least_loaded_verifier() -> None:
    """Fewest waiting wins, then fewest sessions, then most free KV; one that is down never does."""
    assert choose_verifier([verifier("a", num_queued=1), verifier("b", num_sessions=9)]) == "b"
    assert choose_verifier([verifier("a", num_sessions=2), verifier("b", num_sessions=1)]) == "b"
    full = verifier("a", num_kv_pages=10, num_kv_pages_used=9)
    assert choose_verifier([full, verifier("b", num_kv_pages=10)]) == "b"
    assert choose_verifier([verifier("a", is_up=False), verifier("b", num_queued=99)]) == "b"
    assert choose_verifier([verifier("a", is_up=False)]) is None


def test_sessions_just_opened_count() -> None:
    """What a verifier says of its sessions lags behind, so those opened since are counted here."""
    views = [verifier("a", num_sessions=3), verifier("b")]
    assert choose_verifier(views) == "b"


def test_avoided_verifier() -> None:
    """One that has just failed a request gets it again only where there is no other."""
    views = [verifier("a"), verifier("b", num_queued=5)]
    assert choose_verifier(views, avoid=["a"]) == "b"
    assert choose_verifier(views[:1], avoid=["a"]) == "a"


def test_drafter_with_the_speculator() -> None:
    """A drafter is one that is up and offers what was asked for, the least loaded of them."""
    views = [
        DrafterView("a", True, 0, ("ngram",), DrafterLoad()),
        DrafterView("b", True, 2, ("model", "ngram"), DrafterLoad()),
        DrafterView("c", False, 0, ("model",), DrafterLoad()),
    ]
    assert choose_drafter(views) == "a"
    assert choose_drafter(views, "model") == "b"
    assert choose_drafter(views, "eagle") is None
