"""Whether to draw another node: decided before the draw, from what may be looked at.

What is verified must not depend on what is dropped (docs/law.md). A rule that saw the token just drawn could keep it
back; here it cannot, since it is asked before the token exists, and what was drawn before has been sent.

Most rules are asked before a step. `Survival` is asked in the middle of one, where the law of the next token is known
and the token is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pilotfish.confidence import Calibration, confidence_of
from pilotfish.messages import DraftEnd


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a rule may look at."""

    position: int  # committed tokens
    num_levels: int  # of the draft so far
    elapsed_us: int  # since the request arrived
    survival: float = 1.0  # of the last node, as far as the speculator tells how sure it is


class StopRule(Protocol):
    """Says why the next draw must not begin, or None."""

    def __call__(self, sight: Sight) -> DraftEnd | None: ...


@dataclass(frozen=True, slots=True)
class Gamma:
    """Stops when the draft has as many levels as were asked for."""

    num_levels: int

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return DraftEnd.GAMMA if sight.num_levels >= self.num_levels else None


@dataclass(frozen=True, slots=True)
class Deadline:
    """Stops before the first draw that would begin too late. Fixed when the request arrives."""

    deadline_us: int

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return DraftEnd.DEADLINE if sight.elapsed_us > self.deadline_us else None


@dataclass(frozen=True, slots=True)
class Context:
    """Stops where the tokens above the next node no longer fit into what the speculator can read."""

    num_tokens: int

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return DraftEnd.CONTEXT if sight.position + sight.num_levels > self.num_tokens else None


@dataclass(frozen=True, slots=True)
class StepPrice:
    """Stops before a further step below a node so unlikely to hold that the step's time is worth more.

    The step that computes a node's law is over when its confidence is known: then only its position is still to be paid
    for, and `Survival` decides. This rule looks at what was drawn and sent, so at no node that is dropped.
    """

    price: float  # tokens: of a position and of a step's time together

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return DraftEnd.SURVIVAL if sight.num_levels and sight.survival < self.price else None


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The first of several rules that says stop."""

    rules: Sequence[StopRule]

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return next((end for rule in self.rules if (end := rule(sight)) is not None), None)


@dataclass(slots=True)
class Survival:
    """Stops before the node of a chain whose survival would be under the price; keeps what it was told of each node.

    Survival is the product of what the calibration makes of the confidences, down to the node in question. So it looks
    at the shapes of the laws along the path that was drawn and sent, and at the law of the next node, never at what is
    drawn from it. Without a calibration, or at a price of 0, nothing stops it.
    """

    price: float = 0.0  # tokens
    calibration: Calibration | None = None
    confidences: list[float] = field(default_factory=list)  # by node; the last is of one not drawn if it is over
    survival: float = 1.0  # of the last node that may be drawn
    is_over: bool = False  # a node was not worth its price

    def draws(self, probability: float) -> bool:
        """Whether the next node is to be drawn. To be asked once for each node, before it is drawn.

        Args:
            probability: that the node holds, in the drafter's eyes, given its parent; known without the draw.
        """
        return self.weighs(confidence_of(probability))

    def weighs(self, confidence: float) -> bool:
        """The same for a node of which the confidence is known."""
        assert not self.is_over, "nothing hangs below a node that was not drawn"
        self.confidences.append(confidence)
        if self.calibration is not None:
            self.survival *= self.calibration.probability(self.confidences[-1])
            self.is_over = self.survival < self.price
        return not self.is_over
