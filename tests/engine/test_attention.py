"""Attention over pages equals attention written out, for every shape of sequence."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pilotfish.engine.attention import KVTensors, Scores, TorchAttention, ancestor_mask, path_to
from pilotfish.engine.batch import Item, pack

HEADS, GROUPS, DIM, PAGE = 2, 3, 8, 4


def written_out(
    query: Tensor, key: Tensor, value: Tensor, positions: list[int], scores: Scores, window: int | None
) -> Tensor:
    """[query heads, DIM] one row over the keys it may see, in float64, head by head."""
    visible = [i for i, position in enumerate(positions) if window is None or position > positions[-1] - window]
    out = []
    for head in range(HEADS * GROUPS):
        keys, values = key[visible, head // GROUPS].double(), value[visible, head // GROUPS].double()
        products = keys @ query[head].double() * scores.scale
        if scores.softcap is not None:
            products = scores.softcap * torch.tanh(products / scores.softcap)
        weights = products.exp()
        total = weights.sum()
        if scores.sinks is not None:
            total = total + scores.sinks[head].double().exp()
        out.append(weights @ values / total)
    return torch.stack(out)


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int, tuple[int, ...], bool]]:
    """(context, pending, parents, is scattered) of one to three sequences."""
    result = []
    for _ in range(draw(st.integers(1, 3))):
        parents = tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 6))))
        result.append((draw(st.integers(0, 13)), draw(st.integers(1, 5)), parents, draw(st.booleans())))
    return result


@settings(max_examples=60, deadline=None)
@given(
    shapes=sequences(),
    window=st.sampled_from([None, 1, 3, 40]),
    softcap=st.sampled_from([None, 2.0]),
    has_sinks=st.booleans(),
    is_rowwise=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_attention_written_out(
    device: str,
    shapes: list[tuple[int, int, tuple[int, ...], bool]],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    is_rowwise: bool,
    seed: int,
) -> None:
    """Any mix of contexts, chains and trees, in adjacent or scattered pages, windowed, capped, with sinks."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    free = torch.randperm(24, generator=generator).tolist()
    adjacent = itertools.count(24)
    kv = KVTensors(48 * PAGE, torch.device(device))
    items, histories, batches = [], [], []
    for context, pending, parents, is_scattered in shapes:
        total = context + pending + len(parents)
        num_pages = -(-total // PAGE)
        pages = [free.pop() for _ in range(num_pages)] if is_scattered else list(itertools.islice(adjacent, num_pages))
        items.append(Item([0] * pending, context, pages, [0] * len(parents), parents))
        histories.append((random(total, HEADS, DIM), random(total, HEADS, DIM), random(total, HEADS * GROUPS, DIM)))
        if context:
            batches.append((pack([Item([0] * context, 0, pages)], PAGE), len(items) - 1, 0, context))
    scores = Scores(0.4, softcap, random(HEADS * GROUPS).to(device) if has_sinks else None)

    def run(batch_items: list[tuple[int, int, int]], attention: TorchAttention) -> Tensor:
        def rows(part: int) -> Tensor:
            joined = torch.cat([histories[i][part][start:stop] for i, start, stop in batch_items])
            return joined.transpose(0, 1).unsqueeze(0).to(device)

        return attention.attend(0, rows(2), rows(0), rows(1), scores, window)

    for batch, i, start, stop in batches:
        run([(i, start, stop)], TorchAttention(batch, kv))
    everything = [(i, shape[0], len(histories[i][0])) for i, shape in enumerate(shapes)]
    got = run(everything, TorchAttention(pack(items, PAGE), kv, is_rowwise))[0].cpu()

    expected = []
    for (context, pending, parents, _), (key, value, query) in zip(shapes, histories, strict=True):
        first_node = context + pending
        for row in range(context, len(key)):
            path = path_to(parents, row - first_node) if row >= first_node else []
            indices = [*range(min(row + 1, first_node)), *(first_node + node for node in path)]
            positions = list(range(len(indices)))
            own = scores if scores.sinks is None else Scores(0.4, softcap, scores.sinks.cpu())
            expected.append(written_out(query[row], key[indices], value[indices], positions, own, window))
    torch.testing.assert_close(got.double(), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_long_prefill_equals_row_by_row(dtype: torch.dtype, tolerance: float, device: str) -> None:
    """Chunks too long to fold query groups into rows give what single rows give."""
    generator = torch.Generator().manual_seed(0)
    kv = KVTensors(100, torch.device(device))
    query = torch.randn(1, HEADS * GROUPS, 90, DIM, generator=generator).to(device, dtype)
    key, value = (torch.randn(1, HEADS, 90, DIM, generator=generator).to(device, dtype) for _ in range(2))
    batch = pack([Item([0] * 90, 0, range(25))], PAGE)
    for window in (None, 17):
        whole = TorchAttention(batch, kv).attend(0, query, key, value, Scores(0.4), window)
        rows = TorchAttention(batch, kv, is_rowwise=True).attend(0, query, key, value, Scores(0.4), window)
        torch.testing.assert_close(whole, rows, rtol=0, atol=tolerance)


def test_ancestor_mask_is_the_tree() -> None:
    """A node sees itself and its ancestors and nobody else."""
    assert ancestor_mask((-1, 0, 0, -1, 2)).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_kv_copies_read_before_they_write(device: str) -> None:
    """Overlapping moves copy what was there before."""
    kv = KVTensors(6, torch.device(device))
    key = torch.arange(6.0, device=device).view(1, 1, 6, 1)
    TorchAttention(pack([Item([0] * 6, 0, [0])], 6), kv).attend(0, key, key, key, Scores(1.0), None)
    kv.copy([2, 3, 5], [1, 2, 3])
    keys, values = kv.layer(0, key, key)
    assert keys.flatten().tolist() == values.flatten().tolist() == [0, 2, 3, 5, 4, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_do_not_feel_one_another(dtype: torch.dtype, device: str) -> None:
    """Other values in other rows of the pass, of the same and of other sequences, leave a row's bits as they are."""
    generator = torch.Generator().manual_seed(0)

    def rows(heads: int) -> Tensor:
        return torch.randn(1, heads, 13, DIM, generator=generator).to(device, dtype)

    batch = pack([Item([0] * 2, 0, [3, 1], [0] * 4, (-1, 0, 0, -1)), Item([0] * 7, 0, [4, 5])], PAGE)
    inputs, others = (rows(HEADS * GROUPS), rows(HEADS), rows(HEADS)), (rows(HEADS * GROUPS), rows(HEADS), rows(HEADS))
    kept = [0, 1, 3]  # the pending rows and node 1, whose path is 0, 1
    mixed = []
    for mine, other in zip(inputs, others, strict=True):
        mixed.append(other.clone())
        mixed[-1][:, :, [0, 1, 2, 3]] = mine[:, :, [0, 1, 2, 3]]
    outs = [
        TorchAttention(batch, KVTensors(32, torch.device(device))).attend(0, query, key, value, Scores(0.4), None)
        for query, key, value in (inputs, mixed)
    ]
    assert torch.equal(outs[0][:, kept], outs[1][:, kept])
    assert not torch.equal(outs[0][:, 5:], outs[1][:, 5:])
