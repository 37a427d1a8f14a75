"""What a target for time per token leaves, and whether it was met."""

from __future__ import annotations

import pytest

from coordinator.pace import HORIZON_TOKENS, Pace
from pilotfish.messages import Targets

MANY = 10 * HORIZON_TOKENS


def test_a_request_on_its_target_needs_just_that() -> None:
    """As long as tokens come as the target says, the next ones may take as long; ahead more, behind less."""
    pace = Pace(Targets(token_s=0.1))
    assert pace.need(MANY) == pytest.approx((0.1, 0.1))
    pace.commit(1, 5.0)  # until the first token, which is another target's business
    assert pace.need(MANY) == pytest.approx((0.1, 0.1))
    pace.commit(10, 1.0)
    assert pace.need(MANY) == pytest.approx((0.1, 0.1))
    pace.commit(1, 0.1 + 0.05 * HORIZON_TOKENS)
    assert pace.need(MANY) == pytest.approx((0.05, 0.095))
    pace.commit(2 * HORIZON_TOKENS, 0.1 * HORIZON_TOKENS)
    assert pace.need(MANY) == pytest.approx((0.15, 0.105))
    assert pace.met() == {"token": True}


def test_a_request_that_ends_soon_has_no_more_time() -> None:
    """What is left of the answer bounds the time to make up in; under 0 nothing does, and after the end nothing is."""
    pace = Pace(Targets(token_s=0.1))
    pace.commit(1, 0.0)
    pace.commit(10, 2.0)
    assert pace.need(20) == pytest.approx((0.05, 0.05))
    assert pace.need(5) == pytest.approx((-0.1, -0.1))
    assert pace.need(0) is None
    assert pace.met() == {"token": False}


def test_the_first_tokens_target_leaves_what_was_not_waited() -> None:
    """It leaves the rest of its time, then none; nothing is left to keep without a target or after the token."""
    pace = Pace(Targets(first_token_s=1.0))
    assert [pace.first_token_left_s(waited_s) for waited_s in (0.25, 1.0, 7.0)] == [0.75, 0.0, 0.0]
    pace.commit(1, 0.5)
    assert pace.first_token_left_s(0.5) is None
    assert Pace(Targets(token_s=1.0)).first_token_left_s(0.0) is None


def test_no_target_needs_nothing() -> None:
    """Without a target there is no pace to keep and nothing to have met."""
    pace = Pace(Targets(first_token_s=1.0))
    pace.commit(1, 0.5)
    pace.commit(1, 9.0)
    assert pace.need(MANY) is None
    assert pace.met() == {"first_token": True}


def test_what_cannot_be_measured_was_not_missed() -> None:
    """An answer of one token has no time per later token."""
    pace = Pace(Targets(first_token_s=1.0, token_s=1.0))
    assert pace.met() == {}
    pace.commit(1, 2.0)
    assert pace.met() == {"first_token": False}


def test_paused_tokens_do_not_count() -> None:
    """While paused there is no pace to keep, and what comes then neither helps nor harms."""
    pace = Pace(Targets(token_s=0.1), is_paused=True)
    pace.commit(1, 0.5)
    pace.commit(50, 100.0)
    assert pace.need(MANY) is None
    pace.is_paused = False
    assert pace.need(MANY) == pytest.approx((0.1, 0.1))
    pace.commit(2, 0.2)
    assert pace.met() == {"token": True}
