"""The example in the documentation is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drafter.settings import DrafterSettings
from tests.drafter.openings import opening, request
from tests.drafter.stream import served

DOCUMENT = Path(__file__).parents[2] / "docs" / "speculators.md"
A = b"a" * 16


async def test_documented_speculator_drafts_through_a_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class in docs/speculators.md, named as module:Class, drafts what has followed most often."""
    [code] = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len([line for line in code[code.index("class") :].splitlines() if line.strip()]) <= 30
    (tmp_path / "documented_speculator.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    text = [1, 2, 1, 3, 1, 2, 4, 1]

    async with (
        served(DrafterSettings(speculators=("documented_speculator:Frequent",))) as drafter,
        drafter.stream() as stream,
    ):
        at = drafter.incarnation
        await stream.open(opening(A, text, incarnation=at))
        first, _ = await stream.propose(request(A, text, 3, incarnation=at, told=8))
        text += [3, 3, 3, 1]
        second, _ = await stream.propose(request(A, text, 2, incarnation=at, told=8, round_=1))
        assert first.tokens == (2, 1, 2)
        assert second.tokens == (2, 1), "2 and 3 have followed 1 twice each, 2 first"
