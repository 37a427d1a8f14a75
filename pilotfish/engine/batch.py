"""The rows of one pass: what a backend is given. Plain numbers, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in a pass, and where its KV lies.

        KV index    [0, num_context)  in KV already · [num_context, num_context + num_rows)  written by this pass
        rows        [pending committed tokens][draft nodes]

    Pending tokens see everything before them. The draft nodes are the last `len(parents)` rows; node i sees the
    context, all pending rows, its ancestors and itself. At least one row is pending. KV lies in row order; the
    position of a node is its depth, so nodes of one depth share a position but not a slot.
    """

    first_row: int
    num_rows: int
    num_context: int
    pages: Sequence[int]  # page i holds the KV indices [i * page_size, (i + 1) * page_size)
    parents: tuple[int, ...] | None = None  # of the nodes; -1: the last pending row. None: all rows are one chain
    num_prompt: int = 0  # tokens of the prompt; read only by a scripted table model

    @property
    def num_tokens(self) -> int:
        """KV indices in use after this pass."""
        return self.num_context + self.num_rows

    @property
    def num_pending(self) -> int:
        return self.num_rows - (0 if self.parents is None else len(self.parents))


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass: one flat ragged row over many sequences."""

    token_ids: tuple[int, ...]  # [n]
    position_ids: tuple[int, ...]  # [n] num_context + i for a chain, by depth for a tree
    slots: tuple[int, ...]  # [n] where each row's KV goes: page * page_size + offset
    sequences: tuple[SequenceRows, ...]
    logit_rows: tuple[int, ...]  # which of the n rows' logits are wanted, ascending
    page_size: int

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Item:
    """What one sequence brings to a pass."""

    pending: Sequence[int]  # committed tokens not in KV yet, at least one
    num_context: int  # tokens in KV already
    pages: Sequence[int]  # with room for all rows
    nodes: Sequence[int] = ()  # draft tokens
    parents: tuple[int, ...] | None = None  # of the nodes; None: a chain
    num_logits: int = 1  # how many of its last rows want logits: 0 for a prefill chunk, 1 + len(nodes) to verify
    num_prompt: int = 0


def pack(items: Sequence[Item], page_size: int) -> Batch:
    """Lay the items of a pass into one flat ragged row.

    Logits come back in item order: the i-th item's are `num_logits` rows after those of the items before it.
    """
    token_ids: list[int] = []
    position_ids: list[int] = []
    slots: list[int] = []
    sequences: list[SequenceRows] = []
    logit_rows: list[int] = []
    for item in items:
        first_row, parents = len(token_ids), _parents(item)
        num_rows = len(item.pending) + len(item.nodes)
        sequences.append(
            SequenceRows(first_row, num_rows, item.num_context, item.pages, parents, item.num_prompt),
        )
        token_ids += item.pending
        token_ids += item.nodes
        position_ids += _positions(item, parents)
        slots += slots_of(item.pages, item.num_context, item.num_context + num_rows, page_size)
        logit_rows += range(len(token_ids) - item.num_logits, len(token_ids))
    return Batch(tuple(token_ids), tuple(position_ids), tuple(slots), tuple(sequences), tuple(logit_rows), page_size)


def slots_of(pages: Sequence[int], start: int, stop: int, page_size: int) -> list[int]:
    """Slots of the KV indices [start, stop)."""
    return [pages[index // page_size] * page_size + index % page_size for index in range(start, stop)]


def _parents(item: Item) -> tuple[int, ...] | None:
    """The item's parents, None where its nodes form a chain."""
    if item.parents is None or item.parents == tuple(range(-1, len(item.nodes) - 1)):
        return None
    return item.parents


def _positions(item: Item, parents: tuple[int, ...] | None) -> list[int]:
    num_pending = len(item.pending)
    if parents is None:
        return list(range(item.num_context, item.num_context + num_pending + len(item.nodes)))
    positions = list(range(item.num_context, item.num_context + num_pending))
    for parent in parents:
        positions.append(positions[num_pending + parent] + 1)  # parent -1: the last pending row
    return positions
