"""What a drafter is told of worth, and what is learned of how sure it was."""

from __future__ import annotations

import pytest

from coordinator.calibration import Line
from coordinator.policy import Decision, Snapshot
from pilotfish.messages import Speculation
from tests.coordinator.conftest import VOCABULARY, Start
from tests.coordinator.fakes import chaotic, right_for

NUM_IDS = len(VOCABULARY)
SURE = 2.0


class Pricing:
    """Always drafts two nodes, at a price."""

    def __init__(self, price: float, step_price: float) -> None:
        self.price, self.step_price = price, step_price

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off

    def heeds_price(self, _wishes: Speculation) -> bool:
        return True

    def decide(self, snapshot: Snapshot) -> Decision:
        gamma = 2 if snapshot.is_drafter_up and snapshot.num_remaining > 2 else 0
        return Decision(gamma, "fixed", price=self.price, step_price=self.step_price)


@pytest.mark.parametrize("is_by_node", [False, True])
@pytest.mark.parametrize(("num_right", "direction"), [(8, 1), (0, -1)])
async def test_a_drafter_is_told_what_its_confidence_was_worth(
    start: Start, num_right: int, direction: int, is_by_node: bool
) -> None:
    """Nodes it was equally sure of all hold, or none does: from request to request it is told so, with the price."""
    law = chaotic(26)
    drafter = await start.drafter(right_for(num_right, law, 26))
    drafter.confidence, drafter.is_by_node = SURE, is_by_node
    stack = await start.coordinator([await start.verifier(law)], [drafter], policy=Pricing(0.25, 0.125))
    plain = await stack.complete(max_tokens=60, gamma=0)
    done = await stack.complete(max_tokens=60)

    assert done.ids == plain.ids
    drafting = [request for request in drafter.requests if request.gamma]
    assert {(request.price, request.step_price) for request in drafting} == {(0.25, 0.125)}
    told = [request.calibration.probability(SURE) for request in drafting if request.calibration]
    assert len(told) == len(drafting) > 10
    assert told[0] == pytest.approx(Line().calibration.probability(SURE), abs=1e-6)
    assert (told[-1] - told[0]) * direction > 0.05


async def test_no_draft_ends_early_where_the_settings_forbid_it(start: Start) -> None:
    """With early_stop off a drafter hears of no price and of no calibration, whatever the policy decides."""
    law = chaotic(26)
    drafter = await start.drafter(right_for(2, law, 26))
    drafter.confidence = SURE
    verifier = await start.verifier(law)
    stack = await start.coordinator([verifier], [drafter], policy=Pricing(0.25, 0.125), early_stop=False)
    await stack.complete(max_tokens=30)
    assert {(request.price, request.step_price, request.calibration) for request in drafter.requests} == {
        (0.0, 0.0, None)
    }


async def test_without_a_price_nothing_is_weighed(start: Start) -> None:
    """A fixed γ is drafted whole: no price and no calibration are sent, however sure the drafter is."""
    law = chaotic(26)
    drafter = await start.drafter(right_for(2, law, 26))
    drafter.confidence = SURE
    stack = await start.coordinator([await start.verifier(law)], [drafter])
    await stack.complete(max_tokens=30, gamma=4)
    assert {(request.price, request.step_price, request.calibration) for request in drafter.requests} == {
        (0.0, 0.0, None)
    }
