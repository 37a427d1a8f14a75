"""When a pass starts and what it carries, as functions of a snapshot."""

from __future__ import annotations

from math import inf
from typing import Any

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
    **keys: Any,
) -> Candidate:
    key = SessionKey("", number.to_bytes(16, "big"))
    return Candidate(key, num_pending, num_nodes, may_commit, is_free, last_pass, due_at_s, **keys)


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


def test_prompts_are_read_in_the_order_of_their_deadlines() -> None:
    """The earliest deadline first, however long it waited; where they are equal who waited longest; decoding before."""
    some = [
        candidate(0, num_pending=40, first_by_s=30.0),
        candidate(1, num_pending=40, first_by_s=20.0, last_pass=9),
        candidate(2, last_pass=9, first_by_s=99.0),
        candidate(3, num_pending=40, first_by_s=30.0, last_pass=1),
    ]
    shares = plan(some, PassLimits(max_positions=200, prefill_positions=90))
    assert [(share.key, share.num_pending) for share in shares] == [
        (some[2].key, 1), (some[1].key, 40), (some[0].key, 40), (some[3].key, 10),
    ]  # fmt: skip


def carried(some: list[Candidate], max_drafts: int | None) -> list[int]:
    """Whose drafts ride, by place, in a pass with room for everybody."""
    shares = {share.key: share for share in plan(some, PassLimits(4096, 2048), max_drafts)}
    rides = [each.num_nodes > 0 and shares[each.key].has_logits and not shares[each.key].is_put_off for each in some]
    return [place for place, does in enumerate(rides) if does]


def test_drafts_beyond_the_number_are_put_off_and_their_sessions_ride_on() -> None:
    """Of four drafts the two ride whose sessions waited longest for that; the others commit one token."""
    some = [
        candidate(i, num_nodes=3, last_pass=9, may_put_off=True, last_draft_pass=last)
        for i, last in enumerate([8, 5, 7, 6])
    ]
    assert carried(some, 2) == [1, 3]
    assert carried(some, 0) == []
    assert carried(some, 4) == carried(some, None) == [0, 1, 2, 3]
    shares = plan(some, PassLimits(max_positions=10, prefill_positions=8), 2)
    assert sorted(share.key for share in shares if share.has_logits) == [each.key for each in some]  # 4 rows, 6 nodes


def test_who_would_stand_by_keeps_its_draft_and_uses_up_the_number() -> None:
    """A draft that may not be put off rides however many there are, and leaves less room for the others."""
    held = [candidate(i, num_nodes=3, last_draft_pass=9) for i in range(2)]
    others = [candidate(2 + i, num_nodes=3, may_put_off=True) for i in range(2)]
    assert carried([*held, *others], 3) == [0, 1, 2]
    assert carried([*held, *others], 1) == [0, 1]


def test_a_prompt_that_may_take_several_passes_takes_no_drafts_place() -> None:
    """A draft whose session has tokens to compute first comes after those that can ride now."""
    some = [candidate(0, num_pending=9, num_nodes=3, may_put_off=True), candidate(1, num_nodes=3, may_put_off=True)]
    assert carried(some, 1) == [1]


@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 5)), max_size=30),
    st.none() | st.integers(0, 10),
)
def test_a_pass_carries_no_more_drafts_than_told(rows: list[tuple[int, bool, int]], max_drafts: int | None) -> None:
    """Everybody rides; only drafts that may not be put off can be more than told; none is put off for nothing."""
    some = [
        candidate(i, num_nodes=nodes, may_put_off=may, last_draft_pass=last)
        for i, (nodes, may, last) in enumerate(rows)
    ]
    num_drafts = sum(each.num_nodes > 0 for each in some)
    num_kept = sum(each.num_nodes > 0 and not each.may_put_off for each in some)
    told = num_drafts if max_drafts is None else max_drafts
    assert len(carried(some, max_drafts)) == min(num_drafts, max(told, num_kept))
    assert all(share.has_logits for share in plan(some, PassLimits(4096, 2048), max_drafts))


RULE = StartByWorth(max_wait_s=0.01, lateness=0.0, lateness_s=0.0)
READY, FREE, PROMPT = candidate(0, num_nodes=3), candidate(1, is_free=True), candidate(2, num_pending=5)
OFTEN, SELDOM = (
    candidate(5, is_free=True, due_at_s=10.004, tokens_per_draft=4.0, offered=share) for share in (0.7, 0.02)
)
LONG_WAITING = candidate(4, num_pending=5, first_by_s=10.1)  # in time if its pass starts now


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
        ([READY, PROMPT, due(10.004)], 10.004),
        ([PROMPT, due(10.004)], 10.004),
        ([PROMPT, *[READY] * 30, due(10.004)], 10.0),
        ([PROMPT, LONG_WAITING, due(10.004)], 10.0),
        ([READY, OFTEN], 10.004),
        ([READY, SELDOM], 10.0),
        ([OFTEN], 10.0),
        ([*[READY] * 60, OFTEN], 10.0),
        ([PROMPT, OFTEN], 10.0),
    ],
    ids=[
        "nothing", "only due", "alone", "waits for nobody known", "due soon", "two due soon", "one due too late",
        "due too late", "late already", "somebody is free", "many are free", "beside a prompt", "a prompt alone",
        "a prompt and many others", "a prompt that is due", "somebody free who often has a draft",
        "who seldom has one", "who is alone", "many others",
        "a prompt that nobody is held beside",
    ],
)  # fmt: skip
def test_a_pass_starts_at_once_unless_drafts_are_due_soon(some: list[Candidate], starts_at_s: float) -> None:
    """What is ready waits only for drafts due within the bound that are worth it, and no prompt is made late by it."""
    assert RULE.start_at(Moment(10.0, some, ready_since_s=10.0, pass_s=0.1)) == pytest.approx(starts_at_s)


def test_a_prompt_waits_for_a_part_of_a_pass() -> None:
    """Beside a prompt only drafts are waited for that come in the first quarter of a pass."""
    rule = StartByWorth(max_wait_s=1.0, lateness=0.0, lateness_s=0.0)
    for at_s, starts_at_s in ((10.024, 10.024), (10.026, 10.0)):
        some = [PROMPT, due(at_s), due(at_s)]
        assert rule.start_at(Moment(10.0, some, ready_since_s=10.0, pass_s=0.1)) == starts_at_s
    assert rule.start_at(Moment(10.026, [PROMPT, due(10.03)], ready_since_s=10.0, pass_s=0.1)) == 10.026


def test_the_wait_is_bounded_from_when_something_was_ready() -> None:
    """The wait ends a bounded time after the first was ready, and is not longer than it earns."""
    some = [READY, due(10.004)]
    assert RULE.start_at(Moment(10.002, some, ready_since_s=9.993, pass_s=0.1)) == 10.002
    assert RULE.start_at(Moment(10.0, some, ready_since_s=10.0, pass_s=0.007)) == 10.0
