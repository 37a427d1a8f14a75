"""What a meter makes of a draft that ended for its price."""

from __future__ import annotations

import pytest

from coordinator.estimator import Estimator, Kind
from coordinator.outlook import Common, Meter
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd

KIND = Kind.of("drafter", "model", "", 0.0)
SURE, UNSURE = 5.0, -5.0


def survival(end: DraftEnd, confidences: tuple[float, ...], num_committed: int = 3) -> tuple[float, ...]:
    """After 40 drafts of two nodes that both held, of eight that were asked for."""
    meter = Meter(Estimator().session(KIND), 0.0)
    for _ in range(40):
        meter.decided(8, [1, 2], [1, 2, 3][:num_committed], end, confidences=confidences)
    return meter.outlook(4).survival


def test_a_node_that_was_not_drawn_for_its_price_counts_as_what_it_was_worth() -> None:
    """Two nodes that hold each time say little of a third that was never drawn because it was unlikely."""
    assert survival(DraftEnd.DEADLINE, (SURE, SURE))[2] > 0.8
    assert survival(DraftEnd.SURVIVAL, (SURE, SURE, UNSURE))[2] < 0.4
    assert survival(DraftEnd.SURVIVAL, (SURE, UNSURE))[2] < survival(DraftEnd.SURVIVAL, (SURE, SURE))[2]


def test_the_nodes_above_it_count_as_before() -> None:
    """What was drawn and held is not made less of for the node that was not."""
    drawn, stopped = survival(DraftEnd.DEADLINE, (SURE, SURE)), survival(DraftEnd.SURVIVAL, (SURE, SURE, UNSURE))
    assert stopped[0] == pytest.approx(drawn[0], abs=0.05)


@pytest.mark.parametrize("confidences", [(), (SURE, SURE, UNSURE)])
def test_a_draft_that_is_not_decided_to_its_end_says_nothing_of_what_follows(confidences: tuple[float, ...]) -> None:
    """Where fewer tokens were committed than drafted, or no confidence came, no node is made up."""
    plain = survival(DraftEnd.DEADLINE, ())
    num_committed = 1 if confidences else 3
    assert survival(DraftEnd.SURVIVAL, confidences, num_committed)[2] > 0.8 * plain[2]


def test_a_new_session_begins_with_what_others_found() -> None:
    """How long drafts are away and whether they are drawn is known from the drafter's other sessions."""
    common, kinds = Common(), Estimator()
    first = Meter(kinds.session(KIND), 0.002, common, is_judged_by_law=True)
    assert first.outlook(4).round_trip_s == pytest.approx(0.002)
    assert first.outlook(4).is_drawn  # nothing is known: running on could be for nothing
    first.came_back(0.030)
    first.received(Draft.chain([1, 2]))
    second = Meter(kinds.session(KIND), 0.002, common, is_judged_by_law=True)
    assert second.outlook(4).round_trip_s == pytest.approx(0.030)
    assert not second.outlook(4).is_drawn
    second.received(Draft.chain([1, 2], [Distribution((1, 3), (1, 1)), None]))
    second.received(Draft.chain([3]))
    assert second.outlook(4).is_drawn  # once one was
    assert not Meter(kinds.session(KIND), 0.002, common).outlook(4).is_drawn  # under match nothing is judged by its law


def test_what_took_longer_while_the_session_ran_free_counts_little() -> None:
    """Drafts that nobody waited for may have taken longer for the pass that ran; quicker ones count in full."""
    held, free, quick = (Meter(Estimator().session(KIND), 0.0, Common(away_s=0.010)) for _ in range(3))
    held.came_back(0.030)
    free.came_back(0.030, is_held=False)
    quick.came_back(0.005, is_held=False)
    assert held.away_s == pytest.approx(0.012)
    assert free.away_s == pytest.approx(0.0104)
    assert quick.away_s == pytest.approx(0.0095)
