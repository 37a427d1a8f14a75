"""Workloads and the tables some of them are for, without a model."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.phases import begun
from benchmarks.tables import generate
from benchmarks.workloads import TABLE_WORKLOADS, Ask, salted, workloads
from pilotfish.errors import NotFound
from pilotfish.tablefile import TableFile

FOLDER = Path(tables.__file__).parent
GPU = f"table:{FOLDER / 'gpu.json'}"


def test_tables_are_what_their_generator_makes() -> None:
    """The files that are checked in and the code that explains them cannot part."""
    for name, content in generate.tables().items():
        assert json.loads((FOLDER / name).read_text()) == content


def test_drafts_are_accepted_at_the_rates_that_are_said() -> None:
    """After every token the drafter's law and the target's overlap by exactly the region's rate."""
    target, drafter = (TableFile.load(FOLDER / name) for name in ("gpu.json", "gpu-drafter.json"))
    assert target.vocabulary_hash == drafter.vocabulary_hash
    for token in range(generate.NUM_IDS):
        overlap = sum(map(min, target.rows[token,], drafter.rows[token,]))
        assert overlap == pytest.approx(generate.ALPHAS[token // generate.SIZE], abs=1e-5)


def test_a_text_stays_in_its_region_and_phases_change_halves() -> None:
    """What may follow a token lies in the token's region; only in `phases` in the other half too."""
    target = TableFile.load(FOLDER / "gpu.json")
    for region, ids in generate.REGIONS.items():
        followers = {id_ for token in ids for id_, weight in enumerate(target.rows[token,]) if weight}
        assert followers == set(ids), region


def test_a_table_has_workloads_of_its_own() -> None:
    """Each begins in its region; half of `both` in either, neighbours in different ones."""
    found = {workload.name: workload for workload in workloads(GPU, (), per_set=3, max_tokens=10)}
    assert tuple(found) == TABLE_WORKLOADS
    for name in ("high", "low", "phases"):
        assert all(set(ask.prompt) <= set(generate.REGIONS[name]) for ask in found[name].asks)
    assert Counter(ask.kind for ask in found["both"].asks) == {"high": 3, "low": 3}
    side_by_side = [next(found["both"].of_worker(worker, 4, 0)).kind for worker in range(4)]
    assert side_by_side == ["high", "low", "high", "low"]
    assert len({ask.prompt for workload in found.values() for ask in workload.asks}) > 12
    assert found == {workload.name: workload for workload in workloads(GPU, (), per_set=3, max_tokens=10)}


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    """The error names what was asked for and what a table has."""
    with pytest.raises(NotFound, match=r"'chat'.*high, low, both, phases"):
        workloads(GPU, ["chat"], 1, 8)


def test_answers_of_phases_are_begun_twice() -> None:
    """The form stands in the question and twice in the answer, and no two conversations are alike."""
    found = [begun(number) for number in range(32)]
    assert len(set(found)) == 32
    for question, answer in found:
        form = question.partition("Form:\n")[2].partition("\n\nSubjects")[0]
        assert answer.count(form) == 2
        assert answer.rstrip().rpartition("## ")[2].lower() in question


def test_salt_goes_before_the_prompt() -> None:
    """Different numbers give different beginnings; what follows is the prompt."""
    ask = Ask("a", (7, 8), 4)
    found = [salted(ask, number, 32).prompt for number in islice(range(0, 32**4, 997), 200)]
    assert len(set(found)) == len(found)
    assert {prompt[-2:] for prompt in found} == {(7, 8)}
    assert all(0 <= id_ < 32 for prompt in found for id_ in prompt)
