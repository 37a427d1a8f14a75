"""Attention over paged KV for one flat ragged row, plugged into the model library's own modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pilotfish.engine.batch import Batch, SequenceRows

IMPLEMENTATION = "pilotfish"  # the name our attention has in the model library's registry
KEYWORD = "pilotfish_pass"  # the keyword that carries a pass through the model to every attention layer

_MAX_FOLDED_ROWS = 32  # beyond it, query groups are broadcast: the folded mask would grow with the groups


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's KV of one token."""

    num_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return self.num_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class KVTensors:
    """The KV of all layers: per layer keys and values [1, heads, num_slots, dim], in memory slot by slot.

    Layers are made at their first write, in the shape the model has; `shapes` says them afterwards, so that nobody
    has to guess them from a config.
    """

    def __init__(self, num_slots: int, device: torch.device, shapes: dict[int, LayerShape] | None = None) -> None:
        self.num_slots = num_slots
        self.device = device
        self.shapes: dict[int, LayerShape] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for index, shape in (shapes or {}).items():
            self._make(index, shape)

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer. `key` [1, heads, n, dim] and `value` give the shape at first use."""
        layer = self._layers.get(index)
        if layer is None:
            layer = self._make(index, LayerShape(key.shape[1], key.shape[3], value.shape[3], key.dtype))
        return layer

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        source = torch.tensor(sources, dtype=torch.long, device=self.device)
        destination = torch.tensor(destinations, dtype=torch.long, device=self.device)
        for tensors in self._layers.values():
            for tensor in tensors:
                tensor.index_copy_(2, destination, tensor.index_select(2, source))

    def _make(self, index: int, shape: LayerShape) -> tuple[Tensor, Tensor]:
        self.shapes[index] = shape
        sizes = [(self.num_slots, shape.num_heads, dim) for dim in (shape.key_dim, shape.value_dim)]
        keys, values = (torch.zeros(size, dtype=shape.dtype, device=self.device) for size in sizes)
        layer = keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
        self._layers[index] = layer
        return layer


class Scores(NamedTuple):
    """What a family does to the products of query and key before and in the softmax."""

    scale: float
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [query heads] a score per head that takes part in the softmax and has no value

    @property
    def is_plain(self) -> bool:
        """Whether the fused call of torch can do it."""
        return self.softcap is None and self.sinks is None


class Attention(Protocol):
    """How one pass attends: the interface behind which other kernels (paged ones on CUDA) stand."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores, window: int | None
    ) -> Tensor:
        """Write a layer's KV of the pass, then attend.

        Args:
            layer: index of the layer, whose pages are used.
            query: [1, query heads, n, key_dim].
            key: [1, heads, n, key_dim].
            value: [1, heads, n, value_dim].
            scores: of the family.
            window: a row sees the last `window` positions, its own among them; None: all.

        Returns:
            [1, n, query heads, value_dim].
        """


class TorchAttention:
    """The reference, in plain torch, on any device: one fused call per sequence, never padded.

    Rows of a sequence depend on that sequence alone, and no row's arithmetic on another row's values.
    """

    def __init__(self, batch: Batch, kv: KVTensors, is_rowwise: bool = False) -> None:
        """Prepare a pass.

        Args:
            batch: the pass.
            kv: where keys and values lie.
            is_rowwise: attend row by row, each over exactly what it sees. The shape of a row's arithmetic is then the
                same in every pass, and so are its bits. Costs a call per row instead of one per sequence.
        """
        self._kv = kv
        self._sequences = [_SequenceKeys(sequence, batch, kv.device) for sequence in batch.sequences]
        self._attend = _attend_rowwise if is_rowwise else _attend_fused
        self._num_rows = len(batch)
        slots = batch.slots
        is_run = slots[-1] - slots[0] == len(slots) - 1 and all(b - a == 1 for a, b in pairwise(slots))
        self._run = (slots[0], len(slots)) if is_run else None
        self._slots = None if is_run else torch.tensor(slots, dtype=torch.long, device=kv.device)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scores: Scores,
        window: int | None,
    ) -> Tensor:
        keys, values = self._kv.layer(layer, key, value)
        self._write(keys, key)
        self._write(values, value)
        if len(self._sequences) == 1:
            return self._attend(self._sequences[0], query, keys, values, scores, window)
        out = query.new_empty(1, self._num_rows, query.shape[1], values.shape[3])
        for sequence in self._sequences:
            rows = query.narrow(2, sequence.first_row, sequence.num_rows)
            attended = self._attend(sequence, rows, keys, values, scores, window)
            out.narrow(1, sequence.first_row, sequence.num_rows).copy_(attended)
        return out

    def _write(self, target: Tensor, rows: Tensor) -> None:
        if self._run is not None:
            target.narrow(2, *self._run).copy_(rows)
        else:
            target.index_copy_(2, self._slots, rows)  # type: ignore[arg-type]  # one of the two is there


class _SequenceKeys:
    """Where one sequence's keys lie, and which of them each of its rows sees; made once for all layers."""

    def __init__(self, sequence: SequenceRows, batch: Batch, device: torch.device) -> None:
        self.first_row = sequence.first_row
        self.num_rows = sequence.num_rows
        self._sequence = sequence
        self._device = device
        self._page_size = batch.page_size
        self._positions = batch.position_ids[sequence.first_row : sequence.first_row + sequence.num_rows]
        num_pages = -(-sequence.num_tokens // batch.page_size)
        pages = list(sequence.pages[:num_pages])
        self._is_run = pages == list(range(pages[0], pages[0] + num_pages))
        self._start = pages[0] * batch.page_size
        self._pages = None if self._is_run else torch.tensor(pages, dtype=torch.long, device=device)
        self._masks: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def first_key(self, window: int | None) -> int:
        """The first KV index that any of the rows sees."""
        return 0 if window is None else max(0, self._positions[0] - window + 1)

    def gather(self, layer: Tensor, first_key: int) -> Tensor:
        """[1, heads, keys, dim] the sequence's keys or values from `first_key` on; a view where pages are adjacent."""
        num_tokens = self._sequence.num_tokens
        if self._is_run:
            return layer.narrow(2, self._start + first_key, num_tokens - first_key)
        first_page = first_key // self._page_size
        assert self._pages is not None
        paged = layer[0].transpose(0, 1).view(-1, self._page_size, layer.shape[1], layer.shape[3])
        tokens = paged.index_select(0, self._pages[first_page:]).view(-1, layer.shape[1], layer.shape[3])
        start = first_page * self._page_size
        return tokens[first_key - start : num_tokens - start].transpose(0, 1).unsqueeze(0)

    def select(self, tokens: Tensor, row: int, window: int | None) -> Tensor:
        """[1, heads, keys, dim] of the gathered `tokens` exactly those a row sees, in order of position."""
        sequence = self._sequence
        first_key = 0 if window is None else max(0, self._positions[row] - window + 1)
        node = row - sequence.num_pending
        if sequence.parents is None or node < 0:
            return tokens[:, :, first_key : sequence.num_context + row + 1]
        first_node = sequence.num_context + sequence.num_pending
        path = [first_node + ancestor for ancestor in path_to(sequence.parents, node)]
        index = [*range(first_node), *path][first_key:]
        return tokens.index_select(2, torch.tensor(index, device=self._device))

    def mask(self, window: int | None, num_groups: int, dtype: torch.dtype) -> Tensor | None:
        """[num_groups * rows, keys] 0 where a row sees a key, else -inf; None where all see all.

        The rows are those of the first query group, then those of the second, and so on.
        """
        if self.num_rows == 1:
            return None
        first_key = self.first_key(window)
        is_windowed = window is not None and max(self._positions) - window >= first_key
        cache_key = (window if window is not None and is_windowed else -1, num_groups, dtype)
        mask = self._masks.get(cache_key)
        if mask is None:
            visible = self._visible(first_key, window if is_windowed else None)
            mask = torch.zeros(visible.shape, dtype=dtype, device=self._device)
            mask = mask.masked_fill_(~visible, -torch.inf).repeat(num_groups, 1)
            self._masks[cache_key] = mask
        return mask

    def _visible(self, first_key: int, window: int | None) -> Tensor:
        """[rows, keys] which keys from `first_key` on each row sees."""
        sequence = self._sequence
        num_context, num_rows, num_pending = sequence.num_context, sequence.num_rows, sequence.num_pending
        visible = torch.ones(num_rows, sequence.num_tokens, dtype=torch.bool, device=self._device).tril(num_context)
        if sequence.parents is not None:
            first_node = num_context + num_pending
            visible[num_pending:, first_node:] = ancestor_mask(sequence.parents).to(self._device)
        if window is not None:
            rows = torch.tensor(self._positions, device=self._device)
            keys = torch.cat((torch.arange(num_context, device=self._device), rows))
            visible &= keys > rows[:, None] - window
        return visible[:, first_key:]


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from a child of the root down to `node`."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """[nodes, nodes] True where the column's node is the row's node or an ancestor of it."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def _attend_fused(
    sequence: _SequenceKeys, query: Tensor, keys: Tensor, values: Tensor, scores: Scores, window: int | None
) -> Tensor:
    """[1, rows, query heads, value_dim] attention of one sequence's rows in one call."""
    num_query_heads, num_rows, num_heads = query.shape[1], query.shape[2], keys.shape[1]
    num_groups = num_query_heads // num_heads
    first_key = sequence.first_key(window)
    key, value = sequence.gather(keys, first_key), sequence.gather(values, first_key)
    if scores.is_plain and num_rows > _MAX_FOLDED_ROWS:
        grouped = query.reshape(num_heads, num_groups, num_rows, query.shape[3])
        mask = sequence.mask(window, 1, query.dtype)
        out = _attend_broadcast(grouped, key, value, mask, scores.scale)
    else:
        out = _attend_folded(query, key, value, sequence.mask(window, num_groups, query.dtype), scores)
    return out.reshape(1, num_query_heads, num_rows, values.shape[3]).transpose(1, 2)


def _attend_broadcast(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[heads, groups, rows, value_dim] for many rows: the keys of a head broadcast over its groups, `mask` too.

    `query` [heads, groups, rows, dim], `key` and `value` [1, heads, keys, dim], `mask` [rows, keys].
    """
    num_heads, num_groups, num_rows, _ = query.shape
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or mask is None:
        size = (num_heads, num_groups, key.shape[2], -1)
        keys, values = key.transpose(0, 1).expand(size), value.transpose(0, 1).expand(size)
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    out = query.new_empty(num_heads, num_groups, num_rows, value.shape[3])
    for head in range(num_heads):  # products of bfloat16 are twice as fast here as inside the fused call
        products = torch.matmul(query[head].flatten(0, 1), key[0, head].t()).view(num_groups, num_rows, -1)
        weights = torch.add(mask, products, alpha=scale).softmax(dim=-1)
        torch.matmul(weights.flatten(0, 1), value[0, head], out=out[head].flatten(0, 1))
    return out


def _attend_rowwise(
    sequence: _SequenceKeys, query: Tensor, keys: Tensor, values: Tensor, scores: Scores, window: int | None
) -> Tensor:
    """[1, rows, query heads, value_dim] the same, row by row over exactly the keys each sees."""
    key, value = sequence.gather(keys, 0), sequence.gather(values, 0)
    rows = []
    for row in range(sequence.num_rows):
        row_key, row_value = sequence.select(key, row, window), sequence.select(value, row, window)
        rows.append(_attend_folded(query.narrow(2, row, 1), row_key, row_value, None, scores))
    out = torch.stack([row.reshape(query.shape[1], values.shape[3]) for row in rows])
    return out.unsqueeze(0)


def _attend_folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """[1, heads, groups * rows, value_dim] with the query groups folded into rows, so that keys are read once.

    `query` [1, query heads, rows, dim], `key` and `value` [1, heads, keys, dim], `mask` [groups * rows, keys].
    """
    num_heads = key.shape[1]
    num_groups = query.shape[1] // num_heads
    folded = query.reshape(1, num_heads, num_groups * query.shape[2], query.shape[3])
    if scores.is_plain:
        return scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scores.scale)
    products = torch.matmul(folded, key.transpose(2, 3)) * scores.scale
    if scores.softcap is not None:
        products = torch.tanh(products / scores.softcap) * scores.softcap
    if mask is not None:
        products = products + mask
    if scores.sinks is not None:
        column = scores.sinks.to(products.dtype).view(num_heads, num_groups).repeat_interleave(query.shape[2], dim=1)
        products = torch.cat((products, column[None, :, :, None]), dim=-1)
    weights = products.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights[..., : key.shape[2]], value)


def registered(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What the model library calls in every attention layer: finds the pass in the keywords and attends."""
    attention: Attention | None = options.get(KEYWORD)
    if attention is None:
        raise LookupError(f"{type(module).__name__} does not hand its keywords to its attention")
    if attention_mask is not None:
        raise LookupError(f"{type(module).__name__} brings a mask of its own")
    scale = options.get("scaling")
    scores = Scores(query.shape[3] ** -0.5 if scale is None else scale, options.get("softcap"), options.get("s_aux"))
    layer: Any = module.layer_idx
    return attention.attend(layer, query, key, value, scores, options.get("sliding_window")), None
