"""`pilotfish simulate` answers what-ifs and refuses nonsense by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulator import hardware, trace
from pilotfish.cli.application import run
from pilotfish.errors import ConfigurationError, NotFound

SHORT = ["--duration", "4", "--warm-up", "1", "--output", "32", "--prompt", "64"]


def test_prints_every_arm(capsys: pytest.CaptureFixture[str]) -> None:
    """Each arm has a line with its figures; the headline says what follows from the hardware."""
    assert run(["simulate", *SHORT, "--arms", "plain,2,table,ours,oracle"]) == 0
    out = capsys.readouterr().out
    assert "70b on 4 × H100: a pass 16.6 ms" in out
    for arm in ("plain", "2, 1 ms", "table, 1 ms", "ours, 1 ms", "oracle, 1 ms"):
        assert f"\n{arm} " in out


def test_speaks_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json has one row for each load, placement, round trip and arm, plain once; --plot leaves a picture."""
    picture = tmp_path / "load.png"
    arguments = ["--rate", "2,8", "--rtt-ms", "1,20", "--placement", "remote,shared", "--arms", "plain,ours"]
    assert run(["simulate", *SHORT, *arguments, "--json", "--plot", str(picture)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2 * (1 + 2 + 1)
    assert {row["placement"] for row in rows} == {"none", "remote", "shared"}
    assert all(row["tokens_per_s"] > 0 and row["dollars_per_million_tokens"] > 0 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_prices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A million tokens cost the instances' price over their rate; plain decoding pays for no drafter."""
    prices = ["--verifier-dollars", "36", "--drafter-dollars", "3.6", "--verifiers", "2", "--pods", "2"]
    assert run(["simulate", *SHORT, *prices, "--arms", "plain,2", "--json"]) == 0
    plain, speculating = json.loads(capsys.readouterr().out)["rows"]
    assert plain["dollars_per_million_tokens"] == pytest.approx(72 / 3600 * 1e6 / plain["tokens_per_s"])
    expected = (72 + 14.4) / 3600 * 1e6 / speculating["tokens_per_s"]
    assert speculating["dollars_per_million_tokens"] == pytest.approx(expected)


def test_reads_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrivals come from JSON lines and from CSV alike."""
    lines = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": i / 10, "prompt_tokens": 10, "output_tokens": 8, "alpha": 0.9} for i in range(30)]
    lines.write_text("\n".join(map(json.dumps, rows)))
    table = tmp_path / "trace.csv"
    table.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(f"{i / 10},10,8" for i in range(30)))
    for path in (lines, table):
        assert (
            run(["simulate", "--trace", str(path), "--duration", "4", "--warm-up", "0", "--arms", "plain", "--json"])
            == 0
        )
        assert json.loads(capsys.readouterr().out)["rows"][0]["num_finished"] == 30


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "line 1 is no JSON"),
        ("[1]", "line 1 is no object"),
        ('{"arrival_s": 0, "prompt_tokens": 1}', "line 1 has no number output_tokens"),
        ('{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 1}', "arrival_s -1"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 2, "alpha": 3}', "alpha 3"),
        ('{"arrival_s": "nan", "prompt_tokens": 1, "output_tokens": 2}', "arrival_s nan"),
        ("", "holds no request"),
    ],
)
def test_bad_trace_is_refused_by_line(content: str, named: str, tmp_path: Path) -> None:
    """What is no request is named with its file and line."""
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=named):
        trace.read(path, [0.5], 0.0)
    with pytest.raises(NotFound):
        trace.read(tmp_path / "none.jsonl", [0.5], 0.0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target", "9000b"], "--target 9000b"),
        (["--gpu", "H1000"], "--gpu H1000"),
        (["--drafter-gpu", "abacus"], "--drafter-gpu abacus"),
        (["--drafter", "2b"], "--drafter 2b"),
        (["--gpus", "1"], "--gpus 1: 70b does not fit"),
        (["--verifiers", "0"], "--verifiers 0"),
        (["--rate", "0"], "--rate 0"),
        (["--rate", "x"], "--rate x"),
        (["--rtt-ms", "-1"], "--rtt-ms -1"),
        (["--alpha", "1.5"], "--alpha 1.5"),
        (["--alpha", "nan"], "--alpha nan"),
        (["--arms", "best"], "--arms best"),
        (["--arms", "0"], "--arms 0"),
        (["--arms", ""], "--arms is empty"),
        (["--placement", "moon"], "--placement moon"),
        (["--duration", "5", "--warm-up", "5"], "--warm-up 5 and --duration 5"),
        (["--duration", "inf"], "--duration inf"),
        (["--prompt", "0"], "--prompt 0"),
        (["--verifier-dollars", "-1"], "--verifier-dollars -1"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ],
)
def test_refuses_nonsense_by_name(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that makes no sense is an error that names it."""
    assert run(["simulate", *arguments]) == 1
    assert named in capsys.readouterr().err


def test_hardware_follows_from_the_data_sheet() -> None:
    """A 70B target wants four H100s, its pass and ridge follow, and a drafter beside it takes KV."""
    model = hardware.MODELS["70b"]
    assert hardware.num_devices_for(model, "H100") == 4
    alone = hardware.verifier_model(model, hardware.host("h100", 4))
    assert alone.floor_s == pytest.approx(141.2e9 / (4 * 3.35e12 * 0.75 * 0.9) + 1e-3)
    assert 150 < alone.ridge < 300
    shared = hardware.verifier_model(model, hardware.host("H100", 4), hardware.MODELS["1b"])
    assert shared.max_tokens < 0.95 * alone.max_tokens
    assert shared.shares_device
    assert hardware.drafter_model(None, hardware.host("L4")).token_s < 1e-4
