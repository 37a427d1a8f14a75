"""One request in service: what it has, what its drafter is doing, and what of that a pass can verify."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from benchmarks.simulator.world import Request, Text


class Decision(NamedTuple):
    """How a session goes on."""

    gamma: int  # nodes of the draft; 0: it runs free
    is_held: bool  # until its draft is there; else it runs on meanwhile
    ahead: int  # nodes of a further round, which the drafter draws while this one is verified; 0: it stops
    expected_tokens: float  # of the pass that carries the draft
    is_exploring: bool = False


PLAIN = Decision(0, is_held=False, ahead=0, expected_tokens=1.0)


@dataclass(slots=True, eq=False)
class Served:
    """One request in service.

    Its drafter's line begins at `base`; node j of it (from 1) is at the verifier at `first_s + j · token_s`.
    """

    request: Request
    text: Text
    number: int
    num_tokens: int = 0
    num_prompt_left: int = 0  # prompt positions not computed yet
    decision: Decision = PLAIN
    base: int = 0
    limit: int = 0  # nodes that a pass may verify
    first_s: float = inf
    token_s: float = 0.0
    is_right: bool = True  # what was committed since `base` is what the line says
    ready_s: float = inf  # when the draft that it is held for is there
    expected_s: float = inf  # the same as foreseen, slack included
    first_token_s: float | None = None
    last_gamma: int = 0
    memory: object = None  # the arm's own

    @property
    def num_context_tokens(self) -> int:
        return self.request.num_prompt_tokens - self.num_prompt_left + self.num_tokens

    def num_arrived(self, now_s: float) -> int:
        """Nodes of the line that are at the verifier."""
        decision = self.decision
        if not decision.gamma or now_s < self.first_s:
            return 0
        there = int((now_s - self.first_s) / self.token_s + 1e-6) if self.token_s > 0.0 else 1 << 30
        return there if decision.ahead else min(there, decision.gamma)

    def num_usable(self, now_s: float) -> int:
        """Nodes that a pass beginning now can verify: what hangs below the tokens that were committed meanwhile."""
        if not self.decision.gamma or not self.is_right:
            return 0
        depth = self.num_tokens - self.base
        return max(0, min(self.num_arrived(now_s) - depth, self.limit))
