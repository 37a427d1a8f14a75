"""How far the drafter may run ahead in the next round: a pure function of what is known of the session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from coordinator.outlook import Outlook
from coordinator.pace import Need
from pilotfish.gammas import GammaTable
from pilotfish.messages import DrafterLoad, Objective, Speculation, VerifierLoad
from pilotfish.price import Choice

Reason: TypeAlias = Literal[
    "fixed",  # the coordinator's own setting
    "request",  # the request said so
    "limit",  # there is no room for a draft: a cap of 0, the answer's own limit, or the context
    "drafter_down",  # no drafter, or none that can be reached
    "draft_context",  # the drafter's own context is full
    "first_token",  # the prompt's own pass commits it, and waits for no draft
    "draft_late",  # a draft is due, and the verifier went on without it
    "acceptance",  # further nodes would hardly ever hold
    "saturation",  # further nodes would cost the verifier's other sessions more than they are worth
    "round_trip",  # further nodes would come too late
    "target",  # the price counts less, so that the request's target for time per token is kept
    "explore",  # to keep knowing what drafts are worth
]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a session before a round."""

    position: int  # committed tokens
    num_remaining: int  # tokens the answer may still get: the least of its limit and the context
    num_draftable: int  # tokens until the drafter's context is full
    max_gamma: int  # cap of coordinator and verifier
    is_drafter_up: bool
    wishes: Speculation
    verifier: VerifierLoad
    drafter: DrafterLoad
    outlook: Outlook | None = None  # None: no drafter, nobody measures, or the price is not heeded
    objective: Objective = Objective.BALANCED
    need: Need | None = None  # what the request's target leaves for a token; None: it has no target
    may_draft_ahead: bool = False
    stops_early: bool = False  # the drafter ends a draft where the next node is not worth its price
    is_alone: bool = True  # this coordinator has no other session at the verifier
    last: Choice | None = None  # what was chosen for the round before; None: nothing by choice
    chance: float = 1.0  # uniform in [0, 1), drawn for this round alone; 1.0: not drawn, since nobody will ask


class Decision(NamedTuple):
    """For the next round: γ, and why. 0: nothing is drafted, the session runs free."""

    gamma: int
    reason: Reason
    is_held: bool = True  # until its draft is there; else it runs free meanwhile, and the draft's tail is used
    choice: Choice | None = None  # by the price; None: for another reason
    price: float = 0.0  # tokens a node must be worth to be drawn, as the drafter sees it; 0: every node is
    step_price: float = 0.0  # tokens a further draft step must be worth beyond that


class Policy(Protocol):
    """Decides round by round. Must not look at a token that was drafted and not committed."""

    def may_draft(self, wishes: Speculation) -> bool:
        """Whether it will ever draft for such a request, so that a drafter is to read along."""

    def heeds_price(self, wishes: Speculation) -> bool:
        """Whether such a request answers its verifier's plan, so that the plan is to count on it."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """γ for the round that begins at the snapshot's position."""


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Always the same γ, or the request's own; less only where there is no room or no drafter."""

    gamma: int

    def may_draft(self, wishes: Speculation) -> bool:
        return self._wanted(wishes).gamma > 0

    def heeds_price(self, _wishes: Speculation) -> bool:
        return False

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self._wanted(snapshot.wishes)
        if decision.gamma == 0:
            return decision
        return clip(decision, snapshot) if snapshot.is_drafter_up else Decision(0, "drafter_down")

    def _wanted(self, wishes: Speculation) -> Decision:
        if wishes.is_off:
            return Decision(0, "request")
        if wishes.gamma is not None:
            return Decision(wishes.gamma, "request")
        if wishes.max_gamma is not None and wishes.max_gamma < self.gamma:
            return Decision(wishes.max_gamma, "request")
        return Decision(self.gamma, "fixed")


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """A fixed γ by how many sessions run at the verifier, or the request's own."""

    table: GammaTable

    def may_draft(self, wishes: Speculation) -> bool:
        return FixedPolicy(self.table.most).may_draft(wishes)

    def heeds_price(self, _wishes: Speculation) -> bool:
        return False

    def decide(self, snapshot: Snapshot) -> Decision:
        return FixedPolicy(self.table.gamma(snapshot.verifier.num_sessions)).decide(snapshot)


def clip(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision within what can be used: a verdict commits one token more than it keeps of the draft."""
    gamma, reason = min(decision.gamma, snapshot.max_gamma), decision.reason
    if snapshot.num_remaining - 1 < gamma:
        gamma, reason = max(snapshot.num_remaining - 1, 0), "limit"
    if snapshot.num_draftable < gamma:
        gamma, reason = max(snapshot.num_draftable, 0), "draft_context"
    return decision._replace(gamma=gamma, reason=reason)
