"""Lines of nodes, one below the other: the likeliest, and those beside it.

While a draft is verified the drafter has time. It draws what would come next for the verdicts that are likeliest beside
the one that keeps all: the draft kept down to a node, and the runner-up in that node's place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from drafter.speculators import RunnerUp
from drafter.stopping import Survival
from pilotfish.confidence import confidence_of
from pilotfish.messages import SideLines

RIGHT = 0.5  # of the tokens that are committed in a node's place, those that are its runner-up
LEAST_CHANCE = 0.01  # that a side line's first token is what the verdict commits; lines of less are not drawn


class Line(NamedTuple):
    """Nodes of a session that hang below what is committed, one below the other."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()  # by node; (): not told
    runners_up: tuple[RunnerUp, ...] = ()  # likewise

    def below(self, tokens: Sequence[int]) -> Line:
        """What of it hangs below tokens that came to be committed."""
        num_tokens = len(tokens)
        if not self.begins_with(tokens):
            return Line()
        return Line(self.tokens[num_tokens:], self.confidences[num_tokens:], self.runners_up[num_tokens:])

    def begins_with(self, tokens: Sequence[int]) -> bool:
        return self.tokens[: len(tokens)] == tuple(tokens)


@dataclass(slots=True)
class Branch:
    """A line that grows: the likeliest, or one that leaves it with the runner-up of one of its nodes."""

    tokens: list[int]  # from the first level on
    survival: Survival  # keeps the confidences; beside the likeliest it has no price
    runners_up: list[RunnerUp] | None  # None: nobody wants to know
    num_above: int = 0  # of its nodes, those that are the likeliest line's
    chance: float = 1.0  # that its first own node is what is committed there
    nodes: list[int] = field(default_factory=list)  # place of each of its own in the draft
    is_over: bool = False  # no more of it is drawn

    @property
    def line(self) -> Line:
        confidences = tuple(self.survival.confidences[: len(self.tokens)])
        return Line(tuple(self.tokens), confidences, tuple(self.runners_up or ()))

    def chance_of(self, node: int) -> float:
        """That a node is what is committed, given that those above it are."""
        calibration, told = self.survival.calibration, self.survival.confidences
        if calibration is not None and told:
            return calibration.probability(told[node])
        return 1.0 - self.runners_up[node].share if self.runners_up else 1.0

    @property
    def chance_of_all(self) -> float:
        """That all its nodes are what is committed."""
        return math.prod(self.chance_of(node) for node in range(len(self.tokens)))

    def aside(self, level: int, chance: float) -> Branch:
        """The line that leaves it at a level."""
        assert self.runners_up is not None
        token, share = self.runners_up[level]
        instead = RunnerUp(self.tokens[level], 1.0 - share)
        confidences = self.survival.confidences
        told = [*confidences[:level], confidence_of(share)] if confidences else []
        tokens, runners_up = [*self.tokens[:level], token], [*self.runners_up[:level], instead]
        return Branch(tokens, Survival(confidences=told), runners_up, level, chance)


def likeliest_asides(main: Branch, wanted: SideLines) -> list[Branch]:
    """The lines to draw beside the likeliest, the likeliest last; none where the runners-up are not all known."""
    if len(main.runners_up or ()) != len(main.tokens):
        return []
    chances, survival = [], 1.0
    for level in range(min(len(main.tokens), wanted.num_levels)):
        holds = main.chance_of(level)
        chances.append(survival * (1.0 - holds) * RIGHT)
        survival *= holds
    best = sorted(range(len(chances)), key=lambda level: -chances[level])[: wanted.num_lines]
    return [main.aside(level, chances[level]) for level in reversed(best) if chances[level] >= LEAST_CHANCE]
