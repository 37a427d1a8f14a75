"""How long drafts take: t(gamma) = start_us + gamma · token_us, measured."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

NUM_ROUNDS = 64  # the estimate is over so many of the latest


class Arrival(NamedTuple):
    """Nodes that were there so long after the request."""

    num_nodes: int  # of the draft so far
    elapsed_us: int


class DraftTimes:
    """Medians over the latest rounds, which one slow round does not move."""

    def __init__(self) -> None:
        self._start_us: deque[float] = deque(maxlen=NUM_ROUNDS)
        self._token_us: deque[float] = deque(maxlen=NUM_ROUNDS)

    def add(self, first: Arrival, last: Arrival) -> None:
        """Learn from a round: when its first nodes were there, and when its last."""
        if last.num_nodes > first.num_nodes:
            self._token_us.append((last.elapsed_us - first.elapsed_us) / (last.num_nodes - first.num_nodes))
        token_us = median(self._token_us) if self._token_us else 0.0
        self._start_us.append(max(0.0, first.elapsed_us - first.num_nodes * token_us))

    @property
    def start_us(self) -> int:
        """0: not measured yet."""
        return max(1, round(median(self._start_us))) if self._start_us else 0

    @property
    def token_us(self) -> int:
        """0: not measured yet. 1 where all nodes came at once, as a copy's do."""
        if not self._start_us:
            return 0
        return max(1, round(median(self._token_us))) if self._token_us else 1
