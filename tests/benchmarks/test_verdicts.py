"""Verdicts from blocks made up to have known rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import distance, ttft
from benchmarks.load import Block, Load
from benchmarks.load_report import draw, read, table, write
from benchmarks.predicted import Prediction
from benchmarks.statistics import Estimate
from benchmarks.verdicts import Verdict, best_fixed, points, ratio, verdicts
from pilotfish.errors import ConfigurationError


def block(arm: str, turn: int, rate: float, workload: str = "mixed", concurrency: int = 1) -> Block:
    """A block of 100 tokens at a rate."""
    return Block(workload, concurrency, arm, turn, 100, 100 / rate, (0.1,), 90, concurrency * 90 / rate)


def run(rates: dict[str, Callable[[int], float]], turns: int = 6, concurrency: int = 1) -> list[Block]:
    """Blocks of arms whose rates are functions of the turn."""
    return [
        block(arm, turn, rate(turn), concurrency=concurrency) for turn in range(turns) for arm, rate in rates.items()
    ]


def test_the_best_fixed_arm_is_judged_by_turns_it_was_not_chosen_for() -> None:
    """An arm that is fast on even turns alone is chosen by them and compared on odd ones, and the reverse."""
    blocks = run({
        "plain": lambda _: 10.0,
        "auto": lambda _: 20.0,
        "γ=2": lambda turn: 40.0 if turn % 2 == 0 else 5.0,
        "γ=4": lambda turn: 5.0 if turn % 2 == 0 else 40.0,
    })  # fmt: skip
    best = best_fixed(blocks)
    assert best is not None
    assert best.chosen == {turn: "γ=2" if turn % 2 else "γ=4" for turn in range(6)}
    point = points(blocks)[0]
    assert point.best == "γ=4 or γ=2"
    assert point.ours_over_fixed is not None
    assert point.ours_over_fixed.value == pytest.approx(4.0)  # 20 over 5, never over the 40 it was chosen for
    assert point.ours_over_plain is not None
    assert point.ours_over_plain.value == pytest.approx(2.0)


def test_ratios_are_taken_within_a_turn() -> None:
    """A machine that slows down from turn to turn changes no ratio."""
    blocks = run({"plain": lambda turn: 10.0 / (1 + turn), "auto": lambda turn: 11.0 / (1 + turn)})
    found = ratio(blocks, "auto", "plain")
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))


@pytest.mark.parametrize(
    ("estimate", "at_least", "over"),
    [
        (Estimate(0.9, 0.8, 0.96, 6), "no", "no"),
        (Estimate(0.96, 0.9, 0.98, 6), "yes", "open"),
        (Estimate(1.1, 1.0, 1.2, 6), "yes", "yes"),
        (Estimate(0.96, math.nan, math.nan, 1), "no", "no"),
    ],
)
def test_at_least_means_not_below_and_over_means_above(estimate: Estimate, at_least: str, over: str) -> None:
    """An interval that reaches the bound is at least so much; it is over only where it lies above, else open."""
    assert str(Verdict("x", "y", 0.97, estimate)).startswith(f"x: y ≥ 0.97: {at_least} ")
    assert str(Verdict("x", "y", 0.97, estimate, is_over=True)).startswith(f"x: y > 0.97: {over} ")


def test_all_claims_of_a_load_are_judged() -> None:
    """Over plain, over the best fixed γ and the table at each point, over one γ for all points, and no cliffs."""
    arms = {"plain": 10.0, "auto": 12.0, "γ=2": 11.0, "table": 11.5}
    blocks = [
        block(arm, turn, rate * scale, concurrency=concurrency)
        for concurrency, scale in ((1, 1.0), (2, 1.9), (4, 1.7))
        for turn in range(4)
        for arm, rate in arms.items()
    ]
    found = {f"{verdict.where}: {verdict.what}": verdict for verdict in verdicts(blocks)}
    assert len(found) == 3 * 3 + 1 + 2
    single = found["mixed, all: ours over the best single γ (γ=2)"]
    assert single.is_over
    assert single.holds
    assert found["mixed, 1 to 2 at once: goodput of ours"].holds
    assert not found["mixed, 2 to 4 at once: goodput of ours"].holds  # 1.7 over 1.9
    assert found["mixed, 4 at once: ours over plain"].holds


def test_runs_are_put_together_turn_after_turn(tmp_path: Path) -> None:
    """What is written is read again; a second run's turns follow, halves stay halves, other arms are refused."""
    load, blocks = Load([], [1], 3, 8), run({"plain": lambda _: 10.0, "auto": lambda _: 20.0}, turns=3)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        write(path, {"model": "toy"}, load, blocks)
    assert json.loads(paths[0].read_text())["setup"] == {"model": "toy"}
    assert read(paths[:1]) == blocks
    assert [one.turn for one in read(paths) if one.arm == "auto"] == [0, 1, 2, 4, 5, 6]
    write(paths[1], {}, load, [one for one in blocks if one.arm == "auto"])
    with pytest.raises(ConfigurationError, match=r"b\.json has other arms"):
        read(paths)
    paths[1].write_text("{}")
    with pytest.raises(ConfigurationError, match=r"b\.json holds no blocks"):
        read(paths)


def test_table_and_picture_show_three_arms(tmp_path: Path) -> None:
    """A row a point, with the verdicts' answers; a picture beside it."""
    pytest.importorskip("matplotlib")
    blocks = [
        one
        for concurrency in (1, 2)
        for one in run({"plain": lambda _: 10.0, "auto": lambda _: 9.0, "γ=4": lambda _: 8.0}, concurrency=concurrency)
    ]
    rows = table(points(blocks)).splitlines()
    assert len(rows) == 4
    cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
    assert cells[:4] == ["mixed", "1", "10.0", "γ=4"]
    assert (cells[6], cells[8]) == ("no", "yes")  # .9 of plain, 1.1 of the best fixed
    draw(tmp_path / "load.png", blocks)
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_distances_are_judged_by_decoding_alone() -> None:
    """Plain against plain nearby, ours against plain at its own distance; the first piece of an answer has no time."""
    rates = {"plain @0": 10.0, "auto @0": 20.0, "plain @2": 9.0, "auto @2": 10.0, "γ=4 @2": 5.0, "γ=4 @0": 30.0}
    blocks = [block(arm, turn, rate, concurrency=2) for turn in range(4) for arm, rate in rates.items()]
    assert [one.decoding.tokens_per_s for one in blocks] == pytest.approx(list(rates.values()) * 4)
    found = {verdict.where + ": " + verdict.what: verdict for verdict in distance.judged(blocks, [0.0, 2.0])}
    assert not found["mixed, 2 at once, 2 passes away: plain over plain at 0"].holds
    assert found["mixed, 2 at once, 2 passes away: ours over plain"].found.value == pytest.approx(10 / 9)
    assert len(found) == 3
    against = distance.against_fixed(blocks, [0.0, 2.0], least=0.97)
    assert [(one.where, one.holds) for one in against] == [
        ("mixed, 0 passes away, 2 at once", False),
        ("mixed, 2 passes away, 2 at once", True),
    ]


def test_first_tokens_are_compared_within_a_turn() -> None:
    """Twice the time in every turn is twice the mean, and worse; turns without requests under load are left out."""
    blocks = []
    for turn, seconds in enumerate((0.1, 0.2, 0.4)):
        for arm, factor in ((ttft.ON, 2.0), (ttft.OFF, 1.0)):
            blocks.append(Block("mixed", 4, arm, turn, 100, 1.0, (factor * seconds,) * 3, 90, 4.0))
        blocks.append(Block("mixed", 8, ttft.ON, turn, 100, 1.0, (), 90, 4.0))
        blocks.append(Block("mixed", 8, ttft.OFF, turn, 100, 1.0, (), 90, 4.0))
    (found,) = ttft.first_tokens(blocks)
    assert (found.concurrency, found.num_requests) == (4, 18)
    assert (found.mean_ratio.value, found.high_ratio.value, found.rate_ratio.value) == pytest.approx((2.0, 2.0, 1.0))
    assert not found.is_no_worse
    assert "no" in ttft.table([found])


@pytest.mark.parametrize(("low", "high", "is_within"), [(1.0, 1.7, False), (1.7, 1.9, True), (2.3, 2.5, False)])
def test_a_prediction_holds_where_the_interval_reaches_into_a_tenth(low: float, high: float, is_within: bool) -> None:
    """Around a predicted 2 that is from 1.8 to 2.2."""
    found = Prediction("γ=4", 1, Estimate((low + high) / 2, low, high, 8), 2.0, 0.8, 0.05, 0.1)
    assert found.is_within is is_within
