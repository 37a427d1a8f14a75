"""Any causal LM of the model library as a backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotfish.engine.attention import KEYWORD, KVTensors, LayerShape, TorchAttention
from pilotfish.engine.batch import Batch
from pilotfish.engine.selfcheck import UnsupportedModel, check_faithful, refuse_by_config

DTYPES = ("float32", "bfloat16", "int8")


class TransformersBackend:
    """A model of the library with our attention in it; its modules stay the library's own."""

    def __init__(self, model: Any, name: str, dtype: str = "float32", reproducible: bool = False) -> None:
        """Take over a loaded model (`attn_implementation="eager"`, evaluation mode).

        Args:
            model: a `PreTrainedModel` for causal language modelling, on its device, not in int8 yet.
            name: for people.
            dtype: "float32", "bfloat16" (the model has that dtype already) or "int8" (weights are quantised here).
            reproducible: make float32 results the same bits in passes of every shape, at a cost.

        Raises:
            UnsupportedModel: its attention cannot be plugged in faithfully.
        """
        self.name = name
        self.dtype = dtype
        self.model = model.eval()
        self.vocabulary_size: int = model.get_output_embeddings().weight.shape[0]
        self.context_length = refuse_by_config(model)
        self.device: torch.device = model.device
        self.deviation = check_faithful(model, self._run)
        self._shapes: dict[int, LayerShape] = self.deviation.shapes
        self._kv: KVTensors | None = None

    @staticmethod
    def load(
        source: str | Path,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        threads: int | None = None,
        reproducible: bool = False,
    ) -> TransformersBackend:
        """Load a directory or hub id.

        Args:
            source: a directory with config and weights, or a hub id.
            dtype: of the weights, one of `DTYPES`.
            device: where it runs.
            threads: of torch, for the whole process; None: leave as it is.
            reproducible: see `TransformersBackend`.

        Raises:
            UnsupportedModel: refused by name.
        """
        from transformers import AutoModelForCausalLM

        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        if threads is not None:
            torch.set_num_threads(threads)
        stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(str(source), dtype=stored, attn_implementation="eager")
        return TransformersBackend(model.to(device), str(source), dtype, reproducible)

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(shape.num_bytes for shape in self._shapes.values())

    def allocate(self, num_pages: int, page_size: int) -> None:
        self._kv = KVTensors(num_pages * page_size, self.device, self._shapes)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        if self._kv is None:
            raise RuntimeError("allocate the KV before the first pass")
        return self._run(batch, self._kv)

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        if self._kv is not None and sources:
            self._kv.copy(sources, destinations)

    def _run(self, batch: Batch, kv: KVTensors) -> Tensor:
        def row(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=self.device)

        output = self.model(
            input_ids=row(batch.token_ids)[None],
            position_ids=row(batch.position_ids)[None],
            use_cache=False,
            logits_to_keep=row(batch.logit_rows),
            **{KEYWORD: TorchAttention(batch, kv)},
        )
        logits: Tensor = output.logits[0]
        return logits.float()


__all__ = ["DTYPES", "TransformersBackend", "UnsupportedModel"]
