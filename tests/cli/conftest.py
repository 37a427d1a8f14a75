"""The three services, for the commands that need them: started by what `up` starts them with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.cli.local import Local
from pilotfish.cli.up import running, unseen

# Greedy text after any prompt: repeats itself, so that n-grams find something, and ends by itself.
SCRIPT = "ABC ABC ABC ABC ABCD."
VOCABULARY = ["A", "B", "C", "D", " ", "."]


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table model whose greedy text is SCRIPT.

    Its passes take so long that a draft is there before the next one: a table alone outruns any drafter.
    """
    path = tmp_path_factory.mktemp("table") / "script.json"
    content = {
        "vocabulary": VOCABULARY,
        "end_ids": [VOCABULARY.index(".")],
        "script": [VOCABULARY.index(character) for character in SCRIPT],
        "context_length": 128,
        "pass_us": [[64, 10_000]],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="session")
def coordinator(table: Path) -> Iterator[str]:
    """Address of a coordinator with a verifier and an n-gram drafter, as `up --gamma 4` starts them."""
    with running(Local(model=f"table:{table}", gamma="4", port=0), unseen, timeout_s=100) as fleet:
        yield fleet.address("coordinator")
