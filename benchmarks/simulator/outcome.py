"""What a simulation measured after its warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple


class Finished(NamedTuple):
    """A request that was served."""

    first_token_s: float  # from its arrival
    token_s: float  # mean time per further token
    num_tokens: int
    token_target_s: float = inf  # that the request stated


@dataclass(slots=True)
class Outcome:
    """Counts, and times of requests."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_positions: int = 0
    num_rounds: int = 0
    num_switches: int = 0  # rounds whose γ differed from the session's last, exploring aside
    num_passes: int = 0
    busy_s: float = 0.0
    num_arrived: int = 0
    finished: list[Finished] = field(default_factory=list)
    tokens_by_session: dict[int, int] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0

    def goodput(self, first_token_s: float = inf, token_s: float = inf) -> float:
        """Tokens per second of finished requests that met both targets, and their own."""
        good = (
            f.num_tokens
            for f in self.finished
            if f.first_token_s <= first_token_s and f.token_s <= min(token_s, f.token_target_s)
        )
        return sum(good) / self.seconds if self.seconds else 0.0

    @property
    def amplification(self) -> float | None:
        """Positions verified per token committed; None where nothing was."""
        return self.num_positions / self.num_tokens if self.num_tokens else None

    @property
    def switches_per_round(self) -> float:
        return self.num_switches / self.num_rounds if self.num_rounds else 0.0


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that so large a share lies under; None of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
