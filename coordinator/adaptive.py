"""The policy that chooses γ by the price: pure, a snapshot in and a decision out. Design: docs/price.md.

A session drafts as far as its nodes are worth what their positions cost everybody (`pilotfish.price.choose`). Where
nothing is worth that, it runs free, and one of two things goes on without holding anybody up: a drafter that costs
nothing to ask (one that only looks tokens up) is asked all the same, and what it finds rides along where it is worth
its positions; any other is tried now and then, so that a bad spell does not switch speculation off for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coordinator.outlook import Outlook, is_instant
from coordinator.policy import Decision, FixedPolicy, Reason, Snapshot, clip
from pilotfish.messages import Objective, Speculation, VerifierLoad
from pilotfish.price import Choice, Plan, Profile, choose, token_s

WEIGHTS: Final = {Objective.LATENCY: 0.5, Objective.BALANCED: 1.0, Objective.THROUGHPUT: 2.0}  # of the price
EXPLORE_SHARE: Final = 0.02  # of the tokens may go into drafts that are not expected to pay
EXPLORE_GAMMA: Final = 3
FEW_ROUNDS: Final = 4  # with a draft: fewer say little of a session
EXPLORE_DEEPER: Final = 24  # every so many rounds a session that drafts tries one node more
MIN_PRICE: Final = 0.05  # of a position, where the verifier has room: drafts are not quite for nothing
PACE_WEIGHTS: Final = (2.0, 1.0, 0.5, 0.25)  # of the price, where a target for time per token is to be kept
AMPLY: Final = 0.7  # of the time a token may take: what must be expected of one that gives way
NEAR_SHARE: Final = 0.5  # of a pass: a short draft that comes within that is waited for in a session's first round
LITTLE: Final = 0.3  # saturation under which a few positions cost next to nothing; offers above which one is likely
PAYS: Final = 1.02  # over plain decoding, from which speculating alone would pay


@dataclass(frozen=True, slots=True)
class AdaptivePolicy:
    """γ by the price that the verifier publishes; the request's own wishes come first."""

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off and wishes.gamma != 0 and wishes.max_gamma != 0

    def heeds_price(self, wishes: Speculation) -> bool:
        return self.may_draft(wishes) and wishes.gamma is None

    def decide(self, snapshot: Snapshot) -> Decision:
        wishes, outlook = snapshot.wishes, snapshot.outlook
        if wishes.is_off or wishes.gamma is not None:
            return FixedPolicy(0).decide(snapshot)
        if not snapshot.is_drafter_up or outlook is None:
            return Decision(0, "drafter_down")
        wanted = snapshot.max_gamma if wishes.max_gamma is None else min(wishes.max_gamma, snapshot.max_gamma)
        cap = clip(Decision(wanted, "limit"), snapshot)
        if cap.gamma == 0:
            return Decision(0, "request" if wishes.max_gamma == 0 else cap.reason)
        profile = outlook.profile(snapshot.drafter, may_draft_ahead=snapshot.may_draft_ahead)
        plan, choice, is_for_target = _answer(profile, snapshot, cap.gamma)
        if choice.gamma:
            reason = "target" if is_for_target else _why(profile, plan, choice.gamma, cap)
            decision = _deepened(choice, outlook, cap, reason)
            return decision if choice.ahead else _priced(decision, profile, plan, snapshot, cap)
        return self._without_waiting(snapshot, profile, plan, cap)._replace(choice=choice)

    def _without_waiting(self, snapshot: Snapshot, profile: Profile, plan: Plan, cap: Decision) -> Decision:
        """What goes on while the session runs free."""
        outlook, drafter, load = snapshot.outlook, snapshot.drafter, snapshot.verifier
        assert outlook is not None
        reason = _why_not(profile, snapshot, plan, cap)
        price = max(MIN_PRICE, load.saturation if math.isinf(plan.price) else plan.price)
        pass_us = load.pass_us or 1
        if is_instant(drafter, pass_us, cap.gamma):
            gamma = cap.gamma if snapshot.stops_early else min(profile.num_worthy(price), cap.gamma)
            return Decision(gamma, reason, is_held=False, price=price)
        gamma = min(EXPLORE_GAMMA, cap.gamma)
        away = (1e6 * outlook.round_trip_s + drafter.draft_us(gamma)) / pass_us  # in passes
        if _is_new(load, outlook) and away < NEAR_SHARE:
            return Decision(gamma, "explore")
        is_held = outlook.is_drawn  # else tokens would be committed meanwhile, and nothing would be learned
        if snapshot.chance < _explore_share(load, outlook) / (1.0 + away * is_held) ** 2:  # costs so many tokens
            return Decision(gamma, "explore", is_held=is_held)
        return Decision(0, reason)


def _is_new(load: VerifierLoad, outlook: Outlook) -> bool:
    """Whether no draft of the session was ever seen, and a short one that is near is worth waiting for.

    The plan of before knows nothing of those that begin now; it comes with the first verdict. A session that ran free
    until then would be two passes further when it has heard of it, and its first draft late.
    """
    return not outlook.num_rounds and load.saturation < LITTLE and outlook.offered > LITTLE


class Answer(NamedTuple):
    """How a session answers its verifier's plan."""

    plan: Plan  # with the price as it counts for this session
    choice: Choice
    is_for_target: bool = False  # the price counts less, for its target is in danger


def _answer(profile: Profile, snapshot: Snapshot, max_gamma: int) -> Answer:
    """What the session chooses: by its objective, or so that its target for time per token is kept.

    With a target the price counts as much as the target allows: double where there is time to spare, so that sessions
    give way to those that have none, and down to a quarter where nothing else keeps it. One that can no longer keep its
    target whatever it does takes nothing from those that can: the price counts once.
    """
    plan, last, need = snapshot.verifier.plan, snapshot.last, snapshot.need
    if plan is None or (snapshot.is_alone and not plan.tokens_per_s):  # a plan for nobody knows of no session yet
        plan = lone_plan(snapshot)
    if need is None:
        weighed = _weighed(plan, WEIGHTS[snapshot.objective])
        return Answer(weighed, choose(profile, weighed, max_gamma, last))
    found: dict[float, Answer] = {}
    for weight in PACE_WEIGHTS:
        weighed = _weighed(plan, weight, snapshot.verifier.saturation)
        choice = choose(profile, weighed, max_gamma, last)
        found[weight] = Answer(weighed, choice, is_for_target=weight < 1.0)
        if token_s(profile, weighed, choice) <= (AMPLY * need.soon_s if weight > 1.0 else need.soon_s):
            return found[weight]
    fastest = found[PACE_WEIGHTS[-1]]
    return fastest if token_s(profile, fastest.plan, fastest.choice) <= need.rest_s else found[1.0]


def _weighed(plan: Plan, weight: float, felt_price: float = math.inf) -> Plan:
    """The plan with the price weighed. Where nobody should draft, less than the whole price is that of what is felt."""
    price = felt_price if math.isinf(plan.price) and weight < 1.0 else plan.price
    return replace(plan, price=max(price * weight, MIN_PRICE))


def _explore_share(load: VerifierLoad, outlook: Outlook) -> float:
    """Share of the tokens after which a session that runs free tries a draft.

    The less the dearer a position is, where a try costs more and drafts pay less. One that was hardly tried yet may be
    unlike its kind; once it was, all of a kind learn from one.
    """
    cost = 1.0 + EXPLORE_GAMMA * load.saturation
    if outlook.num_rounds < FEW_ROUNDS:
        return EXPLORE_SHARE / cost**2
    return EXPLORE_SHARE / cost / math.sqrt(max(1, load.num_sessions))


def lone_plan(snapshot: Snapshot) -> Plan:
    """The plan of a verifier that publishes none: as if the session were alone, at the price of the last pass."""
    load = snapshot.verifier
    pass_s = max(load.pass_us, 1) / 1e6
    outlook, drafter = snapshot.outlook, snapshot.drafter
    assert outlook is not None
    profile = outlook.profile(drafter, may_draft_ahead=False)
    best = max(
        range(len(profile.survival) + 1),
        key=lambda gamma: _alone(profile, pass_s, gamma),
    )
    period_s = pass_s + (profile.away_s(best) if best else 0.0)
    return Plan(load.saturation, period_s, pass_s, 0.0, int(best > 0))


def _alone(profile: Profile, pass_s: float, gamma: int) -> float:
    """Tokens a pass length, if the session were alone and waited for its drafts."""
    return 1.0 if not gamma else profile.tokens(gamma) * pass_s / (pass_s + profile.away_s(gamma))


def _deepened(choice: Choice, outlook: Outlook, cap: Decision, reason: Reason) -> Decision:
    if choice.gamma < cap.gamma and outlook.num_rounds % EXPLORE_DEEPER == EXPLORE_DEEPER - 1:
        return Decision(choice.gamma + 1, "explore", is_held=choice.is_held, choice=choice)
    return Decision(choice.gamma, reason, is_held=choice.is_held, choice=choice)


def _priced(decision: Decision, profile: Profile, plan: Plan, snapshot: Snapshot, cap: Decision) -> Decision:
    """The decision with what nodes must be worth once the drafter knows how sure it is of them.

    Where it draws them in no time γ bounds nothing any more: one that copies knows how long the texts agreed, which
    says more than what drafts were worth on the whole.

    The time of a step is worth what the session gets in it, as far as anybody waits: for a session that runs on nobody
    does, and of the sessions that are held a pass waits for the last, which is each of them equally often.
    """
    if snapshot.stops_early and is_instant(snapshot.drafter, snapshot.verifier.pass_us, cap.gamma):
        return decision._replace(gamma=cap.gamma, price=plan.price)
    if decision.reason == "explore":
        return decision
    step_price = 0.0
    if decision.is_held and profile.token_s > 0.0:
        period_s = plan.pass_s + profile.away_s(decision.gamma)
        num_sessions = max(1, snapshot.verifier.num_sessions)
        step_price = profile.token_s * profile.tokens(decision.gamma) / period_s / num_sessions
    return decision._replace(price=plan.price, step_price=step_price)


def _why(profile: Profile, plan: Plan, gamma: int, cap: Decision) -> Reason:
    """What keeps a draft from being longer."""
    if gamma >= cap.gamma:
        return cap.reason
    if profile.num_worthy(plan.price) > gamma:
        return "round_trip"
    return "saturation" if profile.num_worthy(MIN_PRICE) > gamma else "acceptance"


def _why_not(profile: Profile, snapshot: Snapshot, plan: Plan, cap: Decision) -> Reason:
    """Why a session runs free: what would have to be otherwise for drafts to pay."""
    pass_s = plan.pass_s or snapshot.verifier.pass_us / 1e6
    if pass_s <= 0.0:
        return "acceptance"
    gammas = range(1, min(cap.gamma, len(profile.survival)) + 1)
    if max((_alone(profile, pass_s, gamma) for gamma in gammas), default=0.0) >= PAYS:
        return "saturation"
    near = replace(profile, round_trip_s=0.0)
    if max((_alone(near, pass_s, gamma) for gamma in gammas), default=0.0) >= PAYS:
        return "round_trip"
    return "acceptance"
