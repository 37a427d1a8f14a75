"""The policy follows the price, says why, and never stops looking."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from coordinator.adaptive import AdaptivePolicy
from coordinator.outlook import Outlook
from coordinator.pace import Need
from coordinator.policy import Decision, Snapshot
from pilotfish.messages import DrafterLoad, Objective, Speculation, VerifierLoad
from pilotfish.price import Choice, Plan, Profile, token_s

PASS_US = 40_000
IDLE = VerifierLoad(pass_us=PASS_US, pass_positions=1, pass_sequences=1, num_sessions=1)


def survival(alpha: float, num_depths: int = 16) -> tuple[float, ...]:
    return tuple(alpha ** (depth + 1) for depth in range(num_depths))


def snapshot(
    alpha: float = 0.9,
    *,
    offered: float = 1.0,
    round_trip_s: float = 0.0005,
    token_us: int = 2_000,
    load: VerifierLoad = IDLE,
    wishes: Speculation | None = None,
) -> Snapshot:
    return Snapshot(
        position=100,
        num_remaining=1000,
        num_draftable=1000,
        max_gamma=16,
        is_drafter_up=True,
        wishes=wishes or Speculation(),
        verifier=load,
        drafter=DrafterLoad(start_us=200, token_us=token_us),
        outlook=Outlook(survival(alpha), offered, round_trip_s),
    )


def test_good_drafts_on_an_idle_verifier_go_deep() -> None:
    """At acceptance .9 and a drafter of a twentieth of a pass a session drafts far, and is held for it."""
    decision = AdaptivePolicy().decide(snapshot(0.9))
    assert decision.gamma >= 8
    assert decision.is_held


def test_poor_drafts_are_not_waited_for() -> None:
    """At acceptance .1 it drafts one token at the most."""
    decision = AdaptivePolicy().decide(snapshot(0.1))
    assert decision.gamma <= 1
    assert decision.reason == "acceptance"


def test_saturation_ends_speculation() -> None:
    """Where the verifier says that no position is worth its price, nothing is drafted, for that reason."""
    load = replace(IDLE, saturation=1.0, num_sessions=64, plan=Plan(inf, 0.04, 0.04, 1600.0))
    decision = AdaptivePolicy().decide(snapshot(0.7, load=load))
    assert decision.gamma == 0
    assert decision.reason == "saturation"
    assert decision.choice == Choice(0, 1)  # which the next round weighs drafts against


def test_far_drafter_is_not_waited_for() -> None:
    """A round trip of ten passes is the reason for running free."""
    decision = AdaptivePolicy().decide(snapshot(0.8, round_trip_s=10 * PASS_US / 1e6))
    assert not decision.gamma or not decision.is_held
    assert decision.reason == "round_trip"


def test_price_shortens_drafts() -> None:
    """The dearer a position, the shorter the draft; objectives weigh the price."""
    cheap, dear = (replace(IDLE, plan=Plan(price, 0.08, 0.04, 100.0, 1)) for price in (0.05, 0.5))
    policy = AdaptivePolicy()
    assert policy.decide(snapshot(0.8, load=cheap)).gamma > policy.decide(snapshot(0.8, load=dear)).gamma >= 1
    wishing = replace(snapshot(0.8, load=dear), objective=Objective.LATENCY)
    assert policy.decide(wishing).gamma > policy.decide(replace(wishing, objective=Objective.THROUGHPUT)).gamma


def test_who_begins_among_others_drafts_a_little() -> None:
    """The plan of before knows nothing of it: one short draft that is waited for, where that costs next to nothing."""
    plain = replace(IDLE, plan=Plan.plain(8, 0.02))
    new = replace(snapshot(load=plain), is_alone=False)
    decision = AdaptivePolicy().decide(new)
    assert (decision.gamma, decision.reason, decision.is_held, decision.price) == (3, "explore", True, 0.0)
    assert new.outlook is not None
    others = [
        replace(new, outlook=replace(new.outlook, num_rounds=1)),
        replace(new, outlook=replace(new.outlook, round_trip_s=0.02)),
        replace(new, outlook=replace(new.outlook, offered=0.1)),
        replace(new, verifier=replace(plain, saturation=0.9)),
    ]
    assert [AdaptivePolicy().decide(other).gamma for other in others] == [0, 0, 0, 0]


def test_drafter_that_costs_nothing_is_asked_without_waiting() -> None:
    """A lookup that seldom finds anything is asked every round, and nobody is held for it."""
    decision = AdaptivePolicy().decide(snapshot(0.8, offered=0.02, token_us=0, round_trip_s=0.003))
    assert decision.gamma > 0
    assert not decision.is_held


def test_lookups_are_drawn_as_far_as_the_drafter_is_sure_of_them() -> None:
    """Where drawing takes no time γ is the most there may be, and the price says where to stop; else γ is chosen."""
    load = replace(IDLE, plan=Plan(0.2, 0.05, 0.04, 100.0, 1))
    lookup = replace(snapshot(0.6, token_us=0, load=load), drafter=DrafterLoad(), stops_early=True)
    decision = AdaptivePolicy().decide(lookup)
    assert (decision.gamma, decision.price, decision.step_price, decision.is_held) == (16, 0.2, 0.0, True)
    for other in (replace(lookup, stops_early=False), replace(lookup, drafter=DrafterLoad(token_us=2_000))):
        assert AdaptivePolicy().decide(other).gamma < 5


def test_bad_spell_is_not_for_ever() -> None:
    """A session that runs free for poor acceptance tries a draft when its chance comes up, and says so."""
    poor = snapshot(0.05, token_us=20_000)
    assert AdaptivePolicy().decide(poor).gamma == 0
    decision = AdaptivePolicy().decide(replace(poor, chance=0.0))
    assert (decision.gamma > 0, decision.reason, decision.is_held) == (True, "explore", False)


def test_a_try_is_waited_for_where_drafts_are_drawn_by_chance() -> None:
    """A token committed meanwhile is not their node: without waiting nothing is learned. The farther, the seldomer."""
    tries = []
    for poor in (snapshot(0.05, token_us=20_000), snapshot(0.05, token_us=20_000, round_trip_s=1.0)):
        assert poor.outlook is not None
        drawn = replace(poor, outlook=replace(poor.outlook, is_drawn=True))
        found = [AdaptivePolicy().decide(replace(drawn, chance=chance / 20_000)) for chance in range(400)]
        assert all(decision.is_held for decision in found if decision.gamma)
        tries.append(sum(decision.reason == "explore" for decision in found))
    assert tries[0] > 4 * tries[1] > 0


@pytest.mark.parametrize(
    ("wishes", "gamma", "reason"),
    [
        (Speculation(is_off=True), 0, "request"),
        (Speculation(gamma=0), 0, "request"),
        (Speculation(gamma=7), 7, "request"),
        (Speculation(max_gamma=0), 0, "request"),
    ],
)
def test_request_comes_first(wishes: Speculation, gamma: int, reason: str) -> None:
    """What a request fixes is kept whatever the price is."""
    decision = AdaptivePolicy().decide(snapshot(wishes=wishes))
    assert (decision.gamma, decision.reason) == (gamma, reason)


def test_request_may_cap() -> None:
    """A request's most is never passed, exploring included."""
    wishes = Speculation(max_gamma=2)
    for num_rounds in range(50):
        base = snapshot(wishes=wishes)
        assert base.outlook is not None
        outlook = replace(base.outlook, num_rounds=num_rounds)
        assert AdaptivePolicy().decide(replace(base, outlook=outlook, chance=0.0)).gamma <= 2


def test_no_drafter_no_draft() -> None:
    """Without a drafter the session runs free, and the reason names it."""
    decision = AdaptivePolicy().decide(replace(snapshot(), is_drafter_up=False))
    assert (decision.gamma, decision.reason) == (0, "drafter_down")


CROWD = replace(IDLE, num_sessions=16, saturation=0.3, plan=Plan(0.3, 0.06, 0.04, 400.0, 1))
"""A plan of a pass every 60 ms, at .3 a position."""


def paced(
    soon_s: float | None, rest_s: float | None = None, load: VerifierLoad = CROWD, alpha: float = 0.7
) -> Decision:
    need = None if soon_s is None else Need(soon_s, soon_s if rest_s is None else rest_s)
    return AdaptivePolicy().decide(replace(snapshot(alpha, load=load), need=need))


def test_a_session_with_time_to_spare_gives_way() -> None:
    """One that keeps its target amply pays double for its positions, so it drafts less than one without a target."""
    assert 0 <= paced(1.0).gamma < paced(None).gamma
    assert paced(1.0).reason != "target"


def test_a_session_in_need_drafts_what_keeps_its_target() -> None:
    """The less time a token may take the deeper it drafts, and what is chosen keeps the target as long as any can."""
    needs = (1.0, 0.04, 0.03, 0.0225, 0.021)
    gammas = [paced(soon_s).gamma for soon_s in needs]
    assert gammas == sorted(gammas)
    assert gammas[-1] > paced(None).gamma
    assert paced(0.021).reason == "target"
    profile = Profile(survival(0.7), 200e-6, 2e-3, 500e-6)
    for soon_s in needs:
        decision = paced(soon_s)
        assert decision.choice is not None
        assert CROWD.plan is not None
        assert token_s(profile, CROWD.plan, decision.choice) <= soon_s


def test_a_target_that_cannot_be_kept_takes_nothing_from_others() -> None:
    """Where nothing makes up for the time lost by the end, a session drafts as one without a target does."""
    assert paced(-1.0, -0.1) == paced(None)
    assert paced(-1.0, 0.03).reason == "target"  # not soon, but in the end


def test_a_target_outlives_saturation() -> None:
    """Where nobody should draft only a session that would miss its target does, and nobody waits for it."""
    full = replace(IDLE, num_sessions=64, saturation=0.9, plan=Plan.plain(64, 0.04))
    assert paced(0.06, load=full).gamma == 0
    assert paced(None, load=full).gamma == 0
    decision = paced(0.035, load=full)
    assert decision.gamma > 0
    assert not decision.is_held
    assert decision.reason == "target"


def test_poor_drafts_keep_no_target() -> None:
    """A session whose drafts never hold drafts nothing however far it is behind: plain decoding is its fastest."""
    assert paced(-1.0, 1.0, alpha=0.01).gamma == 0


def test_drafter_is_told_what_nodes_must_be_worth() -> None:
    """A node must be worth the price as the objective weighs it; a round that explores, or γ by wish, has none."""
    load = replace(IDLE, num_sessions=8, plan=Plan(0.3, 0.08, 0.04, 100.0, 1))
    policy = AdaptivePolicy()
    balanced, latency = (
        policy.decide(replace(snapshot(0.8, load=load), objective=objective))
        for objective in (Objective.BALANCED, Objective.LATENCY)
    )
    assert (balanced.price, latency.price) == (0.3, 0.15)
    assert policy.decide(snapshot(wishes=Speculation(gamma=4))).price == 0.0
    assert policy.decide(replace(snapshot(0.05, token_us=20_000), chance=0.0)).price == 0.0
    deeper = replace(snapshot(0.6), outlook=Outlook(survival(0.6), 1.0, 0.0005, num_rounds=23))
    assert (policy.decide(deeper).reason, policy.decide(deeper).price) == ("explore", 0.0)


def test_step_is_worth_the_tokens_of_its_time() -> None:
    """A lone session that waits gets E(γ) tokens a round; with others it is the last to wait for less often."""
    decision = AdaptivePolicy().decide(snapshot(0.8))
    period_us = PASS_US + 200 + 500 + decision.gamma * 2_000
    expected = 1.0 + sum(survival(0.8)[: decision.gamma])
    assert decision.is_held
    assert decision.step_price == pytest.approx(2_000 * expected / period_us, rel=1e-6)
    crowd = replace(IDLE, num_sessions=4, plan=Plan(0.05, 0.08, 0.04, 100.0, 1))
    beside = AdaptivePolicy().decide(snapshot(0.8, load=crowd))
    assert beside.is_held
    assert 0.0 < beside.step_price < decision.step_price / 2


def test_time_of_a_drafter_that_nobody_waits_for_is_worth_nothing() -> None:
    """A session that runs on loses nothing to its drafter's steps; nodes must be worth their positions all the same."""
    decision = AdaptivePolicy().decide(snapshot(0.8, offered=0.02, token_us=0, round_trip_s=0.003))
    assert decision.gamma > 0
    assert not decision.is_held
    assert decision.step_price == 0.0
    assert decision.price > 0.0
