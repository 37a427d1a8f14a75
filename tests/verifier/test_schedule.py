"""When a pass starts and what it carries, as functions of a snapshot."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.schedule import Candidate, Moment, PassLimits, StartByWorth, plan
from verifier.sessions import SessionKey


def candidate(
    number: int,
    num_pending: int = 1,
    num_nodes: int = 0,
    *,
    may_commit: bool = True,
    is_free: bool = False,
    last_pass: int = 0,
    due_at_s: float = inf,
) -> Candidate:
    key = SessionKey("", number.to_bytes(16, "big"))
    return Candidate(key, num_pending, num_nodes, may_commit, is_free, last_pass, due_at_s)


candidates = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 64), st.booleans(), st.integers(0, 5)), max_size=30
).map(
    lambda rows: [
        candidate(i, pending, nodes if commits else 0, may_commit=commits, last_pass=last)
        for i, (pending, nodes, commits, last) in enumerate(rows)
    ]
)


@given(candidates, st.integers(88, 512), st.integers(1, 512))
def test_a_pass_keeps_its_limits_and_never_cuts_a_draft(
    some: list[Candidate], max_positions: int, prefill_positions: int
) -> None:
    """Whatever is ready: rows stay under the limits, each session rides once, with its whole draft or without."""
    by_key = {each.key: each for each in some}
    shares = plan(some, PassLimits(max_positions, prefill_positions))
    num_rows = num_prefill = 0
    for share in shares:
        each = by_key[share.key]
        assert 1 <= share.num_pending <= each.num_pending
        assert share.has_logits <= (each.may_commit and share.num_pending == each.num_pending)
        if not share.has_logits:
            assert share.num_pending <= each.num_backlog
        num_rows += share.num_pending + (each.num_nodes if share.has_logits else 0)
        num_prefill += share.num_pending if each.num_backlog else 0
    assert num_rows <= max_positions
    assert num_prefill <= prefill_positions
    assert len({share.key for share in shares}) == len(shares)
    assert bool(shares) == any(each.has_work for each in some)


def test_who_waited_longest_rides_first() -> None:
    """With room for two of three drafts the one that rode last waits."""
    some = [
        candidate(0, num_nodes=30, last_pass=7),
        candidate(1, num_nodes=30),
        candidate(2, num_nodes=30, last_pass=3),
    ]
    shares = plan(some, PassLimits(max_positions=64, prefill_positions=8))
    assert [share.key for share in shares] == [some[1].key, some[2].key]


def test_prompts_get_on_however_many_decode() -> None:
    """A prompt gets its quarter of a pass that others could fill alone."""
    some = [*(candidate(i) for i in range(200)), candidate(999, num_pending=500)]
    shares = plan(some, PassLimits(max_positions=100, prefill_positions=50))
    assert shares[-1].num_pending == 25
    assert len(shares) == 76


def test_a_held_session_is_computed_up_to_its_last_token() -> None:
    """A session that may not commit yet has its prompt computed, but for the token whose logits its draft needs."""
    shares = plan([candidate(0, num_pending=9, may_commit=False)], PassLimits(100, 50))
    assert [(share.num_pending, share.has_logits) for share in shares] == [(8, False)]


RULE = StartByWorth(max_wait_s=0.01, lateness=0.0, lateness_s=0.0)
READY, FREE, PROMPT = candidate(0, num_nodes=3), candidate(1, is_free=True), candidate(2, num_pending=5)


def due(at_s: float) -> Candidate:
    return candidate(3, may_commit=False, due_at_s=at_s)


@pytest.mark.parametrize(
    ("some", "starts_at_s"),
    [
        ([], inf),
        ([due(10.001)], inf),
        ([READY], 10.0),
        ([READY, due(inf)], 10.0),
        ([READY, due(10.004)], 10.004),
        ([READY, due(10.004), due(10.008)], 10.008),
        ([READY, due(10.004), due(10.1)], 10.004),
        ([READY, due(10.02)], 10.0),
        ([READY, due(9.99)], 10.0),
        ([READY, FREE, due(10.004)], 10.004),
        ([READY, *[FREE] * 30, due(10.004)], 10.0),
        ([READY, PROMPT, due(10.004)], 10.0),
    ],
    ids=[
        "nothing", "only due", "alone", "waits for nobody known", "due soon", "two due soon", "one due too late",
        "due too late", "late already", "somebody is free", "many are free", "a prompt is queued",
    ],
)  # fmt: skip
def test_a_pass_starts_at_once_unless_drafts_are_due_soon(some: list[Candidate], starts_at_s: float) -> None:
    """What is ready waits only for drafts due within the bound that are worth it, and never beside prompts."""
    assert RULE.start_at(Moment(10.0, some, ready_since_s=10.0, pass_s=0.1)) == pytest.approx(starts_at_s)


def test_the_wait_is_bounded_from_when_something_was_ready() -> None:
    """The wait ends a bounded time after the first was ready, and is not longer than it earns."""
    some = [READY, due(10.004)]
    assert RULE.start_at(Moment(10.002, some, ready_since_s=9.993, pass_s=0.1)) == 10.002
    assert RULE.start_at(Moment(10.0, some, ready_since_s=10.0, pass_s=0.007)) == 10.0
