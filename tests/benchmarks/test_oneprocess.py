"""The loop in one process, on a table model: the yardstick must itself be right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.oneprocess import LocalEngine, OneProcess
from benchmarks.prompts import Prompt
from benchmarks.records import Question
from benchmarks.run import Plan, interleaved
from drafter.speculators.ngram import NgramSpeculator
from verifier.settings import VerifierSettings

SCRIPT = [0, 1, 2, 3] * 6 + [4]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    """An engine whose greedy text is SCRIPT."""
    path: Path = tmp_path_factory.mktemp("table") / "script.json"
    path.write_text(json.dumps({"vocabulary": list("abcde"), "end_ids": [4], "script": SCRIPT}))
    return LocalEngine(VerifierSettings(model=f"table:{path}", num_kv_pages=16))


@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
def test_text_is_the_targets(local: LocalEngine, gamma: int) -> None:
    """Whatever γ, the answer is the target's greedy text, and every round is recorded."""
    speculator = NgramSpeculator(2, 4) if gamma else None
    answer = OneProcess("x", local, speculator, gamma).answer(Question((0, 1, 2), 100))
    assert list(answer.ids) == SCRIPT
    assert sum(round_.num_committed for round_ in answer.rounds) == len(SCRIPT)
    assert all(round_.num_drafted <= gamma for round_ in answer.rounds)
    assert (len(answer.rounds) < len(SCRIPT)) is (gamma > 0)
    assert not local.engine.sessions


def test_limit_is_kept(local: LocalEngine) -> None:
    """An answer has at most max_tokens ids, in the middle of a draft too."""
    for max_tokens in range(1, 9):
        answer = OneProcess("x", local, NgramSpeculator(2, 4), 4).answer(Question((0, 1, 2), max_tokens))
        assert list(answer.ids) == SCRIPT[:max_tokens]


def test_arms_take_turns(local: LocalEngine) -> None:
    """Every arm answers every prompt, and each prompt begins with another arm."""
    arms = [OneProcess("plain", local), OneProcess("ngram", local, NgramSpeculator(2, 4), 4)]
    plan = Plan([Prompt("json", name, name, True) for name in "ab"], max_tokens=12, repeats=2)
    measured = list(interleaved(arms, plan, lambda _prompt: (0, 1, 2)))
    assert [one.arm for one in measured] == ["plain", "ngram", "ngram", "plain"] * 2
    assert len({one.answer.ids for one in measured}) == 1
    assert len(measured) == len(plan) * len(arms)
