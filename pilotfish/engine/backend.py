"""What the engine asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
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

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy KV between slots; all sources are read before a destination is written."""
