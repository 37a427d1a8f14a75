"""Whether a model says the same with our attention as without: asked at load, before anything is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pilotfish.engine.attention import IMPLEMENTATION, KVTensors, LayerShape, registered
from pilotfish.engine.batch import Batch, Item, pack
from pilotfish.errors import UnsupportedModel

_PAGE_SIZE = 4
_PROBE_WINDOW = 6  # sliding windows are made this short while checking, so that they matter
_TREE = (-1, 0, 0, -1, 2, 3)
_KNOWN_LAYERS = {"full_attention", "sliding_attention", "attention"}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05, torch.float64: 1e-6}


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far our logits are from the library's, as a share of the spread (standard deviation) of a row."""

    by_case: dict[str, float]
    shapes: dict[int, LayerShape] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        return max(self.by_case.values())


def refuse_by_config(model: Any) -> int:
    """The longest context that can be served faithfully.

    Raises:
        UnsupportedModel: flags or config say that our attention cannot be plugged in.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(f"{name}: its attention is not replaceable in this library version; {_REMEDY}")
    layer_types = set(getattr(config, "layer_types", None) or ())
    if strange := sorted(layer_types - _KNOWN_LAYERS):
        raise UnsupportedModel(f"{name}: has layers of type {strange[0]!r}, which paged KV does not cover; {_REMEDY}")
    length = int(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2048)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") in {"dynamic", "longrope"}:  # a long row would turn the others' frequencies
            length = min(length, int(parameters.get("original_max_position_embeddings") or length))
    return length


_REMEDY = "see docs/engine.md for the families that work, or serve it without pilotfish"


@torch.inference_mode()
def check_faithful(model: Any, run: Callable[[Batch, KVTensors], Tensor]) -> Deviation:
    """Compare ragged paged passes with the library's plain forward: prefill, single token, chain and tree.

    In 16 bits the two may differ by rounding alone; then the same weights are compared in float32, which needs the
    memory for it. Leaves our attention plugged in.

    Raises:
        UnsupportedModel: they differ, with architecture, case and deviation.
    """
    name = type(model).__name__
    try:
        deviation = _measure(model, run)
        tolerance = TOLERANCE[model.dtype]
        if deviation.largest > tolerance and model.dtype.itemsize < 4:
            with _in_float32(model):
                deviation = Deviation(_measure(model, run).by_case, deviation.shapes)
            tolerance = TOLERANCE[torch.float32]
    except (LookupError, TypeError) as error:
        raise UnsupportedModel(f"{name}: {error}; {_REMEDY}") from error
    if not deviation.largest <= tolerance:
        worst = max(deviation.by_case, key=deviation.by_case.__getitem__)
        raise UnsupportedModel(
            f"{name}: with paged attention its logits differ from the library's own by {deviation.largest:.2g} of "
            f"their spread ({worst} pass; tolerance {tolerance:g}); {_REMEDY}"
        )
    return deviation


def _measure(model: Any, run: Callable[[Batch, KVTensors], Tensor]) -> Deviation:
    with _short_windows(model):
        first, second, tree = _probe_tokens(model)
        model.set_attn_implementation("eager")
        reference = _Reference(model)
        expected = {
            "prefill": torch.cat((reference.rows(second, range(len(second))), reference.rows(first[:9], range(9)))),
            "single": reference.rows(first[:10], [9]),
            "chain": reference.rows(first, range(9, 15)),
            "tree": reference.tree(first[:11], tree),
        }
        plug_in(model)
        kv = KVTensors(16 * _PAGE_SIZE, model.device)
        got = {case: run(batch, kv) for case, batch in probe_passes(model)}
    return Deviation(compare(got, expected).by_case, dict(kv.shapes))


def compare(got: Mapping[str, Tensor], expected: Mapping[str, Tensor], share: float = 1.0) -> Deviation:
    """Per case, the root mean square difference of a row as a share of that row's spread: the worst row's.

    With a `share` below 1 the worst rows are left out until that share of the rows remains.
    """
    return Deviation({case: _difference(logits, expected[case], share) for case, logits in got.items()})


@torch.inference_mode()
def check_reproducible(model: Any, run: Callable[[Batch, KVTensors], Tensor]) -> None:
    """Require the same bits for the same rows in passes of different shape.

    Raises:
        UnsupportedModel: they differ.
    """
    tokens, other, nodes = _probe_tokens(model)
    length = len(tokens)
    spread, adjacent = list(range(31, 31 - 8, -1)), list(range(8))
    kv = KVTensors(32 * _PAGE_SIZE, model.device)
    whole = run(pack([Item(tokens, 0, adjacent, num_logits=length)], _PAGE_SIZE), kv)
    steps = [run(pack([Item([token], i, spread)], _PAGE_SIZE), kv)[0] for i, token in enumerate(tokens)]
    is_same = torch.equal(whole, torch.stack(steps))
    for num_context in (1, 5, 9, 12):  # again from there on, in company, as a chain and as a tree's first path
        rest = tokens[num_context + 1 :]
        item = Item(tokens[num_context : num_context + 1], num_context, spread, rest, num_logits=length - num_context)
        company = Item(other, 0, [10, 12], num_logits=1)
        is_same = is_same and torch.equal(run(pack([company, item], _PAGE_SIZE), kv)[1:], whole[num_context:])
        parents = (*range(-1, len(rest) - 1), *(-1 for _ in nodes))
        tree = Item(item.pending, num_context, spread, [*rest, *nodes], parents, 1 + len(rest) + len(nodes))
        got = run(pack([tree], _PAGE_SIZE), kv)
        is_same = is_same and torch.equal(got[: 1 + len(rest)], whole[num_context:])
    if not is_same:
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be made reproducible on {model.device}: the same rows have other bits in "
            f"passes of another shape; switch `reproducible` off"
        )


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """Weights in float32 for a while; 16 bits there and back are the same bits."""
    weights = [(weight, weight.dtype) for weight in model.parameters() if weight.dtype.itemsize < 4]
    for weight, _ in weights:
        weight.data = weight.data.float()
    try:
        yield
    finally:
        for weight, dtype in weights:
            weight.data = weight.data.to(dtype)


def plug_in(model: Any) -> None:
    """Make a model use our attention. No mask function is registered, so the library builds no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, registered)
    model.set_attn_implementation(IMPLEMENTATION)


def _probe_tokens(model: Any) -> tuple[list[int], list[int], list[int]]:
    """Fixed pseudo-random ids: two sequences and the nodes of a tree."""
    generator = torch.Generator().manual_seed(1)
    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(0, size, (15 + 7 + len(_TREE),), generator=generator).tolist()
    return tokens[:15], tokens[15:22], tokens[22:]


def probe_passes(model: Any) -> Iterator[tuple[str, Batch]]:
    """Passes over one KV of 64 slots, by case; their pages are neither adjacent nor in order.

    Later ones overwrite what was rolled back.
    """
    first, second, tree = _probe_tokens(model)
    pages, adjacent = [9, 2, 11, 5, 7], [12, 13]
    yield "prefill", pack([
        Item(second, 0, adjacent, num_logits=len(second)),
        Item(first[:9], 0, pages, num_logits=9),
    ], _PAGE_SIZE)  # fmt: skip
    yield "single", pack([Item(first[9:10], 9, pages)], _PAGE_SIZE)
    yield "chain", pack([Item(first[9:11], 9, pages, first[11:15], num_logits=6)], _PAGE_SIZE)
    yield "tree", pack([Item(first[9:11], 9, pages, tree, _TREE, num_logits=1 + len(tree))], _PAGE_SIZE)


class _Reference:
    """The library's plain forward, one sequence at a time, without a cache."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def rows(self, tokens: list[int], rows: range | list[int]) -> Tensor:
        logits: Tensor = self._model(
            input_ids=torch.tensor([tokens], device=self._model.device), use_cache=False
        ).logits
        return logits[0, list(rows)].float()

    def tree(self, tokens: list[int], nodes: list[int]) -> Tensor:
        """Logits at the root and at each node, every path run on its own."""
        paths: list[list[int]] = []
        for node, parent in zip(nodes, _TREE, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else tokens), node])
        return torch.cat([self.rows(path, [len(path) - 1]) for path in (tokens, *paths)])


def _difference(logits: Tensor, expected: Tensor, share: float) -> float:
    if not logits.isfinite().all():
        return float("inf")
    spread = expected.std(dim=-1).clamp_min(1e-30)
    return float(((logits - expected).square().mean(dim=-1).sqrt() / spread).quantile(share))


@contextmanager
def _short_windows(model: Any) -> Iterator[None]:
    """Shorten all sliding windows, in config and modules, for as long as the check lasts."""
    holders = [model.config, model.config.get_text_config(), *model.modules()]
    holders += [module.config for module in model.modules() if hasattr(module, "config")]
    unique = {id(holder): holder for holder in holders if isinstance(getattr(holder, "sliding_window", None), int)}
    lengths = {key: holder.sliding_window for key, holder in unique.items()}
    try:
        for holder in unique.values():
            holder.sliding_window = _PROBE_WINDOW
        yield
    finally:
        for key, holder in unique.items():
            holder.sliding_window = lengths[key]
