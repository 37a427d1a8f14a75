"""What the engine asks of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pilotfish.engine.batch import Batch


class Backend(Protocol):
    """A model with its KV. One thread owns it; nothing here is thread-safe."""

    @property
    def name(self) -> str:
        """For people: directory, hub id or the table's name."""

    @property
    def vocabulary_size(self) -> int:
        """Number of logits in a row; the tokenizer may know fewer ids (padding)."""

    @property
    def context_length(self) -> int:
        """Most tokens a sequence may have."""

    @property
    def dtype(self) -> str:
        """Of the weights: "float32", "bfloat16", "int8", "float64"."""

    @property
    def device(self) -> torch.device:
        """Where the logits lie."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Over all layers."""

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the KV: once, before the first pass."""

    def forward(self, batch: Batch) -> Tensor:
        """Run a pass: write KV to the batch's slots, return its logits.

        Returns:
            [len(batch.logit_rows), vocabulary_size], float32 (a table's: float64 log-probabilities).
        """

    def forward_parts(self, batch: Batch, max_bytes: int = ...) -> Iterator[tuple[int, Tensor]]:
        """`forward` where all logits at once would be too much: parts of at most `max_bytes`, cut between sequences.

        Yields:
            (index into `logit_rows` of its first row, logits of the part). Take all of them: the pass is over only
            after the last.
        """

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy KV between slots; all sources are read before a destination is written."""
