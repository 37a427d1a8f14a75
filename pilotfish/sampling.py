"""Logits -> p: the law of the next token after every sampling parameter, row by row.

A row is a position: the root of a round or one of its draft nodes. Rows do not influence one another. What is still
to come (penalties, min_p, logit_bias) changes logits or weights of a row and has its place in `probabilities`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pilotfish.distribution import Distribution
from pilotfish.messages import Sampling

NUM_SORTED = (256, 4096, 16384)  # a nucleus is looked for among so many of the largest, then by a full sort
_SMALLEST_TEMPERATURE = 1e-30  # what float32 can divide by


def probabilities(logits: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """The law p of each row: temperature, then top_k, then top_p of what top_k left.

    Ids that tie where a cut falls are kept from the lowest on. T = 0 is the law that is certain of the largest logit
    (of the lowest id, if several are).

    Args:
        logits: [R, V]; float64 stays float64, everything else becomes float32.
        sampling: R of them.

    Returns:
        [R, V], rows sum to 1; a row whose logits have no law (NaN, +inf, nothing but -inf) is NaN throughout.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    largest = logits.amax(-1, keepdim=True)
    weights = _weights(logits, largest, sampling)
    mass = weights.sum(-1, keepdim=True)
    return weights.div_(mass.masked_fill_(~largest.isfinite(), torch.nan))


def _weights(logits: Tensor, largest: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """The law up to a factor a row."""
    greedy = [row for row, parameters in enumerate(sampling) if parameters.is_greedy]
    if len(greedy) == len(logits):
        return _one_hot(logits)
    temperatures = [max(parameters.temperature, _SMALLEST_TEMPERATURE) for parameters in sampling]
    temperature = torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)
    weights = logits.sub(largest).div_(temperature[:, None]).exp_()
    truncated = [row for row, parameters in enumerate(sampling) if _truncates(parameters)]
    if len(truncated) == len(weights):
        truncate(weights, sampling)
    elif truncated:
        weights[truncated] = truncate(weights[truncated], [sampling[row] for row in truncated])
    if greedy:
        weights[greedy] = _one_hot(logits[greedy])
    return weights


def _one_hot(logits: Tensor) -> Tensor:
    return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)


class Greedy(NamedTuple):
    """The likeliest id of each row."""

    tokens: Tensor  # [R], int64; the lowest id of those that tie
    is_sound: Tensor  # [R], bool; False: the row's logits have no law


def greedy(logits: Tensor) -> Greedy:
    """What T = 0 says, without the probabilities."""
    return Greedy(logits.argmax(-1), logits.amax(-1).isfinite())


def quantised(law: Tensor, num_ids: int, num_bits: int) -> list[Distribution]:
    """What a drafter draws from and sends: the likeliest `num_ids` of each row in weights of `num_bits` bits.

    Row by row the same as `distribution.quantise` of the largest probabilities.

    Args:
        law: [R, V], rows sum to 1, none of them NaN.
    """
    values, ids = law.double().topk(min(num_ids, law.shape[-1]))
    weights = (values / values[:, :1] * ((1 << num_bits) - 1)).round().long()
    return [
        Distribution(tuple(row_ids[:count]), tuple(row_weights[:count]))
        for row_ids, row_weights, count in zip(
            ids.tolist(), weights.tolist(), (weights > 0).sum(-1).tolist(), strict=True
        )
    ]


def _truncates(sampling: Sampling) -> bool:
    is_nucleus = sampling.top_p is not None and sampling.top_p < 1.0
    return not sampling.is_greedy and (is_nucleus or sampling.top_k is not None)


def truncate(weights: Tensor, sampling: Sequence[Sampling], num_sorted: Sequence[int] = NUM_SORTED) -> Tensor:
    """Set to 0, in place, what top_k and top_p cut off.

    Args:
        weights: [R, V], not negative; rows need not sum to 1.
        sampling: R of them.
        num_sorted: how many of the largest to look among, first, then for the rows where that was too few, …

    Returns:
        `weights`.
    """
    num_ids = weights.shape[-1]
    rows, part = list(range(len(weights))), weights
    for size in (*num_sorted, num_ids):
        missed = _keep_largest(part, [sampling[row] for row in rows], min(size, num_ids))
        if part is not weights:
            weights[rows] = part  # rows that were missed are as they were
        if not missed:
            break
        rows = [rows[row] for row in missed]
        part = weights[rows]
    return weights


def _keep_largest(weights: Tensor, sampling: Sequence[Sampling], num_sorted: int) -> list[int]:
    """Truncate, in place, the rows where what is kept is among the `num_sorted` largest; the other rows come back."""
    num_ids = weights.shape[-1]
    values, ids = weights.topk(min(num_sorted + 1, num_ids))  # one more, to see whether the last one kept has an equal
    values, ids = (part.contiguous() for part in (values, ids))
    count = _count_kept(weights, values, sampling)
    last = values.gather(1, (count - 1).clamp(max=values.shape[1] - 1)[:, None])
    is_cut = torch.arange(values.shape[1], device=weights.device) >= count[:, None]
    is_tied = ((values == last) & is_cut & (last > 0)).any(-1)
    counts, ties = torch.stack([count, is_tied.long()]).tolist()
    missed = [row for row, size in enumerate(counts) if size > num_sorted]
    whole = {row: weights[row].clone() for row in missed}
    tied = {row: _lowest_of_tied(weights[row], last[row, 0], counts[row]) for row, tie in enumerate(ties) if tie}
    weights.zero_().scatter_(1, ids, values.masked_fill_(is_cut, 0.0))
    for row, kept in (tied | whole).items():
        weights[row] = kept
    return missed


def _count_kept(weights: Tensor, values: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """How many of the largest each row keeps, [R]; more than `values` [R, N], sorted, holds where they do not tell."""
    num_ids = weights.shape[-1]
    top_k = [num_ids if row.top_k is None else min(row.top_k, num_ids) for row in sampling]
    top_p = [1.0 if row.top_p is None else row.top_p for row in sampling]
    limit = torch.tensor(top_k, device=weights.device)
    share = torch.tensor(top_p, dtype=torch.float64, device=weights.device)
    cumulated = values.cumsum(-1, dtype=torch.float64)
    mass_of_top = cumulated.gather(1, (limit - 1).clamp(max=values.shape[1] - 1)[:, None])[:, 0]
    mass = mass_of_top.where(limit <= values.shape[1], weights.sum(-1, dtype=torch.float64))
    num_nucleus = (cumulated < (share * mass)[:, None]).sum(-1) + 1  # as few as reach the share
    is_told = (share < 1.0) & ((limit <= values.shape[1]) | (limit == num_ids))  # else the mass of top_k is not known
    return torch.minimum(limit, num_nucleus.where(is_told, num_ids))


def _lowest_of_tied(weights: Tensor, last: Tensor, count: int) -> Tensor:
    """The `count` largest of a row [V], where the smallest of them, `last`, has equals outside: lowest ids first."""
    above = weights > last
    tied = (weights == last).nonzero()[: count - int(above.sum()), 0]
    kept = weights.where(above, 0.0)
    kept[tied] = last
    return kept
