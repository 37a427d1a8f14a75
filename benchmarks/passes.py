"""What a pass of the target costs: `python -m benchmarks.passes`.

By number of positions against one position, a ragged batch against the model library's padded one, and plain decoding
against its `generate`. Arms take turns in one run; medians of processor time of one thread (of wall time on CUDA or
with several threads), since such a machine is shared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import torch

from pilotfish import models
from pilotfish.engine.batch import Item, pack
from pilotfish.engine.linear import PackedDtype
from pilotfish.engine.model import TransformersBackend

PAGE_SIZE = 16
POSITIONS = (1, 5, 9, 17, 33)
CONTEXTS = (50, 120, 200, 310, 420, 550, 680, 800)  # of the batch
NUM_DECODED = 32


def timed(action: Callable[[], object], is_wall: bool) -> float:
    """Seconds an action takes, of processor time or of wall time."""
    clock = time.perf_counter if is_wall else time.thread_time
    start = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def interleaved(arms: Mapping[str, Callable[[], object]], num_repeats: int, is_wall: bool) -> dict[str, float]:
    """Median milliseconds of each arm; the arms take turns, the first turn does not count."""
    for arm in arms.values():
        arm()
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(num_repeats):
        for name, arm in arms.items():
            seconds[name].append(timed(arm, is_wall))
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


class Ours:
    """Sequences of given contexts in our engine, each in pages of its own."""

    def __init__(self, backend: TransformersBackend, contexts: Sequence[int], tokens: Sequence[int]) -> None:
        self.backend = backend
        self.tokens = tokens
        pages_each = -(-(max(contexts) + 256) // PAGE_SIZE)
        backend.allocate(pages_each * len(contexts), PAGE_SIZE)
        self.sequences = [(context, range(i * pages_each, (i + 1) * pages_each)) for i, context in enumerate(contexts)]
        for context, pages in self.sequences:
            backend.forward(pack([Item(tokens[:context], 0, pages, num_logits=0)], PAGE_SIZE))

    def verify(self, num_positions: int) -> torch.Tensor:
        """A pass over `num_positions` of every sequence, logits at each."""
        items = [
            Item(
                self.tokens[context : context + 1],
                context,
                pages,
                self.tokens[context + 1 : context + num_positions],
                num_logits=num_positions,
            )
            for context, pages in self.sequences
        ]
        return self.backend.forward(pack(items, PAGE_SIZE))

    def decode(self, num_tokens: int) -> None:
        """Greedy, a token a pass, from the first sequence's context on."""
        context, pages = self.sequences[0]
        token = self.tokens[context]
        for i in range(num_tokens):
            logits = self.backend.forward(pack([Item([token], context + i, pages)], PAGE_SIZE))
            token = int(logits[0].argmax())


class Library:
    """The same work as the model library does it: one padded batch, its own cache and attention."""

    def __init__(self, model: Any, contexts: Sequence[int], tokens: Sequence[int]) -> None:
        from transformers import DynamicCache

        self.model, self.contexts, self.tokens = model, contexts, tokens
        width = max(contexts)
        ids = torch.tensor([[0] * (width - context) + list(tokens[:context]) for context in contexts])
        self.mask = torch.tensor([[0] * (width - context) + [1] * context for context in contexts]).to(model.device)
        self.cache = DynamicCache(config=model.config)
        positions = (self.mask.cumsum(1) - 1).clamp_min(0)
        with torch.inference_mode():
            model(
                input_ids=ids.to(model.device),
                attention_mask=self.mask,
                position_ids=positions,
                cache=self.cache,
                logits_to_keep=1,
            )

    @torch.inference_mode()
    def verify(self, num_positions: int) -> torch.Tensor:
        """The padded pass; the cache is rolled back afterwards."""
        ids = [self.tokens[context : context + num_positions] for context in self.contexts]
        positions = [range(context, context + num_positions) for context in self.contexts]
        more = self.mask.new_ones(len(self.contexts), num_positions)
        logits: torch.Tensor = self.model(
            input_ids=torch.tensor(ids, device=self.model.device),
            attention_mask=torch.cat((self.mask, more), dim=1),
            position_ids=torch.tensor([list(row) for row in positions], device=self.model.device),
            cache=self.cache,
        ).logits
        self.cache.crop(-num_positions)
        return logits

    @torch.inference_mode()
    def generate(self, num_tokens: int) -> None:
        """Greedy with `generate`, prefill left out: its cache starts filled."""
        from copy import deepcopy

        context = self.contexts[0]
        ids = torch.tensor([self.tokens[: context + 1]], device=self.model.device)
        self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            cache=deepcopy(self.cache),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
        )


def bandwidth(num_bytes: int = 1 << 29) -> float:
    """Bytes per second of processor time that one thread reads from memory."""
    block = torch.ones(num_bytes // 4)
    block.sum()
    return num_bytes / min(timed(block.sum, is_wall=False) for _ in range(5))


def weight_bytes(model: Any, dtype: PackedDtype) -> int:
    """Bytes of weights that a pass reads: all but the embedding's rows, the head included."""
    numbers: int = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if embedding is not head:
        numbers -= embedding.numel()
    return numbers * {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]


def measure(arguments: argparse.Namespace, dtype: PackedDtype, tokens: Sequence[int]) -> None:
    """Print the tables of one dtype."""
    from transformers import AutoModelForCausalLM

    path = models.provide(arguments.model)
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    plain: Any = AutoModelForCausalLM.from_pretrained(path, dtype=stored).to(arguments.device).eval()
    backend = TransformersBackend.load(path, dtype, arguments.device, is_reproducible=arguments.reproducible)
    is_wall = arguments.device != "cpu" or arguments.threads > 1

    def run(arms: Mapping[str, Callable[[], object]], num_repeats: int = arguments.repeats) -> dict[str, float]:
        return interleaved(arms, num_repeats, is_wall)

    ours = Ours(backend, [256], tokens)
    costs = run({str(n): lambda n=n: ours.verify(n) for n in POSITIONS})  # type: ignore[misc]
    print(f"\n{dtype}: a pass over n positions, batch 1, context 256")
    print("  n        " + "".join(f"{n:>9}" for n in POSITIONS))
    print("  ms       " + "".join(f"{costs[str(n)]:9.1f}" for n in POSITIONS))
    print("  t(n)/t(1)" + "".join(f"{costs[str(n)] / costs['1']:9.2f}" for n in POSITIONS))
    if arguments.device == "cpu":
        floor = 1000 * weight_bytes(plain, dtype) / bandwidth()
        print(f"  floor by memory traffic {floor:.1f} ms: t(1) is {costs['1'] / floor:.2f} of it")

    library = Library(plain, [256], tokens)
    decoding = run(
        {"ours": lambda: ours.decode(NUM_DECODED), "library": lambda: library.generate(NUM_DECODED)},
        max(3, arguments.repeats // 4),
    )
    rates = {name: 1000 * NUM_DECODED / ms for name, ms in decoding.items()}
    print(
        f"  plain decoding, tokens/s: ours {rates['ours']:.1f}, generate in {stored} {rates['library']:.1f}: "
        f"{rates['ours'] / rates['library']:.2f} times"
    )

    batched, padded = Ours(backend, CONTEXTS, tokens), Library(plain, CONTEXTS, tokens)
    arms: dict[str, Callable[[], object]] = {}
    for n in (1, 5):
        arms[f"ragged {n}"] = lambda n=n: batched.verify(n)  # type: ignore[misc]
        arms[f"padded {n}"] = lambda n=n: padded.verify(n)  # type: ignore[misc]
    passes = run(arms)
    print(f"  batch of {len(CONTEXTS)}, contexts {CONTEXTS[0]} to {CONTEXTS[-1]}")
    for n in (1, 5):
        ragged_ms, padded_ms = passes[f"ragged {n}"], passes[f"padded {n}"]
        print(
            f"    {len(CONTEXTS)} x {n}: ragged {ragged_ms:.1f} ms, the library's padded batch in {stored} "
            f"{padded_ms:.1f} ms: {padded_ms / ragged_ms:.2f} times"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=models.DEFAULT_PRESET, help="preset, directory or hub id")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "int8"], choices=get_args(PackedDtype))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each arm")
    parser.add_argument("--reproducible", action="store_true", help="measure with the same bits in every pass")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(100, 10_000, (max(CONTEXTS) + 64,), generator=generator).tolist()
    for dtype in arguments.dtypes:
        measure(arguments, dtype, tokens)


if __name__ == "__main__":
    main()
