"""`pilotfish plan` prints the known figures and refuses what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilotfish.cli import measured
from pilotfish.cli.application import run
from pilotfish.cli.info import Answer
from pilotfish.speedup import expected_tokens


def test_prints_tokens_and_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    """The textbook case shows its tokens, its speedup and the best γ."""
    assert run(["plan", "--alpha", ".8", "--c", ".05", "--gamma", "4"]) == 0
    out = capsys.readouterr().out
    assert "3.36 tokens a round, 2.80×" in out
    assert "best γ 8: 3.09×" in out
    assert "weights read per token: 0.30 times their size" in out


def test_marks_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """A combination that is slower than plain decoding is called a loss, in the table too."""
    assert run(["plan", "--alpha", ".4", "--c", ".3", "--gamma", "4"]) == 0
    out = capsys.readouterr().out
    assert "1.65 tokens a round (1.64 cut), 0.75×, a loss" in out
    assert "0.75▾" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--alpha", ".5", "--gamma", "3"], "γ 3 → 10: 1.88 → 2.00 tokens a round (+7%) for +233% drafting"),
        (["--alpha", ".7", "--gamma", "4"], "α 0.7 → 0.9: 2.77 → 4.10 tokens a round (+48%)"),
        (["--alpha", ".7", "--gamma", "4"], "γ 4 → 10: 2.77 → 3.27 tokens a round (+18%) for +150% drafting"),
        (["--alpha", ".5", "--c", ".15", "--gamma", "4"], "1.94 tokens a round (1.93 cut), 1.21×"),
        (["--alpha", ".8", "--c", ".15", "--gamma", "4"], "3.36 tokens a round, 2.10×"),
        (["--gamma", "4", "--gpu", "h100"], "ridge 295 positions: batch 1 alone 0.3%, with γ 4 5 positions, 1.7%"),
    ],
)
def test_prints_known_figures(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a deeper draft and a better drafter would give stands there as the field knows it."""
    assert run(["plan", *arguments]) == 0
    assert sentence in capsys.readouterr().out


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
    assert [lever["name"] for lever in facts["levers"]]
    assert picture.read_bytes().startswith(b"\x89PNG")


FACTS: dict[str, dict[str, Any]] = {
    "coordinator": {
        "acceptance_rate": 0.75,
        "peers": [
            {"role": "verifier", "address": "v:1", "is_up": True, "round_trip_us": 400},
            {"role": "drafter", "address": "d:1", "is_up": True, "round_trip_us": 600, "draft_start_us": 1000,
             "draft_token_us": 2000},
            {"role": "drafter", "address": "d:2", "is_up": False, "round_trip_us": 1},
        ],
    },
    "verifier": {"cost_curve": {"positions": [1, 8, 64], "pass_us": [20_000, 20_000, 40_000], "ridge": 40}},
}  # fmt: skip


def test_takes_what_a_running_service_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--from takes α, c, round trip and cost curve from a coordinator and its verifier; what is given counts more."""

    def ask(address: str) -> Answer:
        role = "verifier" if address.startswith("v") else "coordinator"
        return Answer(role, True, FACTS[role])

    monkeypatch.setattr(measured, "ask", ask)
    assert run(["plan", "--from", "here", "--json", "--gamma", "4", "--batch", "8"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["alpha"] == pytest.approx(0.75)
    assert facts["c"] == pytest.approx(0.1)
    assert facts["round_trip"] == pytest.approx(0.1)
    length = 1.0 + (8 * 5 - 8) / 56
    expected = expected_tokens(0.75, 4) / (0.4 + length + 0.1)
    assert facts["saturation"][1]["speedup"] == pytest.approx(expected)
    assert facts["measured"]["fields"] == ["α", "c", "round trip", "cost curve"]
    assert run(["plan", "--from", "here", "--json", "--alpha", ".5"]) == 0
    assert json.loads(capsys.readouterr().out)["alpha"] == 0.5


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
