"""Any causal LM of the model library as a backend."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from pilotfish.engine.attention import KEYWORD, KVTensors, TorchAttention
from pilotfish.engine.batch import Batch
from pilotfish.engine.linear import PackedDtype, has_bfloat16, pack, unpack
from pilotfish.engine.selfcheck import (
    Deviation,
    check_faithful,
    check_reproducible,
    compare,
    probe_passes,
    refuse_by_config,
)
from pilotfish.errors import UnsupportedModel

WantedDtype: TypeAlias = PackedDtype | Literal["auto"]

_log = logging.getLogger(__name__)

LOGIT_BYTES = 64 << 20  # logits made at a time; more only where a single sequence needs more

# what exchanging the weights may change, as a share of a row's spread: int8 is a model of its own, of which only
# sanity is asked, and of the median row (on random ids the worst rows of a small model are far off)
_PACKED_TOLERANCE: dict[PackedDtype, float] = {"float32": 1e-3, "bfloat16": 0.1, "int8": 1.0}


class TransformersBackend:
    """A model of the library with our attention in it; its modules stay the library's own."""

    def __init__(self, model: Any, name: str, dtype: PackedDtype = "float32", is_reproducible: bool = False) -> None:
        """Take over a loaded model, in evaluation mode, on its device, in float32 or bfloat16.

        Args:
            model: a `PreTrainedModel` for causal language modelling.
            name: for people.
            dtype: what the weights become: int8 is made here, the others are what the model has already.
            is_reproducible: make a row's result the same bits in passes of every shape, at a cost.

        Raises:
            UnsupportedModel: its attention cannot be plugged in faithfully, or it cannot be made reproducible.
        """
        self.name = name
        self.dtype = dtype
        self.model = model.eval()
        self.vocabulary_size: int = model.get_output_embeddings().weight.shape[0]
        self.context_length = refuse_by_config(model)
        self.device: torch.device = model.device
        self._is_rowwise = is_reproducible
        self._kv: KVTensors | None = None
        self.deviation = check_faithful(model, self._run)  # from the library's own forward
        self._shapes = self.deviation.shapes
        self.packed_deviation = self._pack(dtype) if self.device.type == "cpu" else None  # from unpacked weights
        if is_reproducible:
            check_reproducible(model, self._run)

    @staticmethod
    def load(
        source: str | Path,
        dtype: WantedDtype = "float32",
        device: torch.device | str = "cpu",
        threads: int | None = None,
        is_reproducible: bool = False,
    ) -> TransformersBackend:
        """Load a directory or hub id.

        Args:
            source: a directory with config and weights, or a hub id.
            dtype: of the weights; "auto": see `best_dtype`.
            device: where it runs; int8 is for the CPU.
            threads: of torch, for the whole process; None: leave as it is.
            is_reproducible: see `TransformersBackend`.

        Raises:
            UnsupportedModel: refused by name.
            ValueError: a dtype there is not, or not on this device.
        """
        from transformers import AutoModelForCausalLM

        if dtype == "auto":
            dtype = best_dtype(device)
        if dtype not in get_args(PackedDtype):
            raise ValueError(f"dtype {dtype!r} is none of auto, {', '.join(get_args(PackedDtype))}")
        if dtype == "int8" and torch.device(device).type != "cpu":
            raise ValueError(f"int8 weights run on the CPU only, not on {device}; use bfloat16 there")
        if threads is not None:
            torch.set_num_threads(threads)
        if dtype == "bfloat16" and best_dtype(device) != dtype:
            _log.warning("this CPU has no instructions for bfloat16: float32 is as fast here, and exact")
        stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(str(source), dtype=stored, attn_implementation="eager")
        return TransformersBackend(model.to(device), str(source), dtype, is_reproducible)

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(shape.num_bytes for shape in self._shapes.values())

    def allocate(self, num_pages: int, page_size: int) -> None:
        self._kv = KVTensors(num_pages * page_size, self.device, self._shapes)

    def forward(self, batch: Batch) -> Tensor:
        return torch.cat([part for _, part in self.forward_parts(batch)])

    @torch.inference_mode()
    def forward_parts(self, batch: Batch, max_bytes: int = LOGIT_BYTES) -> Iterator[tuple[int, Tensor]]:
        if self._kv is None:
            raise RuntimeError("allocate the KV before the first pass")
        yield from self._run_parts(batch, self._kv, max_bytes)

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        if self._kv is not None and sources:
            self._kv.copy(sources, destinations)

    def _run(self, batch: Batch, kv: KVTensors) -> Tensor:
        return torch.cat([part for _, part in self._run_parts(batch, kv, LOGIT_BYTES)])

    def _run_parts(self, batch: Batch, kv: KVTensors, max_bytes: int) -> Iterator[tuple[int, Tensor]]:
        """The pass, and its logits part by part: the body runs once, only the head is run again."""
        inputs = {
            "input_ids": self._row(batch.token_ids)[None],
            "position_ids": self._row(batch.position_ids)[None],
            "use_cache": False,
            KEYWORD: TorchAttention(batch, kv, self._is_rowwise),
        }
        parts = logit_parts(batch, max(1, max_bytes // (4 * self.vocabulary_size)))
        if len(parts) == 1:
            yield 0, self.model(**inputs, logits_to_keep=self._row(batch.logit_rows)).logits[0].float()
            return
        body = self.model.base_model
        made: list[Any] = []
        handle = body.register_forward_hook(lambda _module, _inputs, output: made.append(output))
        try:
            for part in parts:
                rows = self._row(batch.logit_rows[part.start : part.stop])
                yield part.start, self.model(**inputs, logits_to_keep=rows).logits[0].float()
                body.forward = lambda *_args, **_options: made[0]  # an attribute of the instance hides the method
        finally:
            handle.remove()
            body.__dict__.pop("forward", None)

    def _row(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def _pack(self, dtype: PackedDtype) -> Deviation:
        """Exchange the linear layers for packed ones, if the model says the same with them."""
        before, largest = self._probe(), 0.0
        for is_shared in (True, False):
            originals = pack(self.model, dtype, self._probe, is_shared, self._is_rowwise)
            try:
                deviation = compare(self._probe(), before, 0.5 if dtype == "int8" else 1.0)
            except (RuntimeError, TypeError, AttributeError):  # the model looks at more of a layer than its output
                deviation = Deviation({"packed": float("inf")})
            if deviation.largest <= _PACKED_TOLERANCE[dtype]:
                return deviation
            largest = deviation.largest
            unpack(originals)
        if dtype == "int8":
            raise UnsupportedModel(
                f"{type(self.model).__name__}: its linear layers cannot be exchanged for int8 ones (logits change by "
                f"{largest:.2g} of their spread); use bfloat16"
            )
        return Deviation({"unpacked": 0.0})

    def _probe(self) -> dict[str, Tensor]:
        kv = KVTensors(128, self.device)
        return {case: self._run(batch, kv) for case, batch in probe_passes(self.model)}


def best_dtype(device: torch.device | str) -> PackedDtype:
    """The fastest format that rounds no more than bfloat16: that, where the device has instructions for it."""
    return "bfloat16" if torch.device(device).type != "cpu" or has_bfloat16() else "float32"


def logit_parts(batch: Batch, max_rows: int) -> list[range]:
    """Parts of the batch's logit rows of at most `max_rows`, cut only between sequences."""
    parts: list[range] = []
    start = stop = index = 0
    for sequence in batch.sequences:
        while index < len(batch.logit_rows) and batch.logit_rows[index] < sequence.first_row + sequence.num_rows:
            index += 1
        if index - start > max_rows and stop > start:
            parts.append(range(start, stop))
            start = stop
        stop = index
    return [*parts, range(start, stop)]
