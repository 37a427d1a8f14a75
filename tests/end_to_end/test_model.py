"""Real weights: what the services say at temperature 0 is what the model library says."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pilotfish.messages import Speculation
from tests.cases.services import Start, until

PROMPTS = [
    'Repeat this JSON with "done" set to true: {"id": 17, "name": "kettle", "done": false}\n{"id": 17, "name":',
    "def area(width, height):\n    return width * height\n\ndef perimeter(width, height):\n    return",
    "The pilot fish swims ahead of the shark because",
]
NUM_TOKENS = 16


def of_the_library(directory: Path, prompts: list[str]) -> list[list[int]]:
    """The library's own greedy continuations, one prompt at a time, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        whole = model.generate(**ids, max_new_tokens=NUM_TOKENS, do_sample=False, use_cache=True)
        answers.append(whole[0, ids["input_ids"].shape[1] :].tolist())
    return answers


@pytest.mark.timeout(900)
async def test_greedy_text_is_the_librarys(smollm2: Path) -> None:
    """In float32 the ids are those of the library's generate: plain, copied and drafted by a model, many at once."""
    # seen in vllm#41758, ArcticInference#143
    wanted = await asyncio.to_thread(of_the_library, smollm2, PROMPTS)
    async with AsyncExitStack() as exits:
        starts = Start(exits, smollm2)
        of_model: dict[str, Any] = {"model": str(smollm2), "dtype": "float32", "device": "cpu"}
        verifier = await starts.verifier(**of_model, num_kv_pages=256)
        drafter = await starts.drafter(["ngram", "model"], **of_model, num_kv_pages=256)
        coordinator = await starts.coordinator([verifier.server.address], [drafter.server.address], model=str(smollm2))
        await until(lambda: all(peer.is_up for peer in coordinator.service.roster.describe()))
        ways = [Speculation(is_off=True)]
        ways += [Speculation(gamma=gamma, speculator="ngram") for gamma in (1, 8)]
        ways += [Speculation(gamma=4, speculator="model")]
        answers = await asyncio.gather(
            *(
                coordinator.client.complete(prompt, temperature=0.0, max_tokens=NUM_TOKENS, speculation=way)
                for prompt in PROMPTS
                for way in ways
            ),
            *(coordinator.client.complete(PROMPTS[2], temperature=0.0, max_tokens=NUM_TOKENS) for _ in range(4)),
        )
        expected = [wanted[i] for i in range(len(PROMPTS)) for _ in ways] + [wanted[2]] * 4
        assert [list(answer.ids) for answer in answers] == expected
        assert sum(answer.statistics.num_accepted_tokens for answer in answers) > 0
        drafted_by_itself = [answer.statistics for answer in answers[len(ways) - 1 :: len(ways)][:3]]
        assert all(each.num_accepted_tokens > 0.8 * each.num_drafted_tokens for each in drafted_by_itself)
