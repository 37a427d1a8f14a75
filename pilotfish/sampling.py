"""Logits -> p: the law of the next token after every sampling parameter, row by row.

A row is a position: the root of a round or one of its draft nodes. Rows do not influence one another. What is still
to come (penalties, min_p, logit_bias) changes logits or weights of a row and has its place in `probabilities`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pilotfish.distribution import Distribution
from pilotfish.messages import Sampling

_BUCKETS: Final = {  # integer that has the bits, how many are skipped, numbers that are left in [0, 1]
    torch.float32: (torch.int32, 18, 4065),
    torch.float64: (torch.int64, 47, 32737),
}
_SMALLEST_TEMPERATURE = 1e-30  # what float32 can divide by
FEW: Final = 4096  # candidates of all rows together, up to which they are sorted whole
_HAIR: Final = 1e-6  # float32 rounds: so much less is sure


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


def truncate(weights: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Set to 0, in place, what top_k and top_p cut off.

    Args:
        weights: [R, V], in [0, 1]; rows need not sum to 1. A row with a NaN becomes anything.
        sampling: R of them.

    Returns:
        `weights`.
    """
    num_ids, device = weights.shape[-1], weights.device
    top_k = torch.tensor([num_ids if one.top_k is None else min(one.top_k, num_ids) for one in sampling], device=device)
    top_p = torch.tensor([one.top_p or 1.0 for one in sampling], dtype=torch.float64, device=device)
    mass = weights.sum(-1, dtype=torch.float64)
    places = (weights >= _least(weights, top_k, top_p, mass)[:, None]).view(-1).nonzero()[:, 0]  # row · V + id
    if any(one.top_k is not None for one in sampling):
        values = weights.take(places)
        places = places.take(_largest(_rows(places, weights), values, torch.ones_like(values), top_k.double()))
        left = torch.bincount(_rows(places, weights), weights.take(places).double(), len(weights))
        mass = left.where(top_k < num_ids, mass)
    if any(one.top_p is not None for one in sampling):
        values = weights.take(places)
        wanted = (top_p * mass).masked_fill_(top_p == 1.0, torch.inf)
        places = places.take(_largest(_rows(places, weights), values, values, wanted))
    values = weights.take(places)
    return weights.zero_().put_(places, values)


def _rows(places: Tensor, weights: Tensor) -> Tensor:
    """The row of each place, [N]; they are in order, so nothing need be divided."""
    num_rows, num_ids = weights.shape
    ends = torch.arange(num_rows + 1, device=places.device) * num_ids
    return torch.arange(num_rows, device=places.device).repeat_interleave(torch.searchsorted(places, ends).diff())


def _least(weights: Tensor, top_k: Tensor, top_p: Tensor, mass: Tensor) -> Tensor:
    """A bound that what is kept does not lie under: by top_k the k-th largest.

    By top_p alone a share of the mean: ids under the bound have less than V times it together, which is what may go.

    Args:
        weights: [R, V].
        top_k: [R]; V: none.
        top_p: [R]; 1: none.
        mass: [R], of each row.

    Returns:
        [R].
    """
    num_ids = weights.shape[-1]
    least = ((1.0 - _HAIR) * (1.0 - top_p) * mass / num_ids).to(weights.dtype)
    is_bounded = top_k < num_ids
    if not is_bounded.any():
        return least
    largest = weights.topk(int(top_k.where(is_bounded, 1).max())).values
    return largest.gather(1, (top_k - 1).clamp(max=largest.shape[1] - 1)[:, None])[:, 0].where(is_bounded, least)


def _largest(rows: Tensor, values: Tensor, measure: Tensor, wanted: Tensor) -> Tensor:
    """Where they are, of each row as few of the largest as together measure what is wanted; of equals the first.

    Where there are many nothing is sorted but one bucket a row: floats that are not negative are ordered as their bits
    are, and the first of these tell the buckets. A histogram of what they measure says in which a row has what is
    wanted. (CUDA adds it up in no fixed order, so there a cut may fall to either side of what float64 cannot tell. It
    was never run there.)

    Args:
        rows: [N], in order; each in [0, R).
        values: [N], in [0, 1].
        measure: [N], of each value; not negative.
        wanted: [R], float64; more than there is keeps everything.

    Returns:
        Indices of what is kept, in order.
    """
    if len(rows) > FEW:
        is_kept, order, above = _in_buckets(rows, values, measure, wanted)
    else:
        is_kept, order = torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows), device=rows.device)
        above = torch.zeros_like(wanted)
    order = order.take(values.take(order).argsort(descending=True, stable=True))
    order = order.take(rows.take(order).argsort(stable=True))
    rows = rows.take(order)
    before = functional.pad(measure.take(order).cumsum(0, dtype=torch.float64), (1, 0))
    first = torch.searchsorted(rows, torch.arange(len(wanted), device=rows.device))
    has_more = above.take(rows) + before[:-1] - before.take(first).take(rows) >= wanted.take(rows)
    is_kept[order[has_more]] = False
    return is_kept.nonzero()[:, 0]


def _in_buckets(rows: Tensor, values: Tensor, measure: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `_largest` keeps at the most, the indices in each row's last bucket, and what those above it measure."""
    integer, num_skipped, num_buckets = _BUCKETS[values.dtype]
    bucket = (values.view(integer) >> num_skipped).clamp_(0, num_buckets - 1).long()  # the clamp: NaN has any bits
    measured = torch.bincount(rows * num_buckets + bucket, measure.double(), len(wanted) * num_buckets)
    reached = measured.view(len(wanted), num_buckets).flip(-1).cumsum(-1).flip(-1)  # by a bucket and those above it
    last = ((reached >= wanted[:, None]).sum(-1) - 1).clamp_(min=0)  # the lowest that is needed
    above = functional.pad(reached, (0, 1)).gather(1, last[:, None] + 1)[:, 0]
    last_of = last.take(rows)
    return bucket >= last_of, (bucket == last_of).nonzero()[:, 0], above
