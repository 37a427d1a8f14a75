"""Whether to draw another node: decided before the draw, from what may be looked at.

What is verified must not depend on what is dropped (docs/law.md). A rule that saw the token just drawn could keep it
back; here it cannot, since it is asked before the token exists, and what was drawn before has been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pilotfish.messages import DraftEnd


@dataclass(frozen=True, slots=True)
class Sight:
    """All that a rule may look at."""

    position: int  # committed tokens
    num_levels: int  # of the draft so far
    elapsed_us: int  # since the request arrived


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
class FirstOf:
    """The first of several rules that says stop."""

    rules: Sequence[StopRule]

    def __call__(self, sight: Sight) -> DraftEnd | None:
        return next((end for rule in self.rules if (end := rule(sight)) is not None), None)
