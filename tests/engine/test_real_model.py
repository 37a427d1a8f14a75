"""The engine on the small real model: text equal to the model library's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pilotfish.engine.batch import Item, pack
from pilotfish.engine.kv import KVPool
from pilotfish.engine.model import TransformersBackend
from pilotfish.engine.selfcheck import TOLERANCE

PAGE = 16
PROMPTS = (
    "<|im_start|>user\nWhat is a pilot fish?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    '{"name": "Ada", "age": 36}\n{"name": "Alan", "age": 41}\n{"name": "Grace",',
)
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def reference(smollm2: Path, device: str) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and their greedy continuations by the library's `generate`, float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).to(device)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        whole = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False
        )
        texts.append(whole[0, len(prompt) :].tolist())
    return prompts, texts


@pytest.fixture(scope="module")
def backend(smollm2: Path, device: str) -> TransformersBackend:
    return TransformersBackend.load(smollm2, "float32", device)


def test_greedy_rounds_equal_generate(
    backend: TransformersBackend, reference: tuple[list[list[int]], list[list[int]]]
) -> None:
    """Three prompts in one engine, half-right trees as drafts, rollback and compaction: the library's very ids."""
    prompts, expected = reference
    pool = KVPool(40, PAGE)
    backend.allocate(40, PAGE)
    for i, prompt in enumerate(prompts):
        pool.open(i, prompt)
    tokens = [list(prompt) for prompt in prompts]
    done = [0] * len(prompts)
    while any(len(tokens[i]) < len(prompts[i]) + NUM_TOKENS for i in range(len(prompts))):
        items, owners, parents = [], [], (-1, -1, 1, 1, 3)
        for i, prompt in enumerate(prompts):
            num_made = len(tokens[i]) - len(prompt)
            if num_made >= NUM_TOKENS:
                continue
            ahead = [*expected[i][num_made : num_made + 3], 0, 0, 0]
            nodes = [5, ahead[0], 6, ahead[1], ahead[2]]  # the right path is nodes 1, 3, 4
            pool.reserve(i, len(tokens[i]) + len(nodes))
            pending = tokens[i][done[i] :]
            items.append(Item(pending, done[i], pool.pages(i), nodes, parents, num_logits=1 + len(nodes)))
            owners.append(i)
        choices = backend.forward(pack(items, PAGE)).argmax(dim=-1).view(len(items), -1).tolist()
        for i, item, choice in zip(owners, items, choices, strict=True):
            node, path = -1, []
            while True:
                tokens[i].append(choice[1 + node])
                children = [
                    c for c, parent in enumerate(parents) if parent == node and item.nodes[c] == choice[1 + node]
                ]
                if not children:
                    break
                node = children[0]
                path.append(node)
            length = item.num_context + len(item.pending)
            backend.copy(*pool.move(i, [length + node for node in path], length))
            done[i] = length + len(path)
            pool.advance(i, done[i])
            pool.truncate(i, done[i])
            pool.check()
    for i, prompt in enumerate(prompts):
        assert tokens[i][len(prompt) :][:NUM_TOKENS] == expected[i]


def test_bfloat16_is_packed_without_change(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing bfloat16 weights changes logits by less than the rounding of the dtype; the check in float32 passes."""
    monkeypatch.setitem(TOLERANCE, torch.bfloat16, 0.0)  # so that it is asked, however little this CPU rounds
    backend = TransformersBackend.load(smollm2, "bfloat16")
    assert backend.packed_deviation is not None
    assert backend.packed_deviation.largest < 0.05
    assert backend.deviation.largest < 1e-3
    assert backend.kv_bytes_per_token == 30 * 3 * 64 * 2 * 2
