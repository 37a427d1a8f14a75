"""The first cost curve of a verifier: real passes over a grid of shapes, once per model, device and number format."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from pilotfish.engine.backend import Backend
from pilotfish.engine.batch import Item, pack
from pilotfish.models import cache_directory
from pilotfish.progress import Progress, quiet
from pilotfish.tablefile import TableFile
from verifier.cost import CostCurve, PassShape, knots_up_to

_log = logging.getLogger(__name__)

REPEATS: Final = 3
BUDGET_S: Final = 10.0  # of measuring; what does not fit in is inferred
FAR: Final = 4  # every so many knots are measured first, so that of a slow machine too the whole curve is known
FAR_SHARE: Final = 0.5  # of the budget, for these
CONTEXTS: Final = (32, 512)  # tokens of context a sequence is measured with
SPREAD: Final = 8  # most sequences that a grid point is divided into


def curve_file(model: str, backend: Backend, num_threads: int) -> Path:
    """Where the curve of a model on this device is kept."""
    name = re.sub(r"[^\w.-]+", "-", f"{model}-{backend.device}-{backend.dtype}-{num_threads}").strip("-")
    return cache_directory() / "costs" / f"{name}.json"


def measure(
    backend: Backend,
    num_pages: int,
    page_size: int,
    max_positions: int,
    progress: Progress = quiet,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Run passes over a grid of positions, sequences and context on free pages; nothing of it is kept but the times.

    Args:
        backend: allocated, with no sequence in its KV.
        num_pages: of its KV.
        page_size: tokens in a page.
        max_positions: the last knot.
        progress: is told how far it is.
        clock: in seconds.
    """
    curve = CostCurve(knots_up_to(max_positions))
    shapes: list[PassShape] = []
    seconds: list[float] = []
    far, near = _grid(curve.knots, num_pages * page_size, page_size)
    start_s = clock()
    for done, shape in enumerate([*far, *near]):
        left_s = BUDGET_S * (FAR_SHARE if done < len(far) else 1.0) - (clock() - start_s)
        if shapes and left_s < _expected_s(shape, shapes, seconds):
            continue
        took = sorted(_time(backend, shape, page_size, clock) for _ in range(REPEATS + 1))[:REPEATS]
        shapes += [shape] * len(took)
        seconds += took
        progress("measuring passes", done + 1, len(far) + len(near))
    most = max(shape.num_positions for shape in shapes)
    if most < curve.knots[-1]:
        _log.info("passes of more than %d positions are not measured but extrapolated", most)
    curve.fit(shapes, seconds)
    return curve


def simulated(table: TableFile, max_positions: int) -> CostCurve:
    """The curve of a table model that simulates the length of its passes."""
    curve = CostCurve(knots_up_to(max_positions))
    seconds = [max(table.pass_time_us(n), 1.0) / 1e6 for n in curve.knots]  # no pass takes no time at all
    curve.fit([PassShape(n) for n in curve.knots], seconds)
    return curve


def _grid(knots: Sequence[int], num_slots: int, page_size: int) -> tuple[list[PassShape], list[PassShape]]:
    """Shapes that lie far apart, and those in between."""
    far: list[PassShape] = []
    near: list[PassShape] = []
    for number, positions in enumerate(knots):
        for num_sequences in sorted({1, min(positions, SPREAD)}):
            for context in CONTEXTS:
                rows = -(-positions // num_sequences)
                needed = num_sequences * (-(-(context + rows) // page_size)) * page_size
                if needed <= num_slots:
                    is_far = num_sequences == 1 and context == CONTEXTS[0] and number % FAR == 0
                    (far if is_far else near).append(PassShape(positions, num_sequences, context * num_sequences))
    return far, near


def _expected_s(shape: PassShape, shapes: Sequence[PassShape], seconds: Sequence[float]) -> float:
    """What measuring a shape takes if it is as long, by position, as the nearest one below that was measured."""
    below = [(known.num_positions, took) for known, took in zip(shapes, seconds, strict=True)]
    positions, took = max(each for each in below if each[0] <= shape.num_positions)
    return (REPEATS + 1) * took * shape.num_positions / positions


@torch.inference_mode()
def _time(backend: Backend, shape: PassShape, page_size: int, clock: Callable[[], float]) -> float:
    context = shape.num_context_tokens // shape.num_sequences
    items, first_page = [], 0
    for number in range(shape.num_sequences):
        rows = shape.num_positions // shape.num_sequences + (number < shape.num_positions % shape.num_sequences)
        num_pages = -(-(context + rows) // page_size)
        pages = range(first_page, first_page + num_pages)
        first_page += num_pages
        items.append(Item(pending=[0] * rows, num_context=context, pages=list(pages), num_logits=rows))
    batch = pack(items, page_size)
    start_s = clock()
    backend.forward(batch).argmax(-1).tolist()  # brings it to the host: nothing is still running
    return clock() - start_s
