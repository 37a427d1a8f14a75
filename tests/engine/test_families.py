"""Every family says the same in ragged paged passes as in the model library's own forward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from pilotfish.engine import attention
from pilotfish.engine.batch import Item, pack
from pilotfish.engine.model import TransformersBackend
from pilotfish.errors import UnsupportedModel
from tests.engine.models import FAMILIES, REFUSED, plain_logits, random_ids, tiny

PAGE = 8
TREE = (-1, 0, 1, 0, -1, 4, 4)


def backend_of(model: Any, name: str = "tiny", **options: Any) -> TransformersBackend:
    """A backend over a copy of the model, its KV made."""
    backend = TransformersBackend(copy.deepcopy(model), name, **options)
    backend.allocate(32, PAGE)
    return backend


def tree_logits(model: Any, tokens: list[int], nodes: list[int], parents: tuple[int, ...]) -> Tensor:
    """Plain logits at the root and at every node, each path run on its own."""
    paths: list[list[int]] = []
    for node, parent in zip(nodes, parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else tokens), node])
    return torch.stack([plain_logits(model, path)[-1] for path in (tokens, *paths)])


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_passes_equal_the_plain_forward(family: str, device: str) -> None:
    """Prefill in chunks, single tokens, chains and trees of several sequences in one pass: the library's logits."""
    model = tiny(FAMILIES[family](), device)
    backend = backend_of(model, family)
    one, two, three = random_ids(30, 1), random_ids(21, 2), random_ids(14, 3)
    pages = {1: [9, 2, 30, 11, 5], 2: [16, 17, 18, 19], 3: [7, 0, 3]}

    got = backend.forward(
        pack([Item(one[:13], 0, pages[1], num_logits=13), Item(two[:1], 0, pages[2], num_logits=0)], PAGE)
    )
    torch.testing.assert_close(got.cpu(), plain_logits(model, one[:13]), rtol=1e-4, atol=1e-4)

    nodes = random_ids(len(TREE), 4)
    got = backend.forward(
        pack(
            [
                Item(one[13:15], 13, pages[1], nodes, TREE, num_logits=1 + len(TREE)),  # a tree below pending tokens
                Item(two[1:20], 1, pages[2], num_logits=2),  # a prefill chunk
                Item(three[:10], 0, pages[3], three[10:], num_logits=5),  # a chain on a whole prompt
            ],
            PAGE,
        )
    ).cpu()
    expected = [
        tree_logits(model, one[:15], nodes, TREE),
        plain_logits(model, two[:20])[-2:],
        plain_logits(model, three)[-5:],
    ]
    torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-4)

    got = backend.forward(pack([Item(two[20:], 20, pages[2]), Item(one[15:16], 15, pages[1], one[16:])], PAGE)).cpu()
    expected = [plain_logits(model, two)[-1:], plain_logits(model, one)[-1:]]  # one: its tree was rolled back
    torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_be_plugged_in_are_refused(family: str) -> None:
    """A family whose attention cannot be replaced faithfully is refused at load, with its name and a remedy."""
    model = tiny(REFUSED[family]())
    with pytest.raises(UnsupportedModel, match=f"{type(model).__name__}.*docs/engine.md"):
        TransformersBackend(model, family)


def _no_mask(self: Any, window: int | None, num_groups: int, dtype: torch.dtype) -> None:
    return None


def _causal_tree(parents: tuple[int, ...]) -> Tensor:
    return torch.ones(len(parents), len(parents), dtype=torch.bool).tril()


def _no_softcap(scale: float, softcap: float | None = None, sinks: Tensor | None = None) -> attention.Scores:
    return _SCORES(scale, None, sinks)


def _no_sinks(scale: float, softcap: float | None = None, sinks: Tensor | None = None) -> attention.Scores:
    return _SCORES(scale, softcap, None)


def _no_window(self: Any, window: int | None) -> int:
    return 0


_SCORES = attention.Scores
FAULTS = {
    "rows see those after them": ("llama", attention._SequenceKeys, "mask", _no_mask),
    "tree nodes see their siblings": ("llama", attention, "ancestor_mask", _causal_tree),
    "scores are not capped": ("gemma2", attention, "Scores", _no_softcap),
    "sinks are left out": ("gpt-oss", attention, "Scores", _no_sinks),
    "windows are ignored by single rows": ("mistral", attention._SequenceKeys, "first_key", _no_window),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_self_check_catches(fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault planted in the attention is caught at load, in 16 bits too, and the deviation is named."""
    family, holder, name, wrong = FAULTS[fault]
    model = tiny(FAMILIES[family](), dtype=dtype)
    TransformersBackend(copy.deepcopy(model), family, "bfloat16" if dtype == torch.bfloat16 else "float32")
    monkeypatch.setattr(holder, name, wrong)
    with pytest.raises(UnsupportedModel, match=f"{type(model).__name__}.*differ.*of their spread"):
        TransformersBackend(model, family)


def test_keyword_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that drops unknown keywords on the way to its attention is refused, not run without pages."""
    monkeypatch.setattr(attention, "KEYWORD", "another_keyword")
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM.*does not hand its keywords"):
        TransformersBackend(tiny(FAMILIES["llama"]()), "llama")


def test_windows_are_as_long_as_before_after_the_check() -> None:
    """The check shortens sliding windows only while it runs."""
    model = tiny(FAMILIES["mistral"]())
    TransformersBackend(model, "mistral")
    assert model.config.sliding_window == 5


def test_context_ends_where_rope_would_depend_on_the_longest_row() -> None:
    """Where the library switches frequencies by the longest position of a call, the context ends before that."""
    config = FAMILIES["phi3"]()
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
    }
    config.original_max_position_embeddings = 64
    assert TransformersBackend(tiny(config), "phi3").context_length == 64
    assert TransformersBackend(tiny(FAMILIES["phi3"]()), "phi3").context_length == 128
