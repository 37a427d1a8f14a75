"""Arms of the model library itself: its own generate, prompt lookup and assisted generation.

They run in this process, with the same weights, the same number format and the same number of threads as the services.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import Answer, Question, RoundRecord

DTYPES = ("float32", "bfloat16")


def load(directory: Path, dtype: str, num_threads: int) -> Any:
    """The library's model, ready to generate on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()


class _Clock:
    """A streamer, as `generate` knows it: notes when each piece came, and how long it was."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, int]] = []
        self._is_prompt = True

    def put(self, ids: Any) -> None:
        if self._is_prompt:
            self._is_prompt = False
        else:
            self.pieces.append((time.perf_counter(), ids.numel()))

    def end(self) -> None:
        """Nothing is held back."""


@dataclass(frozen=True, slots=True)
class Library:
    """`model.generate` with some of its options."""

    name: str
    model: Any
    options: dict[str, Any]

    def answer(self, question: Question) -> Answer:
        """Generate, greedily or by chance, and note when each pass's tokens came."""
        import torch

        clock = _Clock()
        prompt = torch.tensor([question.prompt])
        torch.manual_seed(question.seed)
        chance = {"do_sample": True, "temperature": question.temperature, "top_k": 0, "top_p": 1.0}
        greedy = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        begin = time.perf_counter()
        with torch.inference_mode():
            output = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=question.max_tokens,
                streamer=clock,
                **(chance if question.temperature > 0 else greedy),
                **self.options,
            )
        end = time.perf_counter()
        times = [begin, *(when for when, _ in clock.pieces)]
        rounds = tuple(
            RoundRecord(count, start_us=round((times[i] - begin) * 1e6), verify_us=round((when - times[i]) * 1e6))
            for i, (when, count) in enumerate(clock.pieces)
        )
        first_s, num_first = clock.pieces[0]
        return Answer(
            tuple(output[0, len(question.prompt) :].tolist()), num_first, first_s - begin, end - begin, rounds
        )


def plain(model: Any) -> Library:
    """The library's generate."""
    return Library("library", model, {})


def lookup(model: Any, gamma: int) -> Library:
    """The library's prompt lookup: drafts of up to `gamma` tokens copied from the text so far."""
    return Library(f"library lookup γ={gamma}", model, {"prompt_lookup_num_tokens": gamma})


def assisted(model: Any, drafter: Any, gamma: int) -> Library:
    """The library's assisted generation with a fixed number of drafted tokens.

    The number is a setting of the drafter's model, so one drafter serves one such arm.
    """
    drafter.generation_config.num_assistant_tokens = gamma
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafter.generation_config.assistant_confidence_threshold = 0.0
    return Library(f"library assisted γ={gamma}", model, {"assistant_model": drafter})
