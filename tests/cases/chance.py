"""A law whose text falls into independent runs of three tokens, and what the counts of such runs say."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.stats import chi2, ncx2

from pilotfish.messages import Sampling
from pilotfish.tablefile import TableFile
from tests.drafters import processed

NUM_IDS = 3  # a place
FALSE_ALARM = 1e-4
RUN = 3  # tokens


def runs_table(seed: int = 5) -> Mapping[str, Any]:
    """Ids 0 to 2 begin a run, 3 to 5 go on, 6 to 8 end it: each place has its own law given those before it.

    What begins a run does not depend on the one before, so one long text is many runs, independent of one another, and
    drafts begin and end at every place of them.
    """
    source = random.Random(seed)
    size = RUN * NUM_IDS

    def row(place: int) -> dict[str, float]:
        return {str(place * NUM_IDS + i): source.uniform(0.3, 3.0) for i in range(NUM_IDS)}

    first = row(0)
    law: dict[str, Any] = {"*": first} | {str(i): first for i in range(2 * NUM_IDS, size)}
    law |= {str(i): row(1) for i in range(NUM_IDS)}
    law |= {f"{i},{j}": row(2) for i in range(NUM_IDS) for j in range(NUM_IDS, 2 * NUM_IDS)}
    law |= {f"{i},{j}": first for i in range(NUM_IDS, 2 * NUM_IDS) for j in range(2 * NUM_IDS, size)}
    return {"vocabulary": list("abcdefghi"), "law": law}


def runs(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The runs of a text; an unfinished last one is left out."""
    return [tuple(ids[start : start + RUN]) for start in range(0, len(ids) - RUN + 1, RUN)]


def law_of_runs(table: TableFile, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact probability of every run."""
    law: dict[tuple[int, ...], float] = {}
    size = RUN * NUM_IDS
    places = [range(place * NUM_IDS, (place + 1) * NUM_IDS) for place in range(RUN)]
    for run in itertools.product(*places):
        probability = 1.0
        for place, token in enumerate(run):
            weights = processed(table.probabilities([size - 1, *run[:place]]), sampling)
            probability *= weights[token] / sum(weights)
        law[run] = probability
    return law


def p_value(counts: Counter[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> float:
    """Chance that the law gives counts at least as far off; 0 where something came that it never gives.

    Cells that expect less than five are counted as one.
    """
    total = sum(counts.values())
    if any(law.get(run, 0.0) == 0.0 for run in counts):
        return 0.0
    observed, expected = [0.0], [0.0]
    for run, probability in law.items():
        if probability * total < 5:
            observed[0] += counts[run]
            expected[0] += probability * total
        elif probability:
            observed.append(counts[run])
            expected.append(probability * total)
    cells = [(o, e) for o, e in zip(observed, expected, strict=True) if e > 0]
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def power(num_runs: int, distance: float, num_cells: int = NUM_IDS**RUN) -> float:
    """Chance to see a law that is off by `distance` in total variation, spread in proportion over all cells."""
    threshold = chi2.isf(FALSE_ALARM, num_cells - 1)
    return float(ncx2.sf(threshold, num_cells - 1, num_runs * (2 * distance) ** 2))


def count(texts: Iterable[Sequence[int]]) -> Counter[tuple[int, ...]]:
    """How often each run came."""
    return Counter(run for text in texts for run in runs(text))
