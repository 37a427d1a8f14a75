"""The price: what a draft node must be worth, and how far a session drafts under a verifier's plan.

A verifier publishes one plan for all its sessions; every coordinator answers it for its own sessions with `choose`,
and the verifier's solver counts on just that answer. All times are in seconds, all worth is in tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

MAX_PASSES = 4  # from one draft of a session to its next, at the most
MAX_TAIL_RATE = 0.98  # beyond the depths that were measured a node holds at the last rate, this at the most
KEEP_GAIN = 0.08  # another choice than the last one must be worth so much more, of a token or of its worth
LEAVE_GAIN = 0.01  # likewise, where the session runs free: many small gains make a large one


@dataclass(frozen=True)
class Profile:
    """What speculating would be like for one session, as far as it was measured."""

    survival: tuple[float, ...]  # of a draft that came: probability that one node, the first two, … hold; never rising
    start_s: float  # the drafter's time before its first node
    token_s: float  # its time per node
    round_trip_s: float  # from a verdict until the request reaches the drafter, and from the draft until the verifier
    may_draft_ahead: bool = False  # its drafter goes on with its likeliest line while a draft is verified
    is_drawn: bool = False  # by chance, and judged by their law: tokens committed meanwhile are seldom its drafts'
    offered: float = 1.0  # probability that a draft comes when asked for; one that finds nothing costs no position

    def away_s(self, gamma: int) -> float:
        """From a verdict until the next draft of `gamma` tokens is there."""
        return self.start_s + gamma * self.token_s + self.round_trip_s

    @cached_property
    def line(self) -> tuple[float, ...]:
        """Survival by depth from depth 0 on, twice as deep as was measured: further nodes hold at the last rate."""
        return (1.0, *self.survival, *extension(self.survival))

    @cached_property
    def expected_tokens(self) -> tuple[float, ...]:
        """E of a draft that came, by γ, from γ = 0: one token, and one more for each node that holds."""
        return tuple(accumulate(self.line))

    def tokens(self, gamma: int) -> float:
        """Expected of a round that is waited for, whether a draft comes or none."""
        return 1.0 + self.offered * (self.expected_tokens[gamma] - 1.0)

    def num_worthy(self, price: float) -> int:
        """Depth to which nodes are worth the price."""
        return next((depth for depth, survival in enumerate(self.survival) if survival < price), len(self.survival))


def extension(survival: tuple[float, ...]) -> list[float]:
    """Survival of as many further nodes, and two."""
    if not survival:
        return [0.0, 0.0]
    before = survival[-2] if len(survival) > 1 else 1.0
    rate = min(survival[-1] / before, MAX_TAIL_RATE) if before > 0.0 else 0.0
    return [survival[-1] * rate**further for further in range(1, len(survival) + 3)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a verifier means to run: what a position costs, and how often a pass starts."""

    price: float  # μ: what one more position in a pass costs everybody, in tokens
    period_s: float  # from the start of a pass to the start of the next
    pass_s: float  # length of a pass
    tokens_per_s: float  # what all sessions together are predicted to get
    kind: int = 0  # bit k is set where some session brings a draft to every (k+1)-th pass; 0: everybody runs free
    ahead_s: float | None = None  # as `period_s`, for a session whose next draft lies there; None: the same
    num_drafts: int | None = (
        None  # that a pass should carry; those beyond take the next, their sessions run on. None: all
    )

    @staticmethod
    def plain(num_sessions: int, pass_s: float) -> Plan:
        """Everybody runs free: one position and one token a session and pass."""
        return Plan(math.inf, pass_s, pass_s, num_sessions / pass_s if pass_s else 0.0)


class Choice(NamedTuple):
    """How one session answers a plan."""

    gamma: int  # 0: it runs free
    passes: (
        int  # from one of its drafts to the next; 1: it is held until its draft is there, more: it runs on meanwhile
    )
    ahead: int = 0  # nodes of each further round that lie ahead of the verdict; 0: the drafter stops after γ

    @property
    def is_held(self) -> bool:
        return self.gamma > 0 and self.passes == 1


def choose(profile: Profile, plan: Plan, max_gamma: int, last: Choice | None = None) -> Choice:
    """The γ that earns most under the plan: tokens less the price of the positions, per pass.

    A session whose draft can be back before the next pass is held for it. Where that takes k > 1 passes the session
    does not wait: it runs free, one token a pass, and of the draft counts what hangs below those tokens. That costs no
    position more than standing by (what is committed already need not be verified) and never commits less:

        held        1 + s₁ + … + s_γ   tokens a pass
        running on  k + s_k + … + s_γ  tokens in k passes

    A drafter that goes on while its draft is verified has guessed the bonus too. With probability s_{γ+1} all of it
    was right; then the next draft, of n nodes, lies there at once, and again with probability s_{γ+n+2} / s_{γ+1}.

    Where nothing comes of a request the session has a token all the same, for one position, and asks again at its next
    verdict: when one that runs on would have had its draft for the pass after it, that is a pass earlier.

    Where drafts are drawn by chance and judged by their law, what is committed meanwhile is drawn independently of them
    and seldom the same: such a session does not run on.

    Args:
        profile: of the session.
        plan: of its verifier.
        max_gamma: most tokens in a draft.
        last: what was chosen before; it is kept where nothing else is worth clearly more.
    """
    if math.isinf(plan.price):
        return Choice(0, 1)
    depth = min(profile.num_worthy(plan.price), max_gamma)
    ahead = _num_ahead(profile, plan, max_gamma) if profile.may_draft_ahead else 0
    best, best_worth, last_worth = Choice(0, 1), 1.0 - plan.price, -math.inf
    if last is not None and not last.gamma:
        last_worth = best_worth
    for passes in range(1, most_passes(profile) + 1):
        spare_s = passes * plan.period_s - plan.pass_s - profile.away_s(0)
        fitting = _num_fitting(spare_s, profile.token_s, max_gamma)
        if last is not None and passes == last.passes and passes <= last.gamma <= fitting:
            last_worth = _worth(profile, plan, last)
        gamma = min(fitting, depth)
        if gamma >= passes and (worth := _worth(profile, plan, Choice(gamma, passes, ahead))) > best_worth + 1e-9:
            best, best_worth = Choice(gamma, passes, ahead), worth
        if gamma == depth:
            break  # more passes would only delay it
    if last is None:
        return best
    gain = KEEP_GAIN if last.gamma else LEAVE_GAIN
    return last if last_worth + gain * max(1.0, best_worth) >= best_worth else best


def most_passes(profile: Profile) -> int:
    """From one draft of the session to its next."""
    return 1 if profile.is_drawn else MAX_PASSES


class Cycle(NamedTuple):
    """From one draft of a session to the next, the rounds that lay ahead of it included."""

    tokens: float
    positions: float
    periods: float

    def or_plain(self, offered: float, num_passes: int) -> Cycle:
        """This one where a draft comes, else so many passes with a token each."""
        plain = (1.0 - offered) * num_passes
        return Cycle(offered * self.tokens + plain, offered * self.positions + plain, offered * self.periods + plain)


def cycle(profile: Profile, plan: Plan, choice: Choice) -> Cycle:
    """What a choice of γ over 0 gets and takes."""
    return _drafted(profile, plan, choice).or_plain(profile.offered, max(1, choice.passes - 1))


def _drafted(profile: Profile, plan: Plan, choice: Choice) -> Cycle:
    """The same where a draft comes."""
    gamma, passes, ahead = choice
    line, sums = profile.line, profile.expected_tokens
    tokens = passes + sums[gamma] - sums[passes - 1]
    if not ahead:
        return Cycle(tokens, gamma + 1, passes)
    again = line[gamma + ahead + 2] / line[gamma + 1] if line[gamma + 1] > 0.0 else 0.0
    hits = line[gamma + 1] / (1.0 - again)  # rounds that lie ahead and count, for each one that does not
    tokens += (sums[gamma + 1 + ahead] - sums[gamma]) / (1.0 - again)
    share = plan.ahead_s / plan.period_s if plan.ahead_s else 1.0
    return Cycle(tokens, gamma + 1 + (ahead + 1) * hits, passes + hits * share)


def _worth(profile: Profile, plan: Plan, choice: Choice) -> float:
    """Tokens less the price of their positions, per pass."""
    tokens, positions, periods = cycle(profile, plan, choice)
    return (tokens - plan.price * positions) / periods


def token_s(profile: Profile, plan: Plan, choice: Choice) -> float:
    """Expected time per token of a session that answers the plan so; one that runs free has a token every pass."""
    if not choice.gamma:
        return plan.period_s
    found = cycle(profile, plan, choice)
    return found.periods * plan.period_s / found.tokens


def _num_ahead(profile: Profile, plan: Plan, max_gamma: int) -> int:
    """Nodes of a round that lies ahead: those the drafter draws in a pass, the guess of the bonus aside."""
    if not profile.survival:
        return 0
    rate = profile.line[-1] / profile.line[-2] if profile.line[-2] > 0.0 else 0.0
    worthy = max_gamma if plan.price <= 0.0 else num_deep(rate, plan.price)
    drawn = _num_fitting(plan.ahead_s or plan.period_s, profile.token_s, max_gamma + 1) - 1
    return max(0, min(worthy, drawn, max_gamma, len(profile.survival)))


def num_deep(rate: float, price: float) -> int:
    """Nodes that are worth the price where each holds at the same rate."""
    return int(math.log(price) / math.log(rate) + 1e-9) if 0.0 < rate < 1.0 and 0.0 < price < 1.0 else 0


def _num_fitting(spare_s: float, token_s: float, most: int) -> int:
    """Draft steps that fit into the spare time, `most` at the most; a hair too late is in time."""
    if spare_s < -1e-9:
        return 0
    spare_s = max(spare_s, 0.0)
    return most if token_s <= 0.0 else min(most, int(spare_s / token_s * (1.0 + 1e-6) + 1e-6))


def differ(one: Profile, other: Profile) -> bool:
    """Whether a profile has moved enough to be told, and the plan to be solved again."""
    kinds = [(len(each.survival), each.may_draft_ahead, each.is_drawn) for each in (one, other)]
    if kinds[0] != kinds[1]:
        return True
    depth = min(4, len(one.survival))
    moved = max((abs(one.survival[i] - other.survival[i]) for i in range(depth)), default=0.0)
    moved = max(moved, abs(one.offered - other.offered))
    away, before = other.away_s(4), one.away_s(4)
    return moved > 0.05 or abs(away - before) > 0.1 * max(away, before)
