"""What the engine's passes tell the plan."""

from __future__ import annotations

import random

import pytest

from pilotfish.price import Profile
from verifier.cost import CostCurve, PassShape, knots_up_to
from verifier.pricing import PassYield, Pricing
from verifier.traffic import PassRecord

PASS_S = 0.02
RIDGE = 64


def seconds(num_positions: int) -> float:
    return PASS_S * max(1.0, num_positions / RIDGE)


def pricing_of(num_sessions: int) -> Pricing:
    """Sessions whose drafts are promised to hold, at a verifier that slows down from 64 positions on."""
    curve = CostCurve(knots_up_to(512))
    curve.fit([PassShape(n) for n in curve.knots], [seconds(n) for n in curve.knots])
    pricing = Pricing(curve, 8, 0.0)
    for session in range(num_sessions):
        pricing.put(session, Profile(tuple(0.9**i for i in range(1, 9)), 0.0, 0.0, 0.0))
    return pricing


@pytest.mark.parametrize("slowness", [1.0, 2.0])
def test_plan_is_dropped_though_every_pass_reads_a_prompt(slowness: float) -> None:
    """Four sessions whose drafts never hold, and a prompt in every pass, dearer than the curve has it or not."""
    pricing, chance, now_s, num_passes = pricing_of(4), random.Random(1), 0.0, 0
    while num_passes == 0 or pricing.plan.kind:
        num_positions = 4 * 9 + 200
        length_s = slowness * seconds(num_positions) * chance.uniform(0.95, 1.05)
        record = PassRecord(now_s, now_s + length_s, num_positions, 5, 200)
        pricing.passed(record, PassYield(0, 4, now_s, num_running=4))
        now_s += length_s
        num_passes += 1
        assert num_passes <= 200
    assert pricing.realised_speedup is not None
    assert pricing.realised_speedup < 1.0


def test_plan_that_pays_stays_though_every_pass_reads_a_prompt() -> None:
    """Drafts of eight that hold cost little where 200 positions of a prompt ride along anyway."""
    pricing, now_s, kinds = pricing_of(4), 0.0, set()
    for _ in range(200):
        num_positions = 4 * 9 + 200
        length_s = 2.0 * seconds(num_positions)
        record = PassRecord(now_s, now_s + length_s, num_positions, 5, 200)
        pricing.passed(record, PassYield(0, 4 * 5, now_s, num_running=4))
        now_s += length_s
        kinds.add(pricing.plan.kind)
    assert 0 not in kinds
    assert pricing.realised_speedup is not None
    assert pricing.realised_speedup > 3.0


def test_pass_in_which_nobody_runs_says_nothing() -> None:
    """Passes that only read prompts are no evidence for or against a plan."""
    pricing, now_s = pricing_of(4), 0.0
    for _ in range(100):
        pricing.passed(PassRecord(now_s, now_s + PASS_S, 200, 4, 200), PassYield(0, 0, now_s))
        now_s += PASS_S
    assert pricing.realised_speedup is None
