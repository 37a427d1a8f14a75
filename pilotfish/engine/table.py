"""A table model as a backend: real slots, real page tables, a law that is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pilotfish.engine.batch import Batch, SequenceRows, slots_of
from pilotfish.tablefile import TableFile


class TableBackend:
    """Runs a `TableFile`. Its KV is each slot's token and position, and its only view of the past.

    What a row follows is read back through the page table and, for draft nodes, through their ancestors, so faults of
    paging, rollback or compaction change the text, or are caught by the position that is stored beside the token.
    """

    def __init__(
        self, table: TableFile, device: torch.device | str = "cpu", wait: Callable[[float], None] = time.sleep
    ) -> None:
        self.table = table
        self.name = table.name
        self.vocabulary_size = table.vocabulary_size
        self.context_length = table.context_length
        self.dtype = "float64"
        self.device = torch.device(device)
        self.kv_bytes_per_token = 16
        self._wait = wait
        self._law = _tabulate(table)  # [V + 1, V + 1, V] log p by the last two tokens; id V: none
        self._tokens = torch.empty(0, dtype=torch.long)  # [slots]
        self._positions = torch.empty(0, dtype=torch.long)  # [slots]

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the KV. Slots nobody wrote hold position -1, which no row may see."""
        self._tokens = torch.zeros(num_pages * page_size, dtype=torch.long)
        self._positions = torch.full((num_pages * page_size,), -1, dtype=torch.long)

    def forward(self, batch: Batch) -> Tensor:
        """Log p at the wanted rows, float64; takes as long as the table says a pass takes.

        Raises:
            RuntimeError: a row's context is not what was written for it; the engine's fault.
        """
        started = time.perf_counter()
        slots = torch.tensor(batch.slots, dtype=torch.long)
        self._tokens[slots] = torch.tensor(batch.token_ids, dtype=torch.long)
        self._positions[slots] = torch.tensor(batch.position_ids, dtype=torch.long)
        wanted = set(batch.logit_rows)
        logits = [row for sequence in batch.sequences for row in self._rows(batch, sequence, wanted)]
        stacked = torch.stack(logits) if logits else torch.empty(0, self.vocabulary_size, dtype=torch.float64)
        remaining_s = self.table.pass_time_us(len(batch)) / 1e6 - (time.perf_counter() - started)
        if self.table.pass_us and remaining_s > 0:
            self._wait(remaining_s)
        return stacked.to(self.device)

    def forward_parts(self, batch: Batch, max_bytes: int = 0) -> Iterator[tuple[int, Tensor]]:
        """All in one part: a table has few ids."""
        yield 0, self.forward(batch)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        source, destination = torch.tensor(sources, dtype=torch.long), torch.tensor(destinations, dtype=torch.long)
        self._tokens[destination] = self._tokens[source]
        self._positions[destination] = self._positions[source]

    def _rows(self, batch: Batch, sequence: SequenceRows, wanted: set[int]) -> list[Tensor]:
        """[V] log p of each wanted row of a sequence, its last two tokens read from KV."""
        num_tokens, num_committed = sequence.num_tokens, sequence.num_context + sequence.num_pending
        slots = torch.tensor(slots_of(sequence.pages, 0, num_tokens, batch.page_size), dtype=torch.long)
        tokens, positions = self._tokens[slots].tolist(), self._positions[slots].tolist()
        if positions[:num_committed] != list(range(num_committed)):
            raise RuntimeError(f"rows should see positions 0 to {num_committed - 1}, their KV holds {positions}")
        laws = []
        for row in range(sequence.num_rows):
            if sequence.first_row + row not in wanted:
                continue
            index = sequence.num_context + row
            before = _parent_index(sequence, row)
            position = positions[index]
            if before >= 0 and positions[before] != position - 1:
                raise RuntimeError(f"the row at position {position} hangs below one at {positions[before]}")
            laws.append(self._log_law(tokens[before] if before >= 0 else None, tokens[index], position + 1, sequence))
        return laws

    def _log_law(self, before: int | None, last: int, length: int, sequence: SequenceRows) -> Tensor:
        if self.table.script is not None:
            return _log(self.table.scripted(length - sequence.num_prompt))
        return self._law[self.vocabulary_size if before is None else before, last]


def _parent_index(sequence: SequenceRows, row: int) -> int:
    """KV index of the token before a row's, -1 where there is none."""
    node = row - sequence.num_pending
    if sequence.parents is None or node < 0:
        return sequence.num_context + row - 1
    return sequence.num_context + sequence.num_pending + sequence.parents[node]


def _tabulate(table: TableFile) -> Tensor:
    size = table.vocabulary_size
    law = torch.full((size + 1, size + 1, size), -math.inf, dtype=torch.float64)
    if table.script is not None:
        return law
    for before in range(size + 1):
        for last in range(size + 1):
            context = [token for token in (before, last) if token < size]
            law[before, last] = _log(table.probabilities(context))
    return law


def _log(probabilities: Sequence[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()
