"""Prompt sets that need no download."""

from __future__ import annotations

import json

import pytest

from benchmarks.documents import REWRITINGS
from benchmarks.passages import PASSAGES
from benchmarks.prompts import prompts
from pilotfish.errors import NotFound

OFFLINE = ("code_edit", "quotes", "retrieval", "json")


@pytest.mark.parametrize("name", OFFLINE)
def test_held_out_and_tuned_prompts_share_nothing(name: str) -> None:
    """No prompt is both held out and not, together they are all, and each part has some."""
    held_out = {prompt.text for prompt in prompts([name])}
    tuned = {prompt.text for prompt in prompts([name], is_held_out=False)}
    assert held_out
    assert tuned
    assert not held_out & tuned
    assert held_out | tuned == {prompt.text for prompt in prompts([name], is_held_out=None)}


def test_prompts_are_the_same_every_time() -> None:
    """Two runs ask the same, so that figures can be compared."""
    assert prompts(OFFLINE) == prompts(OFFLINE)
    assert [prompt.set for prompt in prompts(OFFLINE, per_set=2)] == [name for name in OFFLINE for _ in range(2)]


def test_an_unknown_set_is_refused_with_those_there_are() -> None:
    """The error names the set that was asked for and the sets that exist."""
    with pytest.raises(NotFound, match=r"'nosuch'.*chat.*json"):
        prompts(["nosuch"])


def test_answers_to_copy_stand_in_the_prompt() -> None:
    """Every JSON prompt holds a whole document, every retrieval prompt its passage."""
    for prompt, rewriting in zip(prompts(["json"], is_held_out=None), REWRITINGS, strict=True):
        document = prompt.text.partition("```json\n")[2].partition("\n```")[0]
        assert json.loads(document) == rewriting.document
    for prompt, passage in zip(prompts(["retrieval"], is_held_out=None), PASSAGES, strict=True):
        assert passage.text in prompt.text
        assert prompt.text.endswith(passage.question)
