"""What it costs to turn a row of logits into p, and to decide on a draft: `python -m benchmarks.sampling`.

A histogram of the bits against a full sort, interleaved in one run; processor time of one thread, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pilotfish import sampling
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from verifier.acceptance import Round, accept

PARAMETERS = {
    "T = 0": Sampling(0.0),
    "T = 1": Sampling(),
    "T = 0.7, top_p = 0.9": Sampling(0.7, top_p=0.9),
    "T = 1, top_p = 0.9": Sampling(1.0, top_p=0.9),
    "T = 1, top_p = 0.95": Sampling(1.0, top_p=0.95),
    "T = 1, top_k = 50": Sampling(1.0, top_k=50),
    "T = 0.7, top_k = 50, top_p = 0.95": Sampling(0.7, top_k=50, top_p=0.95),
}


def rows(num_rows: int, num_ids: int, scale: float = 2.0) -> Tensor:
    """Logits as a language model has them: a Zipf tail with noise."""
    generator = torch.Generator().manual_seed(0)
    rank = torch.stack([torch.randperm(num_ids, generator=generator) for _ in range(num_rows)]) + 1.0
    return scale * torch.randn(num_rows, num_ids, generator=generator) - 1.2 * rank.log()


def interleaved(arms: Mapping[str, Callable[[], object]], num_repeats: int) -> dict[str, float]:
    """Median processor time of each arm in milliseconds; the arms take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(num_repeats):
        for name, arm in arms.items():
            start = time.thread_time()
            arm()
            seconds[name].append(time.thread_time() - start)
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def whole_sort(logits: Tensor, parameters: Sampling) -> Tensor:
    """The law by sorting each row."""
    weights = (logits / max(parameters.temperature, 1e-6)).softmax(-1)
    values, ids = weights.sort(stable=True, dim=-1, descending=True)
    if parameters.top_k is not None:
        values[:, parameters.top_k :] = 0.0
    if parameters.top_p is not None:
        reached = values.cumsum(-1, dtype=torch.float64)
        values[reached - values >= parameters.top_p * reached[:, -1:]] = 0.0
    return weights.scatter_(-1, ids, values / values.sum(-1, keepdim=True))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=49_152, help="size of the vocabulary")
    parser.add_argument("--rows", type=int, default=8, help="rows of a call")
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logits = rows(arguments.rows, arguments.ids)
    print(f"{arguments.ids} ids, {arguments.rows} rows a call, one thread; processor ms a row")
    print(f"{'p':36}{'ours':>8}{'sorted':>8}{'kept ids':>18}")
    for name, parameters in PARAMETERS.items():
        times = interleaved(
            {
                "ours": lambda own=parameters: sampling.probabilities(logits, [own] * len(logits)),  # type: ignore[misc]
                "sorted": lambda own=parameters: whole_sort(logits, own),  # type: ignore[misc]
            },
            arguments.repeats,
        )
        kept = (sampling.probabilities(logits, [parameters] * len(logits)) > 0).sum(-1)
        print(
            f"{name:36}{times['ours'] / len(logits):8.2f}{times['sorted'] / len(logits):8.2f}"
            f"{f'{int(kept.min())} to {int(kept.max())}':>18}"
        )
    print_acceptance(logits[:5], arguments.repeats)


def print_acceptance(logits: Tensor, repeats: int) -> None:
    """What `accept` takes beyond the probabilities, for one chain of four nodes."""
    print(f"\n{'accept, one chain of 4, ms a round':36}{'all':>8}{'p alone':>8}")
    for name, parameters in PARAMETERS.items():
        law = sampling.probabilities(logits, [Sampling(1.2)] * len(logits))
        tokens = law.argmax(-1).tolist()[:4]
        draft = Draft.chain(tokens, sampling.quantised(law[:4], 64, 8))
        for rule in Rule:
            round_ = Round(0, draft, parameters, rule, 1, 100)
            times = interleaved(
                {
                    "accept": lambda own=round_: accept([own], logits),  # type: ignore[misc]
                    "p": lambda own=parameters: sampling.probabilities(logits, [own] * len(logits)),  # type: ignore[misc]
                },
                repeats,
            )
            print(f"{f'{rule.value}, {name}':36}{times['accept']:8.2f}{times['p']:8.2f}")


if __name__ == "__main__":
    main()
