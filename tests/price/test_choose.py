"""How a session answers a plan."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pilotfish.price import Choice, Plan, Profile, choose, cycle, differ

PLAN = Plan(price=0.0, period_s=1.5, pass_s=1.0, tokens_per_s=1.0)


def profile_of(alpha: float, token_s: float = 0.05, round_trip_s: float = 0.0, depth: int = 16) -> Profile:
    return Profile(tuple(alpha**i for i in range(1, depth + 1)), 0.0, token_s, round_trip_s)


def random_profile(chance: random.Random) -> Profile:
    alive, survival = 1.0, []
    for _ in range(16):
        alive *= chance.random() ** 0.4
        survival.append(alive)
    return Profile(tuple(survival), 0.1 * chance.random(), 0.1 * chance.random(), chance.random())


def test_drafts_what_fits_before_the_next_pass() -> None:
    """With nothing to pay, a session drafts as many tokens as are back in time, and is held for them."""
    choice = choose(profile_of(0.8), PLAN, 16)
    assert choice == Choice(10, 1)
    assert choice.is_held


def test_runs_on_where_a_draft_takes_longer_than_a_pass() -> None:
    """A session whose draft is away for two passes runs free meanwhile and brings it to every third."""
    choice = choose(profile_of(0.9, round_trip_s=1.6), replace(PLAN, period_s=1.0), 6)
    assert choice.passes == 3
    assert not choice.is_held
    assert choice.gamma == 6


def test_drawn_drafts_are_waited_for_or_not_asked_for() -> None:
    """A session whose drafts are drawn and judged by their law is held for them, or runs free."""
    chance = random.Random(4)
    held = 0
    for _ in range(200):
        profile, plan = replace(random_profile(chance), is_drawn=True), replace(PLAN, period_s=1.0 + chance.random())
        choice = choose(profile, plan, 16, last=Choice(4, 3))
        assert choice.is_held or not choice.gamma
        held += choice.is_held
    assert 0 < held < 200


def test_runs_free_where_nobody_should_draft() -> None:
    """Under a plan without drafts, and where no node is worth its price, γ is 0."""
    assert choose(profile_of(0.9), Plan.plain(4, 1.0), 16) == Choice(0, 1)
    assert choose(profile_of(0.3), replace(PLAN, price=0.5), 16) == Choice(0, 1)
    assert choose(Profile((), 0.0, 0.0, 0.0), PLAN, 16) == Choice(0, 1)


def test_a_dearer_position_never_makes_a_draft_longer() -> None:
    """Over 200 random sessions γ falls, or stays, as the price rises, while the session is held."""
    chance = random.Random(3)
    for _ in range(200):
        profile = random_profile(chance)
        plan = Plan(0.0, 1.0 + 2.0 * chance.random(), 1.0, 1.0)
        gammas = [choose(profile, replace(plan, price=price / 20), 16) for price in range(20)]
        held = [choice.gamma for choice in gammas if choice.passes == 1]
        assert held == sorted(held, reverse=True)


def test_running_on_never_commits_less_than_standing_by() -> None:
    """In k passes a session that runs on gets at least the draft's tokens, whatever its survival."""
    chance = random.Random(4)
    for _ in range(200):
        profile = random_profile(chance)
        for passes in (2, 3, 4):
            for gamma in range(passes, 17):
                running_on = cycle(profile, PLAN, Choice(gamma, passes)).tokens
                assert running_on >= profile.expected_tokens[gamma] - 1e-12


def test_a_lookup_that_mostly_finds_nothing_is_waited_for_only_where_that_is_short() -> None:
    """One answer in ten is a draft: a pass is made a fiftieth longer for it, not a fifth; γ is that of a sure one."""
    seldom = replace(profile_of(0.8, token_s=0.0), offered=0.1)
    for round_trip_s, passes in ((0.02, 1), (0.2, 2)):
        profile = replace(seldom, round_trip_s=round_trip_s)
        held = choose(profile, replace(PLAN, price=0.1, period_s=1.0 + round_trip_s), 16)
        free = choose(profile, replace(PLAN, price=0.1, period_s=1.0), 16)
        assert (held.passes, free.passes) == (1, 2)
        assert held.gamma == free.gamma == 10
        rates = [_rate(profile, choice, 1.0 + round_trip_s * choice.is_held) for choice in (held, free)]
        assert rates[passes - 1] == max(rates)


def _rate(profile: Profile, choice: Choice, period_s: float) -> float:
    """Tokens per second of a session, played through: each request is answered for its pass or for the one after."""
    chance, num_tokens, num_passes = random.Random(1), 0, 0
    for _ in range(4000):
        if chance.random() < profile.offered:
            num_kept = 0
            while num_kept < choice.gamma and chance.random() < 0.8:
                num_kept += 1
            num_passes += choice.passes
            num_tokens += max(1 + num_kept, choice.passes)
        else:
            num_passes += 1
            num_tokens += 1
    return num_tokens / (num_passes * period_s)


def test_every_node_taken_is_worth_its_price() -> None:
    """No session drafts deeper than its survival reaches the price."""
    chance = random.Random(5)
    for _ in range(200):
        profile, price = random_profile(chance), chance.random()
        choice = choose(profile, replace(PLAN, price=price), 16)
        assert choice.gamma == 0 or profile.survival[choice.gamma - 1] >= price


def test_keeps_its_last_choice_where_another_is_hardly_better() -> None:
    """A γ that is worth nearly as much as the best one stays; one that is worth clearly less does not."""
    profile = profile_of(0.8)
    best = choose(profile, PLAN, 16)
    near, far = best._replace(gamma=best.gamma - 1), best._replace(gamma=1)
    assert choose(profile, PLAN, 16, near) == near
    assert choose(profile, PLAN, 16, far) == best
    assert choose(profile, PLAN, 16, Choice(16, 1)) == best  # it would not be back in time


def test_leaves_running_free_only_for_a_gain() -> None:
    """A draft that is worth a hair more than none begins a session's drafting, and ends no spell of running free."""
    profile, free = profile_of(0.6, depth=1), Choice(0, 1)
    for gain, found in ((0.005, 0), (0.02, 1)):
        plan = replace(PLAN, price=0.6 - gain)
        assert choose(profile, plan, 16) == Choice(1, 1)
        assert choose(profile, plan, 16, free).gamma == found


def test_drafts_ahead_what_a_drafter_draws_in_a_pass() -> None:
    """A drafter that goes on has as many further nodes as it draws in a pass, the guess of the bonus aside."""
    profile = replace(profile_of(0.9, token_s=0.2), may_draft_ahead=True)
    choice = choose(profile, replace(PLAN, ahead_s=1.0), 16)
    assert choice.ahead == 4
    assert choose(replace(profile, may_draft_ahead=False), PLAN, 16).ahead == 0


@pytest.mark.parametrize("alpha", [0.0, 1e-9, 1.0])
def test_extreme_acceptance_is_no_error(alpha: float) -> None:
    """Acceptances of 0 and 1 give a choice, with drafts ahead and without."""
    for ahead in (False, True):
        profile = replace(profile_of(alpha), may_draft_ahead=ahead)
        assert choose(profile, PLAN, 16).gamma >= 0
        assert math.isfinite(sum(profile.expected_tokens))


def test_a_profile_of_another_kind_is_told() -> None:
    """Whether drafts are drawn or may lie ahead changes what a session can do, at the same survival and times."""
    profile = Profile((0.8, 0.6), 0.0, 0.001, 0.0)
    assert not differ(profile, replace(profile))
    assert differ(profile, replace(profile, is_drawn=True))
    assert differ(profile, replace(profile, may_draft_ahead=True))
