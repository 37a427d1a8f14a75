"""The engine over models of the library: greedy text is the library's own, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pilotfish.draft import Draft
from pilotfish.engine.model import TransformersBackend
from tests.engine.models import FAMILIES, VOCABULARY_SIZE, random_ids, tiny
from tests.verifier.bench import Bench, random_table
from verifier.schedule import PassLimits

NUM_TOKENS = 40


def prompt(number: int) -> list[int]:
    return random_ids(3 + 5 * number, seed=number)


def library_greedy(model: Any, tokens: list[int]) -> list[int]:
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([tokens], device=model.device),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long, device=model.device),
            max_new_tokens=NUM_TOKENS + 10,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    ids: list[int] = output[0, len(tokens) :].tolist()
    return ids


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_greedy_text_is_the_librarys_whatever_is_drafted(family: str, device: str) -> None:
    """Free, with perfect, wrong and partly right chains and with trees, in shared passes over a pool that is short."""
    model = tiny(FAMILIES[family](), device)
    texts = [library_greedy(model, prompt(number)) for number in range(5)]
    table = random_table(context_length=128)
    limits = PassLimits(max_positions=48, prefill_positions=12)
    backend = TransformersBackend(model, family)
    bench = Bench(table, num_pages=36, page_size=4, limits=limits, backend=backend, vocabulary_size=VOCABULARY_SIZE)
    sessions = [bench.session(prompt(number), max_tokens=NUM_TOKENS) for number in range(5)]

    def wrong(token: int) -> int:
        return 3 + (token + 1) % (VOCABULARY_SIZE - 3)

    def draft(number: int, rest: list[int]) -> Draft:
        match number:
            case 1:
                return Draft.chain(rest[:5])
            case 2:
                return Draft.chain([wrong(token) for token in rest[:4]])
            case 3:
                return Draft.chain([*rest[:2], wrong(rest[2])])
            case _:
                tokens = (wrong(rest[0]), rest[0], rest[1], wrong(rest[1]), rest[2])
                return Draft(tokens, (-1, -1, 1, 1, 2), (None,) * 5)

    while not all(session.verdicts and session.verdicts[-1].finish for session in sessions):
        for number, session in enumerate(sessions):
            if session.verdicts and session.verdicts[-1].finish:
                continue
            if number == 0:
                session.work(grant=3)
            else:
                session.work(draft(number, texts[number][len(session.output) :]), grant=1)
        bench.settle()
    assert [session.output for session in sessions] == [text[:NUM_TOKENS] for text in texts]
    assert sum(record.num_preempted for record in bench.record.passes) > 0
