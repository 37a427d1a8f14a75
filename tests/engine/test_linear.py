"""Packed weights: the same products, row by row on their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pilotfish.engine import linear, model
from pilotfish.engine.batch import Item, pack
from pilotfish.engine.linear import PackedDtype, PackedLinear, packed_product, row_floor
from pilotfish.engine.model import TransformersBackend, best_dtype, logit_parts
from pilotfish.errors import UnsupportedModel
from tests.engine.models import FAMILIES, VOCABULARY_SIZE, plain_logits, random_ids, tiny

DTYPES: list[PackedDtype] = ["float32", "bfloat16", "int8"]
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 3e-2}  # of the product's spread


def weight_of(dtype: PackedDtype, *size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*size, generator=generator).to(torch.bfloat16 if dtype == "bfloat16" else torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (1, 7), (2, 3)])
def test_product_is_the_linear_layer(dtype: PackedDtype, has_bias: bool, shape: tuple[int, ...]) -> None:
    """Any number of rows in any shape, with and without a bias, to the rounding of the dtype."""
    weight, x = weight_of(dtype, 40, 24), weight_of(dtype, *shape, 24)
    bias = weight_of(dtype, 40) if has_bias else None
    got = packed_product(weight, bias, dtype)(x)
    assert (got.shape, got.dtype) == ((*shape, 40), weight.dtype)
    expected = torch.nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    assert ((got.float() - expected).abs() <= TOLERANCE[dtype] * 24**0.5 * 3).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_product_do_not_feel_one_another(dtype: PackedDtype) -> None:
    """Other values, a hundred times larger, in the other rows leave a row's bits as they are."""
    product = packed_product(weight_of(dtype, 40, 24), None, dtype)
    x = weight_of(dtype, 6, 24)
    other = x.flip(0) * 100
    other[2] = x[2]
    assert torch.equal(product(x)[2], product(other)[2])


def test_one_scale_for_all_rows_would_be_caught() -> None:
    """The test above fails for activations quantised with one scale per tensor, the usual way."""
    weight, x = weight_of("int8", 40, 24), weight_of("int8", 6, 24)

    def per_tensor(rows: Tensor) -> Tensor:
        scale = rows.abs().max() / 127
        return ((rows / scale).round() * scale) @ weight.T

    other = x.flip(0) * 100
    other[2] = x[2]
    assert not torch.equal(per_tensor(x)[2], per_tensor(other)[2])


def test_rows_of_zeros_and_of_nan_stay_what_they_are() -> None:
    """In int8 a row of zeros gives zeros, a row with NaN gives NaN, and neither touches the row beside it."""
    product = packed_product(weight_of("int8", 40, 24), None, "int8")
    x = weight_of("int8", 3, 24)
    expected = product(x)[1]
    x[0], x[2, 5] = 0.0, float("nan")
    got = product(x)
    assert (got[0] == 0).all()
    assert torch.equal(got[1], expected)
    assert got[2].isnan().all()


@pytest.mark.parametrize("num_inputs", [64, 577])
def test_int8_sums_do_not_overflow(num_inputs: int) -> None:
    """The largest weights and activations there are add up, also on a CPU that adds two products in 16 bits."""
    product = packed_product(torch.ones(40, num_inputs), None, "int8")
    got = product(torch.ones(3, num_inputs))
    torch.testing.assert_close(got, torch.full((3, 40), float(num_inputs)), rtol=1e-3, atol=0.0)


def test_a_cpu_without_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights stay rounded to bfloat16; a product of theirs is rounded once, at the end."""
    monkeypatch.setattr(linear, "has_bfloat16", lambda: False)
    weight, bias, x = weight_of("bfloat16", 40, 24), weight_of("bfloat16", 40), weight_of("bfloat16", 5, 24)
    got = packed_product(weight, bias, "bfloat16")(x)
    expected = nn.functional.linear(x.double(), weight.double(), bias.double())
    assert got.dtype == torch.bfloat16
    assert ((got.double() - expected).abs() <= expected.abs() * 2**-8 + 1e-4).all()


@pytest.mark.parametrize(
    ("device", "has_instructions", "expected"),
    [("cpu", True, "bfloat16"), ("cpu", False, "float32"), ("cuda:1", False, "bfloat16")],
)
def test_auto_is_what_the_device_computes_in(
    monkeypatch: pytest.MonkeyPatch, device: str, has_instructions: bool, expected: str
) -> None:
    """Bfloat16 where that is fast, else float32."""
    monkeypatch.setattr(model, "has_bfloat16", lambda: has_instructions)
    assert best_dtype(device) == expected


def test_row_floor_is_found_by_trying() -> None:
    """A product whose bits change below three rows gets the floor 3; one that always changes is refused."""

    def wants_three(x: Tensor) -> Tensor:
        return x + (0.1 if len(x) < 3 else 0.0)

    assert row_floor(wants_three, 8, torch.float32) == 3
    assert row_floor(lambda x: x, 8, torch.float32) == 1
    with pytest.raises(ValueError, match="other bits for every number of rows"):
        row_floor(lambda x: x * len(x), 8, torch.float32)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "gemma2", "opt", "phi3", "qwen2-moe"])
def test_packed_models_say_the_same(family: str) -> None:
    """Exchanged layers (joined q, k, v; a tied head; GPT-2's transposed ones) leave the logits as they were."""
    plain = tiny(FAMILIES[family]())
    backend = TransformersBackend(copy.deepcopy(plain), family)
    left = [module for module in backend.model.modules() if isinstance(module, nn.Linear)]
    assert not left
    assert any(isinstance(module, PackedLinear) for module in backend.model.modules())
    backend.allocate(8, 8)
    tokens = random_ids(20)
    got = backend.forward(pack([Item(tokens, 0, range(8), num_logits=20)], 8))
    torch.testing.assert_close(got, plain_logits(plain, tokens), rtol=1e-4, atol=1e-4)


def test_layers_that_cannot_be_joined_are_packed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that trips over joined products gets single ones; one that trips over those too keeps its own."""
    real = linear.pack
    for allowed in (True, False):

        def failing(*args: Any, allowed: bool = allowed) -> Any:
            originals = real(*args)
            if args[3] or not allowed:
                setattr(originals[0][0], originals[0][1], nn.Identity())
            return originals

        monkeypatch.setattr(model, "pack", failing)
        backend = TransformersBackend(tiny(FAMILIES["llama"]()), "llama")
        kinds = {type(layer) for layer in backend.model.modules()}
        assert (PackedLinear in kinds, nn.Linear in kinds, nn.Identity in kinds) == (allowed, not allowed, False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_other_rows(dtype: PackedDtype) -> None:
    """Another draft in the pass, in one's own tree or in another's session, changes no bit of a row's logits."""
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    backend = TransformersBackend(tiny(FAMILIES["llama"](), dtype=stored), "llama", dtype)
    backend.allocate(16, 8)
    mine, other = random_ids(12, 1), random_ids(9, 2)

    def logits(draft: list[int], prompt: list[int]) -> Tensor:
        items = [
            Item(mine[:10], 0, range(3), [*mine[10:], *draft], (-1, 0, 0, -1, 3), num_logits=6),
            Item(prompt, 0, range(4, 8)),
        ]
        return backend.forward(pack(items, 8))

    first, second = logits([7, 8, 9], other), logits([50, 51, 52], other[::-1])
    assert torch.equal(first[:3], second[:3])  # the root and the first two nodes
    assert not torch.equal(first[3:], second[3:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_reproducible_passes_have_the_same_bits(family: str, dtype: PackedDtype) -> None:
    """With `is_reproducible` a row's logits are bit-equal in prefill, single, chain and tree passes, alone or not."""
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    plain = tiny(FAMILIES[family](), dtype=stored)
    backend = TransformersBackend(plain, family, dtype, is_reproducible=True)
    backend.allocate(32, 4)
    tokens, other = random_ids(24, 1), random_ids(11, 2)
    whole = backend.forward(pack([Item(tokens, 0, range(6), num_logits=24)], 4))
    pages = list(range(31, 20, -1))
    backend.forward(pack([Item(tokens[:9], 0, pages)], 4))
    for start, length in ((9, 1), (10, 5), (12, 12)):
        chain = tokens[start + 1 : start + length]
        tree = (*range(-1, len(chain) - 1), -1, len(chain))
        mine = Item(tokens[start : start + 1], start, pages, [*chain, 5, 6], tree, 3 + len(chain))
        got = backend.forward(pack([Item(other, 0, [6, 7, 8]), mine], 4))[1 : 1 + length]
        assert torch.equal(got, whole[start : start + length])
        backend.forward(pack([Item(tokens[start : start + length], start, pages)], 4))


def test_what_cannot_be_reproducible_is_refused() -> None:
    """Experts multiply outside linear layers, in shapes that follow the routing: refused by name, not promised."""
    with pytest.raises(UnsupportedModel, match="GptOssForCausalLM cannot be made reproducible"):
        TransformersBackend(tiny(FAMILIES["gpt-oss"]()), "gpt-oss", is_reproducible=True)


def test_logits_come_in_parts_of_a_budget(device: str) -> None:
    """Parts are cut between sequences, hold at most the budget where that can be, and join to the whole."""
    backend = TransformersBackend(tiny(FAMILIES["gemma2"](), device), "gemma2")
    backend.allocate(32, 8)
    items = [
        Item(random_ids(9, i), 0, range(4 * i, 4 * i + 4), random_ids(i, 9), num_logits=1 + i if i != 2 else 0)
        for i in range(5)
    ]
    batch = pack(items, 8)
    whole = backend.forward(batch)
    parts = list(backend.forward_parts(batch, max_bytes=4 * 4 * VOCABULARY_SIZE))
    assert [start for start, _ in parts] == [0, 3, 7]
    torch.testing.assert_close(torch.cat([logits for _, logits in parts]), whole, rtol=1e-5, atol=1e-5)
    assert len(whole) == 12
    assert logit_parts(batch, 1) == [range(1), range(1, 3), range(3, 7), range(7, 12)]


def test_a_pass_without_logits(device: str) -> None:
    """A prefill chunk alone wants no logits and gets none, but its KV is written."""
    plain = tiny(FAMILIES["llama"](), device)
    backend = TransformersBackend(copy.deepcopy(plain), "llama")
    backend.allocate(8, 8)
    tokens = random_ids(12)
    got = backend.forward(pack([Item(tokens[:11], 0, range(2), num_logits=0)], 8))
    assert got.shape == (0, VOCABULARY_SIZE)
    got = backend.forward(pack([Item(tokens[11:], 11, range(2))], 8)).cpu()
    torch.testing.assert_close(got[0], plain_logits(plain, tokens)[-1], rtol=1e-4, atol=1e-4)


def test_impossible_choices_are_refused() -> None:
    """A dtype there is not, int8 off the CPU, and a pass before there is KV are errors that name the remedy."""
    with pytest.raises(ValueError, match="'int4' is none of auto, float32, bfloat16, int8"):
        TransformersBackend.load("nowhere", "int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use bfloat16 there"):
        TransformersBackend.load("nowhere", "int8", "cuda")
    backend = TransformersBackend(tiny(FAMILIES["llama"]()), "llama")
    with pytest.raises(RuntimeError, match="allocate the KV"):
        backend.forward(pack([Item([1], 0, [0])], 8))
