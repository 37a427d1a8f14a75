"""A pass waits for drafts only while that earns more than it costs."""

from __future__ import annotations

import numpy as np

from verifier.plan import Array
from verifier.tempo import Due, Ready, wait_until


def flat(positions: Array, _: Array) -> Array:
    return np.ones_like(positions)


def test_nothing_due_starts_at_once() -> None:
    """With something ready and nothing on its way the pass starts now."""
    assert wait_until(0.0, Ready(1.0, 1, 1), [], flat) is None


def test_nothing_ready_waits_for_the_first() -> None:
    """With nothing ready the next look is when the first draft is due."""
    assert wait_until(0.0, Ready(0.0, 0, 0), [Due(3.0, 2.0, 5), Due(2.0, 2.0, 5)], flat) == 2.0


def test_all_of_one_round_trip_are_waited_for() -> None:
    """Sixteen drafts that come within a tenth of a pass are waited for by the first of them."""
    due = [Due(0.1 + 0.001 * i, 3.0, 5) for i in range(15)]
    assert wait_until(0.1 - 0.001, Ready(3.0, 5, 1), due, flat) == due[-1].expected_s


def test_one_straggler_costs_the_others_little() -> None:
    """Sixteen ready sessions wait for a seventeenth only for less than a sixteenth of a pass."""
    ready = Ready(16 * 3.0, 16 * 5, 16)
    assert wait_until(0.0, ready, [Due(0.04, 3.0, 5)], flat) == 0.04
    assert wait_until(0.0, ready, [Due(0.07, 3.0, 5)], flat) is None


def test_late_draft_is_waited_for_by_nobody() -> None:
    """A draft whose time is over does not hold a pass back."""
    assert wait_until(1.0, Ready(3.0, 5, 1), [Due(0.9, 3.0, 5)], flat) is None


def test_free_running_sessions_are_held_back_only_for_more_than_they_lose() -> None:
    """Eight free-running sessions wait for a draft of five tokens a third of a pass, not half."""
    ready = Ready(8.0, 8, 8)
    assert wait_until(0.0, ready, [Due(0.3, 5.0, 8)], flat) == 0.3
    assert wait_until(0.0, ready, [Due(0.5, 5.0, 8)], flat) is None


def test_nobody_waits_where_every_position_costs() -> None:
    """Two groups that share nothing of a pass take turns; where half of it is shared they wait for one another."""
    ready, due = Ready(8.0, 8, 8), [Due(0.1, 8.0, 8)]
    assert wait_until(0.0, ready, due, lambda positions, _: positions / 8.0) is None
    assert wait_until(0.0, ready, due, lambda positions, _: 0.5 + positions / 16.0) == 0.1


def test_nobody_waits_where_every_session_costs() -> None:
    """What contexts add to a pass is not shared: two halves of a crowd wait for one another only for the rest."""

    def length(_: Array, sessions: Array) -> Array:
        return 0.2 + 0.05 * sessions

    ready = Ready(8.0, 8, 8)
    soon, later = ([Due(at_s, 4.0, 4) for _ in range(8)] for at_s in (0.15, 0.25))
    assert wait_until(0.0, ready, soon, length) == 0.15
    assert wait_until(0.0, ready, later, length) is None
    assert wait_until(0.0, ready, later, lambda _, sessions: 0.6 + 0.0 * sessions) == 0.25
