"""What becomes of drafts is counted as far as it says how drafts hold."""

from __future__ import annotations

import pytest

from coordinator.estimator import Estimator, Kind
from coordinator.outlook import Meter
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd

HALF = Distribution((1, 2), (1, 1))
DRAWN = Draft((1, 1, 1), (-1, 0, 1), (HALF, HALF, HALF))
CHOSEN = Draft((1, 1, 1), (-1, 0, 1), (None, None, None))


def meter_of(draft: Draft, *, is_judged_by_law: bool = True) -> Meter:
    meter = Meter(Estimator().session(Kind.of("drafter", "model", "", 1.0)), 0.0, is_judged_by_law=is_judged_by_law)
    meter.received(draft)
    return meter


def test_places_that_were_overtaken_say_nothing_of_drawn_drafts() -> None:
    """A token committed meanwhile was drawn by itself: that it is another is no evidence against drafts."""
    meter = meter_of(DRAWN)
    before = meter.outlook(3).survival
    for _ in range(10):
        meter.decided(3, DRAWN.tokens, (2, 2), DraftEnd.GAMMA, num_overtaken=2)
    assert meter.outlook(3).survival == pytest.approx(before)


def test_the_rest_of_a_drawn_draft_counts() -> None:
    """Nodes below those that were overtaken were judged, and count."""
    meter = meter_of(DRAWN)
    before = meter.outlook(1).survival[0]
    for _ in range(10):
        meter.decided(3, DRAWN.tokens, (1, 2), DraftEnd.GAMMA, num_overtaken=1)
    assert meter.outlook(1).survival[0] < before / 2


@pytest.mark.parametrize(("draft", "is_judged_by_law"), [(CHOSEN, True), (DRAWN, False)])
def test_overtaken_places_count_where_equality_decides(draft: Draft, is_judged_by_law: bool) -> None:
    """Where a node is kept if the target's own token is the same, a token committed meanwhile says as much."""
    meter = meter_of(draft, is_judged_by_law=is_judged_by_law)
    before = meter.outlook(1).survival[0]
    for _ in range(10):
        meter.decided(3, draft.tokens, (2, 2), DraftEnd.GAMMA, num_overtaken=2)
    assert meter.outlook(1).survival[0] < before / 2
    assert not meter.outlook(1).is_drawn
