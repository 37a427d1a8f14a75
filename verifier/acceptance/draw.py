"""Drawing one token from a row of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pilotfish import noise

NUM_CACHED: Final = 200_000  # ids whose noise is made at a time


def draw(weights: Tensor, uniforms: Sequence[float]) -> list[int]:
    """One id a row, by inversion: the first whose cumulated weight exceeds u * total.

    An id of weight 0 is never drawn: u < 1, and the first that exceeds has itself added something. The second
    condition below keeps that true where a device adds up in another order.

    Args:
        weights: [B, V] float64, not negative, each row with a positive sum.
        uniforms: B numbers in [0, 1).
    """
    cumulated = weights.cumsum(-1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=weights.device) * cumulated[:, -1]
    is_beyond = (cumulated > points[:, None]) & (weights > 0)
    ids: list[int] = is_beyond.to(torch.uint8).argmax(-1).tolist()
    return ids


def draw_by_noise(law: Tensor, keys: Sequence[int]) -> list[int]:
    """One id a row, by the noise of `match`: argmax of log p + Gumbel, as argmax of p / exponential.

    On a processor a few rows at a time: what is made of them then stays in its cache, which halves the time.

    Only ids with p > 0 get noise. Ties go to the lowest id.

    Args:
        law: [B, V], each row with a positive sum.
        keys: B keys of `noise`, one for each row's seed and position.
    """
    num_rows = max(1, NUM_CACHED // law.shape[-1]) if law.device.type == "cpu" else len(law)
    return [
        token
        for start in range(0, len(law), num_rows)
        for token in _draw_by_noise(law[start : start + num_rows], keys[start : start + num_rows])
    ]


def _draw_by_noise(law: Tensor, keys: Sequence[int]) -> list[int]:
    row, ids = law.nonzero(as_tuple=True)
    starts = torch.tensor(keys, device=law.device)
    scores = law[row, ids].double() / noise.exponentials_of(starts[row], ids)
    best = scores.new_zeros(len(law)).scatter_reduce(0, row, scores, "amax")
    is_best = scores == best[row]
    lowest = torch.full((len(law),), law.shape[-1], device=law.device)
    drawn: list[int] = lowest.scatter_reduce(0, row[is_best], ids[is_best], "amin").tolist()
    return drawn
