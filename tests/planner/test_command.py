"""`pilotfish plan` prints the known figures and refuses what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotfish.cli.application import run


def test_prints_tokens_and_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    """The textbook case shows its tokens, its speedup and the best γ."""
    assert run(["plan", "--alpha", ".8", "--c", ".05", "--gamma", "4"]) == 0
    out = capsys.readouterr().out
    assert "3.36 tokens a round, 2.80×" in out
    assert "best γ 8: 3.09×" in out


def test_marks_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """A combination that is slower than plain decoding is called a loss."""
    assert run(["plan", "--alpha", ".4", "--c", ".3", "--gamma", "4"]) == 0
    assert "1.65 tokens a round, 0.75×, a loss" in capsys.readouterr().out


def test_tells_the_saturation_story(capsys: pytest.CaptureFixture[str]) -> None:
    """With a batch and a GPU it says how far below or over the ridge the passes are."""
    assert run(["plan", "--gamma", "4", "--batch", "64", "--gpu", "h100"]) == 0
    assert "ridge 295 positions: batch 64 alone 22%, with γ 4 320 positions, 108%, over it" in capsys.readouterr().out


def test_speaks_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object; --plot leaves a picture."""
    picture = tmp_path / "plan.png"
    assert run(["plan", "--json", "--weights-gb", "16", "--gamma", "4", "--plot", str(picture)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["speedup"] == pytest.approx(3.3616 / 1.2)
    assert facts["gigabytes_read_per_token"]["speculative"] == pytest.approx(16 / 3.3616)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--alpha", "1.4"], "--alpha 1.4"),
        (["--alpha", "nan"], "--alpha nan"),
        (["--c", "-1"], "--c -1"),
        (["--rtt", "-1"], "--rtt -1"),
        (["--gamma", "1000"], "--gamma 1000"),
        (["--batch", "0"], "--batch 0"),
        (["--gpu", "H1000"], "--gpu H1000"),
        (["--ridge", "0"], "--ridge 0"),
    ],
)
def test_refuses_nonsense_by_name(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value outside the formula's reach is an error that names it."""
    assert run(["plan", *arguments]) == 1
    assert named in capsys.readouterr().err
