"""Weights laid out for this CPU: packed float32 and bfloat16, int8 with activations quantised per row.

What a CPU lacks is made up for: without instructions for bfloat16 its products are computed in float32, and where sums
of int8 products overflow (no VNNI) weights have one bit less.

Stock modules stay; only their linear layers are exchanged. Layers that read the same input, as q, k and v do, become
one product. No row of a product depends on another row: in int8 each row has its own scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import groupby
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

PackedDtype = Literal["float32", "bfloat16", "int8"]
Place: TypeAlias = tuple[nn.Module, str, nn.Module]  # parent, name in it, the layer
Product: TypeAlias = Callable[[Tensor], Tensor]  # [..., in] -> [..., out]

_ROWS_TRIED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 33, 64, 128)
_TINY = 1e-30  # keeps the scale of a row of zeros finite
_LEVELS = 127  # of int8 weights and activations, to either side of 0
_FEW_LEVELS = 64  # of weights, where a sum of two products of whole range overflows 16 bits: 2 · 255 · 64 does not


def packed_product(weight: Tensor, bias: Tensor | None, dtype: PackedDtype) -> Product:
    """Product x @ weight.T + bias with the weight packed for oneDNN.

    Args:
        weight: [out, in].
        bias: [out].
        dtype: int8 takes and gives what the weight's dtype is.
    """
    if dtype == "int8":
        return _int8_product(weight, bias)
    return _float_product(weight, bias) if dtype == "float32" or has_bfloat16() else _widened_product(weight, bias)


def has_bfloat16() -> bool:
    """Whether this CPU has the instructions that oneDNN packs bfloat16 weights for."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def num_int8_levels() -> int:
    """Levels of a weight to either side of 0: fewer where the CPU adds two products in 16 bits; found by trying."""
    ones = torch.ones(1, 64)
    is_whole = abs(_int8_with(_LEVELS, ones, None)(ones).item() - 64.0) < 0.5
    return _LEVELS if is_whole else _FEW_LEVELS


def row_floor(product: Product, num_inputs: int, dtype: torch.dtype) -> int:
    """Fewest rows from which on a row's result has the same bits whatever the number of rows; found by trying.

    Few rows are tried many times: where sums are rounded to 16 bits, another order of adding seldom shows.

    Raises:
        ValueError: there is none up to the largest number tried.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(_ROWS_TRIED[-1], num_inputs, generator=generator).to(dtype)
    reference = product(rows)

    def is_same(num_rows: int) -> bool:
        starts = range(0, len(rows) - num_rows + 1, num_rows)
        return all(torch.equal(product(rows[i : i + num_rows]), reference[i : i + num_rows]) for i in starts)

    others = [i for i, num_rows in enumerate(_ROWS_TRIED) if not is_same(num_rows)]
    if others and others[-1] >= len(_ROWS_TRIED) - 4:
        raise ValueError(f"products of {num_inputs} inputs have other bits for every number of rows")
    return _ROWS_TRIED[others[-1] + 1] if others else 1


def _with_floor(product: Product, floor: int) -> Product:
    if floor == 1:
        return product

    def apply(x: Tensor) -> Tensor:
        num_rows = x.numel() // x.shape[-1]
        if num_rows >= floor:
            return product(x)
        rows = torch.nn.functional.pad(x.reshape(num_rows, x.shape[-1]), (0, 0, 0, floor - num_rows))
        out = product(rows)[:num_rows]
        return out.view(*x.shape[:-1], out.shape[-1])

    return apply


def _float_product(weight: Tensor, bias: Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    product = torch.ops.mkldnn._linear_pointwise.default
    num_outputs = weight.shape[0]

    def apply(x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], num_outputs)
        out: Tensor = product(x, packed, bias, "none", [], "")
        return out

    return apply


def _widened_product(weight: Tensor, bias: Tensor | None) -> Product:
    """The same weights and rows in float32, the result rounded once."""
    wide = _float_product(weight.float(), None if bias is None else bias.float())
    return lambda x: wide(x.float()).to(x.dtype)


def _int8_product(weight: Tensor, bias: Tensor | None) -> Product:
    return _int8_with(num_int8_levels(), weight, bias)


def _int8_with(num_levels: int, weight: Tensor, bias: Tensor | None) -> Product:
    """Weights in int8 with a scale per output, activations in uint8 around 128 with a scale per row."""
    num_outputs, num_inputs = weight.shape
    scales = weight.float().abs().amax(dim=1).clamp_min(_TINY) / num_levels
    quantised = (weight.float() / scales[:, None]).round_().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(quantised, None)
    weight_scales, zero_points = scales / _LEVELS, torch.zeros(num_outputs, dtype=torch.long)
    product = torch.ops.onednn.qlinear_pointwise.default
    half = torch.tensor(128.5)  # the conversion to uint8 cuts: floor(x + 128.5) rounds to the nearest around 128
    out_dtype = weight.dtype

    def apply(x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], num_outputs)
        rows = x.reshape(-1, num_inputs).float()
        largest = rows.abs().amax(dim=1, keepdim=True).add_(_TINY)
        levels = torch.addcmul(half, rows, largest.reciprocal(), value=127.0).to(torch.uint8)
        out = product(levels, 1.0, 128, packed, weight_scales, zero_points, None, 1.0, 0, torch.float32, "none", [], "")
        out = out.mul_(largest) if bias is None else torch.addcmul(bias, out, largest)
        return out.to(out_dtype).view(*x.shape[:-1], num_outputs)

    return apply


class SharedProduct:
    """One product for several layers that read the same input: the first to be called computes for all."""

    def __init__(self, product: Product, sizes: Sequence[int]) -> None:
        self._product = product
        self._sizes = list(sizes)
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, index: int, x: Tensor) -> Tensor:
        """What layer `index` makes of x."""
        if x is not self._input:
            self._input, self._outputs = x, self._product(x).split(self._sizes, dim=-1)
        out = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._input, self._outputs = None, ()
        return out


class PackedLinear(nn.Module):
    """Stands where a linear layer stood."""

    def __init__(self, product: Product, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.forward = product


def pack(
    model: Any,
    dtype: PackedDtype,
    probe: Callable[[], object],
    is_shared: bool = True,
    is_reproducible: bool = False,
) -> list[Place]:
    """Exchange the linear layers of a model on the CPU for packed ones.

    Args:
        model: of the library; its layers are exchanged in place.
        dtype: of the packed weights.
        probe: runs the model, to see which layers read the same input.
        is_shared: make one product of those that do.
        is_reproducible: pad rows to a floor from which on a row's bits do not depend on how many there are.

    Returns:
        (parent, name, layer) of every layer that was exchanged, for `unpack`.
    """
    originals: list[Place] = []
    floors: dict[torch.Size, int] = {}
    for group in _groups(model, probe) if is_shared else [[place] for place in _places(model)]:
        layers = [layer for _, _, layer in group]
        weights, biases = zip(*map(_weight_and_bias, layers), strict=True)
        sizes = [weight.shape[0] for weight in weights]
        joined = torch.cat(weights)
        product = packed_product(joined, _joined(biases, sizes), dtype)
        if is_reproducible:
            if joined.shape not in floors:
                floors[joined.shape] = row_floor(product, joined.shape[1], joined.dtype)
            product = _with_floor(product, floors[joined.shape])
        shared = SharedProduct(product, sizes) if len(group) > 1 else None
        for index, (parent, name, layer) in enumerate(group):
            part = product if shared is None else _part(shared, index)
            setattr(parent, name, PackedLinear(part, weights[index].shape[1], sizes[index]))
            originals.append((parent, name, layer))
    return originals


def unpack(originals: Sequence[Place]) -> None:
    """Put the layers back that `pack` has exchanged."""
    for parent, name, layer in originals:
        setattr(parent, name, layer)


def _part(shared: SharedProduct, index: int) -> Product:
    return lambda x: shared.part(index, x)


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or type(module).__name__ == "Conv1D"  # GPT-2's; its weight is [in, out]


def _weight_and_bias(layer: Any) -> tuple[Tensor, Tensor | None]:
    weight = layer.weight.detach()
    bias = None if layer.bias is None else layer.bias.detach()
    return (weight if type(layer) is nn.Linear else weight.t()), bias


def _joined(biases: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    known = [bias for bias in biases if bias is not None]
    if not known:
        return None
    return torch.cat([
        known[0].new_zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)
    ])  # fmt: skip


def _places(model: Any) -> list[Place]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _is_linear(child)
    ]


def _groups(model: Any, probe: Callable[[], object]) -> list[list[Place]]:
    """The linear layers, those together that one parent calls in a row with the same input, the same in every pass."""
    places = {layer: (parent, name, layer) for parent, name, layer in _places(model)}
    calls: list[tuple[nn.Module, Tensor]] = []  # holds the inputs, so that no two share an id
    with ExitStack() as hooks:
        for layer in places:
            handle = layer.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0])))
            hooks.callback(handle.remove)
        probe()
    runs: dict[nn.Module, set[tuple[nn.Module, ...]]] = {layer: set() for layer in places}
    for _, run in groupby(calls, key=lambda call: (id(call[1]), id(places[call[0]][0]))):
        layers = tuple(layer for layer, _ in run)
        for layer in layers:
            runs[layer].add(layers)
    groups: list[list[Place]] = []
    for layer, seen in runs.items():
        group = next(iter(seen)) if len(seen) == 1 else (layer,)
        if any(runs[member] != {group} for member in group) or len(set(group)) < len(group):
            group = (layer,)
        if group[0] is layer:
            groups.append([places[member] for member in group])
    return groups
