"""Fixed γ at a fixed tempo, and plain decoding: what a plan is compared with. Many arms and seeds at once, on arrays.

The verifier ticks: a pass starts `tempo` after the last one began, or when that has ended, and takes what is there. A
session that speculates is away for γ draft steps and the round trip, then rides in the next pass. One unit of time is a
memory-bound pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MAX_GAMMA = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One load."""

    alphas: tuple[float, ...]  # of each session
    round_trips: tuple[float, ...]  # of each session, drafter and verifier together, in passes
    token: float  # the drafter's time per token, in passes
    ridge: float
    slope: float
    jitter: float  # of the time away
    jitter_passes: float

    def pass_length(self, positions: Array) -> Array:
        """T(n)."""
        share = positions / self.ridge
        return np.asarray(self.slope * share + (1.0 - self.slope) * np.maximum(1.0, share), dtype=np.float64)


def agreeing_runs(cell: Cell, seeds: Sequence[int], num_positions: int) -> NDArray[np.int8]:
    """Agreeing positions in a row from each one on, [seeds, sessions, positions]; the text that arms share."""
    from benchmarks.simulator.world import Phase, Request, Text

    runs = np.zeros((len(seeds), len(cell.alphas), num_positions + 1), dtype=np.int8)
    for row, seed in enumerate(seeds):
        for number, alpha in enumerate(cell.alphas):
            text = Text(Request(0.0, np.inf, (Phase(np.inf, alpha),), 0.0), seed, number)
            agrees = np.array([text.run(position, 1) for position in range(num_positions)], dtype=np.int8)
            column = runs[row, number]
            for position in range(num_positions - 1, -1, -1):
                column[position] = min(MAX_GAMMA, column[position + 1] + 1) if agrees[position] else 0
    return runs


def rates(
    cell: Cell, arms: Sequence[tuple[int, float]], runs: NDArray[np.int8], horizon: float, warm: float, seed: int
) -> Array:
    """Tokens per pass length of each (γ, tempo) and text, [arms, texts]."""
    chance = np.random.default_rng(seed)
    num_texts, num_sessions, _ = runs.shape
    shape = (len(arms), num_texts, num_sessions)
    gammas = np.array([gamma for gamma, _ in arms])[:, None, None]
    tempos = np.array([tempo for _, tempo in arms])[:, None]
    away = gammas * cell.token + np.where(gammas > 0, np.array(cell.round_trips), 0.0)
    ready = np.where(gammas > 0, away * (1.0 + cell.jitter * chance.random(shape)) + 0.1 * chance.random(shape), 0.0)
    now, counted = np.zeros(shape[:2]), np.zeros(shape[:2])
    place = np.zeros(shape, dtype=np.int64)
    texts, sessions = np.arange(num_texts)[None, :, None], np.arange(num_sessions)[None, None]
    last = runs.shape[2] - 1
    while (now < horizon).any():
        is_there = ready <= now[..., None]
        is_empty = ~is_there.any(-1)
        if is_empty.any():
            now = np.where(is_empty, ready.min(-1), now)
            is_there = ready <= now[..., None]
        end = now + cell.pass_length((is_there * (gammas + 1.0)).sum(-1))
        committed = np.where(is_there, np.minimum(runs[texts, sessions, np.minimum(place, last)], gammas) + 1, 0)
        place += committed
        counted += np.where((end > warm) & (end < horizon), committed.sum(-1), 0)
        late = away * (1.0 + cell.jitter * chance.random(shape)) + cell.jitter_passes * chance.random(shape)
        back = np.where(gammas > 0, end[..., None] + late, 0.0)
        ready = np.where(is_there, back, ready)
        now = np.where(now < horizon, np.maximum(end, now + tempos), now)
    return np.asarray(counted / (horizon - warm), dtype=np.float64)
