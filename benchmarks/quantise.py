"""What it costs in acceptance that q is cut to K ids and rounded to some bits before it is drawn from.

    python -m benchmarks.quantise --target DIR [--drafter DIR | --layers 26] [--dtype bfloat16]

Acceptance of a token is the sum over ids of min(p, q). It is taken over the positions of texts that were not written
by either model (teacher-forced), for dense q and for what a drafter would really draw from; the table has the
difference in percent points, and the bytes a node takes on the wire. Without --drafter the target's own first layers
draft, a poor drafter; without --target laws are made up, as a Zipf tail with noise.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.passages import PASSAGES
from benchmarks.sampling import rows
from pilotfish import sampling
from pilotfish.draft import Draft
from pilotfish.messages import Sampling
from pilotfish.wire.drafts import write_draft

NUM_IDS = (8, 16, 32, 64, 128, 256)
NUM_BITS = (4, 8, 12, 16)
PARAMETERS = {
    "T = 0.5": Sampling(0.5),
    "T = 0.7, top_p = 0.9": Sampling(0.7, top_p=0.9),
    "T = 1, top_p = 0.95": Sampling(1.0, top_p=0.95),
    "T = 1": Sampling(1.0),
    "T = 1.3": Sampling(1.3),
}


def made_up(num_rows: int) -> tuple[Tensor, Tensor]:
    """Logits of a target and of a drafter that knows it with noise."""
    target = rows(num_rows, 49_152)
    return target, target + 0.7 * torch.randn(target.shape, generator=torch.Generator().manual_seed(1))


def of_models(target: Path, drafter: Path | None, num_layers: int, dtype: str, num_rows: int) -> tuple[Tensor, Tensor]:
    """Logits [R, V] of two models at the same positions, from the third of each text on."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = [" ".join(str(passage) for passage in PASSAGES), inspect.getsource(textwrap)]
    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = [tokenizer(text, return_tensors="pt").input_ids[:, : num_rows * 3 // 4] for text in texts]
    first = num_rows * 3 // 4 - num_rows // 2

    def logits_of(directory: Path, layers: int | None) -> Tensor:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
        if layers is not None:
            model.model.layers = model.model.layers[:layers]
        with torch.no_grad():
            return torch.cat([model(text, use_cache=False).logits[0, first:].float() for text in ids])

    return logits_of(target, None), logits_of(drafter or target, None if drafter else num_layers)


def acceptance(p: Tensor, q: Tensor) -> float:
    """Mean over the rows of the sum of min(p, q)."""
    return float(torch.minimum(p, q).sum(-1).mean())


def quantised_acceptance(p: Tensor, q: Tensor, num_ids: int, num_bits: int) -> tuple[float, float]:
    """Acceptance of what is drawn from the quantised q, and the mean of a node's bytes."""
    kept = torch.zeros_like(q)
    num_bytes = 0
    for row, law in enumerate(sampling.quantised(q, num_ids, num_bits)):
        kept[row, list(law.ids)] = torch.tensor(law.weights, dtype=q.dtype) / law.total
        num_bytes += write_draft(Draft.chain(law.ids[:1], [law])).ByteSize()
    return acceptance(p, kept), num_bytes / len(q)


def print_table(name: str, p: Tensor, q: Tensor) -> None:
    """Loss in percent points for each K and number of bits, bytes a node in brackets."""
    dense = acceptance(p, q)
    print(f"\n{name}: acceptance with dense q {100 * dense:.1f} %")
    print(f"{'K':>6}" + "".join(f"{f'{bits} bits':>16}" for bits in NUM_BITS))
    for num_ids in NUM_IDS:
        cells = [quantised_acceptance(p, q, num_ids, bits) for bits in NUM_BITS]
        print(f"{num_ids:>6}" + "".join(f"{f'{100 * (dense - ours):.2f} ({size:.0f})':>16}" for ours, size in cells))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="directory of the target; absent: laws are made up")
    parser.add_argument("--drafter", type=Path, help="directory of the drafter; absent: the target's first layers")
    parser.add_argument("--layers", type=int, default=26, help="how many of them")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, default=256, help="positions in all")
    given = parser.parse_args(arguments)
    if given.target is None:
        target, drafter = made_up(given.rows)
    else:
        target, drafter = of_models(given.target, given.drafter, given.layers, given.dtype, given.rows)
    print("points of acceptance lost (bytes a node)")
    for name, parameters in PARAMETERS.items():
        laws = [sampling.probabilities(logits, [parameters] * len(logits)) for logits in (target, drafter)]
        print_table(name, *laws)


if __name__ == "__main__":
    main()
