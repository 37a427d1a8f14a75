"""The plan that gives all sessions together the most tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pilotfish.price import Plan, Profile, choose
from pilotfish.speedup import speedup
from verifier.crowd import Crowd
from verifier.plan import Array, CostCurve, Slack, solve

NO_SLACK = Slack(0.0, 0.0)


def roofline(ridge: float) -> CostCurve:
    def cost(positions: Array) -> Array:
        return np.asarray(np.maximum(1.0, positions / ridge), dtype=np.float64)

    return cost


def profile_of(alpha: float, token_s: float = 0.05, round_trip_s: float = 0.0, *, ahead: bool = False) -> Profile:
    return Profile(tuple(alpha**i for i in range(1, 17)), 0.0, token_s, round_trip_s, ahead)


def test_one_session_gets_the_textbook_optimum() -> None:
    """At α .8 and c .05 the plan promises within 1.5% of 3.09 times plain, with γ 7 to 9."""
    profile = profile_of(0.8)
    plan = solve([profile], roofline(1e9), 16, slack=NO_SLACK)
    assert plan.tokens_per_s == pytest.approx(speedup(0.8, 0.05, 8), rel=0.015)
    assert choose(profile, plan, 16).gamma in {7, 8, 9}


@pytest.mark.parametrize("num_sessions", [1, 4, 16, 40])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("offered", [1.0, 0.3])
def test_promise_is_what_the_answers_come_to(
    num_sessions: int, round_trip_s: float, ahead: bool, offered: float
) -> None:
    """What a plan promises is what its sessions get if each answers by `choose`, and a pass then takes as long."""
    profile = profile_of(0.85, round_trip_s=round_trip_s, ahead=ahead and num_sessions > 1)
    profile = replace(profile, offered=offered)
    cost = roofline(64)
    plan = solve([profile] * num_sessions, cost, 16, slack=NO_SLACK)
    gamma, passes, ahead_nodes = choose(profile, plan, 16)
    line, sums = profile.line, profile.expected_tokens
    tokens, positions, length = (
        (passes + sums[gamma] - sums[passes - 1], gamma + 1.0, float(passes)) if gamma else (1.0, 1.0, 1.0)
    )
    if ahead_nodes:
        hits = line[gamma + 1] / (1.0 - line[gamma + ahead_nodes + 2] / line[gamma + 1])
        tokens += hits * (sums[gamma + 1 + ahead_nodes] - sums[gamma]) / line[gamma + 1]
        positions, length = positions + hits * (ahead_nodes + 1), length + hits
    plain = (1.0 - offered) * max(1, passes - 1) if gamma else 1.0 - offered
    tokens, positions, length = offered * tokens + plain, offered * positions + plain, offered * length + plain
    assert num_sessions * tokens / length / plan.period_s == pytest.approx(plan.tokens_per_s, rel=1e-6)
    pass_s = float(cost(np.array([num_sessions * positions / length]))[0])
    assert pass_s == pytest.approx(plan.pass_s, rel=1e-6)


@pytest.mark.parametrize("round_trip_s", [0.0, 0.6, 2.0])
def test_drawn_drafts_take_no_turns(round_trip_s: float) -> None:
    """Where drafts are drawn and judged by their law the plan counts on nobody running on."""
    profile = replace(profile_of(0.85, round_trip_s=round_trip_s), is_drawn=True)
    plan = solve([profile] * 16, roofline(64), 16, slack=NO_SLACK)
    assert plan.kind <= 1
    gamma, passes, _ = choose(profile, plan, 16)
    assert passes == 1
    assert 16 * profile.tokens(gamma) / plan.period_s == pytest.approx(plan.tokens_per_s, rel=1e-6)


def test_never_promises_less_than_plain_decoding() -> None:
    """For 60 random crowds the plan promises at least what running free gives."""
    chance = random.Random(6)
    for _ in range(60):
        num = chance.randint(1, 80)
        profiles = [
            profile_of(chance.random(), 0.3 * chance.random(), 3.0 * chance.random(), ahead=chance.random() < 0.5)
            for _ in range(num)
        ]
        ridge = 10.0 ** chance.uniform(0.5, 3.0)
        plan = solve(profiles, roofline(ridge), 16)
        assert plan.tokens_per_s >= num / max(1.0, num / ridge) - 1e-9


def test_speculation_ends_past_the_ridge() -> None:
    """A saturated verifier's plan is plain decoding; far below the ridge everybody drafts."""
    profiles = [profile_of(0.7)] * 64
    assert solve(profiles, roofline(48), 16).kind == 0
    assert solve(profiles, roofline(1e6), 16).kind != 0


def test_a_draft_that_is_seldom_there_is_as_deep_as_one_that_always_is() -> None:
    """Where one lookup in five finds anything a pass carries few nodes, and γ is not that of five times as many.

    Beside it, what it comes to where the same were drafts that always come and hold a fifth as often.
    """
    seldom = [replace(profile_of(0.85, token_s=0.0, round_trip_s=0.1), offered=0.2)] * 8
    weak = [replace(each, survival=tuple(0.2 * s for s in each.survival), offered=1.0) for each in seldom]
    plan, other = solve(seldom, roofline(24), 16), solve(weak, roofline(24), 16)
    assert choose(seldom[0], plan, 16).gamma >= 8
    assert choose(weak[0], other, 16).gamma <= 4
    assert plan.tokens_per_s > 1.2 * other.tokens_per_s


def test_far_sessions_do_not_hold_up_near_ones() -> None:
    """Where half the sessions are three passes away, the period is still that of the near ones."""
    profiles = [profile_of(0.9, round_trip_s=trip) for trip in (0.05, 3.0) for _ in range(4)]
    plan = solve(profiles, roofline(1e6), 16)
    assert plan.period_s < 2.0
    assert plan.kind & 1


def test_turns_bound_the_drafts_of_a_pass() -> None:
    """Where sessions bring a draft to every k-th pass a pass takes about one k-th of them; else there is no bound."""
    away = solve([profile_of(0.9, round_trip_s=0.9)] * 20, roofline(1e6), 16)
    assert away.kind > 1
    assert away.num_drafts is not None
    assert 4 <= away.num_drafts <= 11
    assert solve([profile_of(0.9)] * 20, roofline(1e6), 16).num_drafts is None


def test_distrust_of_a_kind_makes_another_win() -> None:
    """A kind of plan that came to half of its promise is not taken again while another promises more."""
    profiles = [profile_of(0.8, round_trip_s=0.5)] * 8
    first = solve(profiles, roofline(200), 16)
    second = solve(profiles, roofline(200), 16, {first.kind: 0.5})
    assert second.kind != first.kind


def test_plan_in_force_is_kept_for_a_small_gain() -> None:
    """When acceptances move by a hundredth the price and the period stay as they are."""
    cost = roofline(150)
    first = solve([profile_of(0.80)] * 24, cost, 16)
    second = solve([profile_of(0.81)] * 24, cost, 16, current=first)
    assert (second.price, second.kind) == (first.price, first.kind)


def test_drafting_ahead_promises_more_and_never_less() -> None:
    """With drafts that lie ahead the promise is at least as high, and clearly higher for one far, good session."""
    for alpha in (0.5, 0.8, 0.95):
        for trip in (0.0, 1.0, 2.0):
            for num in (1, 8):
                without = solve([profile_of(alpha, 0.2, trip)] * num, roofline(1e6), 16)
                ahead = solve([profile_of(alpha, 0.2, trip, ahead=True)] * num, roofline(1e6), 16)
                assert ahead.tokens_per_s >= 0.995 * without.tokens_per_s
    near = solve([profile_of(0.95, 0.2, 1.0)], roofline(1e6), 16).tokens_per_s
    assert solve([profile_of(0.95, 0.2, 1.0, ahead=True)], roofline(1e6), 16).tokens_per_s > 1.3 * near


def test_nobody_and_those_who_may_not() -> None:
    """Without sessions, or with sessions that may not speculate, the plan is plain decoding."""
    assert solve([], roofline(8), 16) == Plan.plain(0, 0.0)
    assert solve([Profile((), 0.0, 0.0, 0.0)] * 3, roofline(8), 16).kind == 0


def test_crowd_counts_everybody() -> None:
    """Whatever comes, changes and goes, the classes hold each session once."""
    chance, crowd = random.Random(8), Crowd()
    there: set[int] = set()
    for _ in range(2000):
        session = chance.randrange(300)
        if chance.random() < 0.3:
            assert crowd.remove(session) == (session in there)
            there.discard(session)
        else:
            crowd.put(session, profile_of(chance.random(), chance.random(), chance.random()))
            there.add(session)
    assert len(crowd) == len(there) == sum(count for _, count in crowd.classes())


def test_crowd_of_like_sessions_is_their_mean() -> None:
    """Sessions of one class are planned for by their mean survival, not by one of them."""
    crowd = Crowd.of([profile_of(0.8), replace(profile_of(0.8), survival=profile_of(0.82).survival)])
    ((typical, count),) = crowd.classes()
    assert count == 2
    assert typical.survival[0] == pytest.approx(0.81)
