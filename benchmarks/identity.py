"""Greedy ids through the services against the model library's own generate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import baselines, report, services
from benchmarks.prompts import Prompt, of_all_kinds
from benchmarks.records import Arm, Question
from benchmarks.run import Encode
from pilotfish import models
from pilotfish.cli.up import running, unseen
from pilotfish.client import Client

if TYPE_CHECKING:
    from benchmarks.setup import Setup
    from pilotfish.engine.backend import Backend

PASS_ROWS = (1, 2, 5, 9)  # passes of a session that drafts 0, 1, 4, 8 tokens


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer first departs from the reference."""

    arm: str
    prompt: str
    index: int  # tokens that are equal before
    expected: int | None  # None: the reference has ended there
    found: int | None  # None: the answer has
    margin: float | None = None  # logits between the two ids there, in the dtype; None: one of them had ended


@dataclass(frozen=True, slots=True)
class Noise:
    """By how much the margin of two likeliest ids moves between passes of different shape."""

    num_positions: int
    median: float
    largest: float


def run(
    setup: Setup,
    count: int,
    max_tokens: int,
    speculators: Sequence[str],
    encode: Encode,
    out: Path,
    progress: Callable[[int], Callable[[str], None]],
) -> int:
    """Compare, print and write; the number of answers that differ.

    The reference is the library's generate in the same dtype; int8, which it does not have here, is compared with
    plain decoding.
    """
    prompts = [(prompt, encode(prompt)) for prompt in of_all_kinds(count, is_held_out=None)]
    has_library = setup.dtype in baselines.DTYPES
    with ExitStack() as stack:
        fleet = stack.enter_context(running(setup.local, unseen))
        client = stack.enter_context(Client(fleet.address("coordinator")))
        arms: list[Arm] = [services.plain(client)] if 0 in setup.gammas or not has_library else []
        arms += [services.speculative(client, name, gamma) for name in speculators for gamma in setup.gammas if gamma]
        reference: Arm = arms[0]
        if has_library:
            model = baselines.load(models.provide(setup.model), setup.dtype, setup.threads)
            reference = baselines.plain(model)
        tell = progress(len(prompts) * (len(arms) + has_library))
        answers = {str(prompt): reference.answer(Question(ids, max_tokens)).ids for prompt, ids in prompts}
        differences = list(_compare(arms, prompts, answers, max_tokens, tell))
    noise = None
    if setup.dtype != "float32" and differences:
        differences, noise = _weigh(setup, differences, {str(prompt): ids for prompt, ids in prompts}, answers)
    _show(setup, arms, reference.name, len(prompts), max_tokens, differences, noise)
    facts = {
        "setup": asdict(setup),
        "reference": reference.name,
        "num_prompts": len(prompts),
        "max_tokens": max_tokens,
        "arms": [arm.name for arm in arms],
        "differences": differences,
        "noise": noise,
    }
    path = report.write(out, f"identity-{setup.dtype}-{time.strftime('%Y%m%d-%H%M%S')}", facts, [])
    print(f"\nraw data: {path}")
    return len(differences)


def _compare(
    arms: Sequence[Arm],
    prompts: Sequence[tuple[Prompt, tuple[int, ...]]],
    expected: dict[str, tuple[int, ...]],
    max_tokens: int,
    tell: Callable[[str], None],
) -> Iterator[Difference]:
    for prompt, ids in prompts:
        for arm in arms:
            found = arm.answer(Question(ids, max_tokens)).ids
            difference = first_difference(arm.name, str(prompt), expected[str(prompt)], found)
            tell(f"{prompt} {arm.name}: {'equal' if difference is None else f'differs from token {difference.index}'}")
            if difference is not None:
                yield difference


def first_difference(arm: str, prompt: str, expected: Sequence[int], found: Sequence[int]) -> Difference | None:
    """Where two answers part; None where they are equal."""
    if tuple(expected) == tuple(found):
        return None
    pairs = zip(expected, found, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(found)))
    return Difference(
        arm,
        prompt,
        index,
        expected[index] if index < len(expected) else None,
        found[index] if index < len(found) else None,
    )


# ---- what a difference means in a dtype that rounds --------------------------------------------------------------


def _weigh(
    setup: Setup,
    differences: Sequence[Difference],
    prompts: dict[str, tuple[int, ...]],
    answers: dict[str, tuple[int, ...]],
) -> tuple[list[Difference], Noise]:
    """The margin at each difference, and the noise of margins over all answers in which there was one."""
    from verifier.settings import VerifierSettings
    from verifier.target import Target

    settings = VerifierSettings(model=setup.model, dtype=setup.dtype, threads=setup.threads)
    backend = Target.load(settings).backend
    longest = max(len(prompts[one.prompt]) + len(answers[one.prompt]) for one in differences)
    backend.allocate(-(-longest // settings.page_size), settings.page_size)
    moved: list[float] = []
    weighed: list[Difference] = []
    for name in dict.fromkeys(one.prompt for one in differences):
        logits = [_logits(backend, settings.page_size, prompts[name], answers[name], rows) for rows in PASS_ROWS]
        moved += _movements(logits)
        weighed += [_with_margin(one, logits[0]) for one in differences if one.prompt == name]
    return weighed, Noise(len(moved), statistics.median(moved), max(moved))


def _with_margin(one: Difference, logits: Any) -> Difference:
    if one.expected is None or one.found is None:
        return one
    margin = abs(float(logits[one.index, one.expected] - logits[one.index, one.found]))
    return Difference(one.arm, one.prompt, one.index, one.expected, one.found, margin)


def _movements(logits: Sequence[Any]) -> list[float]:
    """At each position: the most the margin of the two likeliest ids moves between the shapes."""
    likeliest = logits[0].topk(2, dim=-1).indices
    margins = [shape.gather(-1, likeliest).diff(dim=-1)[:, 0] for shape in logits]
    largest, smallest = margins[0].clone(), margins[0].clone()
    for margin in margins[1:]:
        largest, smallest = largest.maximum(margin), smallest.minimum(margin)
    return [float(value) for value in largest - smallest]


def _logits(backend: Backend, page_size: int, prompt: Sequence[int], answer: Sequence[int], num_rows: int) -> Any:
    """Logits before each token of an answer, read in passes of `num_rows` rows: [len(answer), V]."""
    import torch

    from pilotfish.engine.batch import Item, pack

    tokens = (*prompt, *answer)
    pages = range(-(-len(tokens) // page_size))
    parts = [backend.forward(pack([Item(prompt, 0, pages)], page_size)).clone()]
    for start in range(len(prompt), len(tokens) - 1, num_rows):
        pending = tokens[start : min(start + num_rows, len(tokens) - 1)]
        parts.append(backend.forward(pack([Item(pending, start, pages, num_logits=len(pending))], page_size)).clone())
    return torch.cat(parts)


# ---- output ------------------------------------------------------------------------------------------------------


def _show(
    setup: Setup,
    arms: Sequence[Arm],
    reference: str,
    num_prompts: int,
    max_tokens: int,
    differences: Sequence[Difference],
    noise: Noise | None,
) -> None:
    print(f"{setup.model}, {setup.dtype}, greedy, at most {max_tokens} tokens; reference: {reference}\n")
    by_arm = {arm.name: [one for one in differences if one.arm == arm.name] for arm in arms}
    rows = [(name, str(num_prompts), str(len(found))) for name, found in by_arm.items()]
    rows.append(("all", str(num_prompts * len(arms)), str(len(differences))))
    print(report.markdown(("arm", "answers", "different"), rows))
    if noise is None:
        return
    print(f"\nnoise of the top-2 margin between passes of {', '.join(map(str, PASS_ROWS))} rows, over", end=" ")
    print(f"{noise.num_positions} positions: median {noise.median:.3f}, largest {noise.largest:.3f}\n")
    margins = [
        (one.arm, one.prompt, str(one.index), "" if one.margin is None else f"{one.margin:.3f}", _verdict(one, noise))
        for one in differences
    ]
    print(report.markdown(("arm", "prompt", "equal tokens", "margin", "under the noise"), margins))


def _verdict(one: Difference, noise: Noise) -> str:
    if one.margin is None:
        return "?"
    return "yes" if one.margin <= noise.largest else "NO"
