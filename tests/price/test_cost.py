"""The cost curve keeps shapes that matter and does not bend for a disturbed pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from verifier.cost import CostCurve, PassShape, knots_up_to

SHAPES: dict[str, Callable[[int], float]] = {
    "flat": lambda n: 0.02,
    "roofline": lambda n: 0.02 * max(1.0, n / 64),
    "steps": lambda n: 0.01 * (1 + (n - 1) // 32),
    "experts": lambda n: 0.01 * (1 + 3 * min(n, 48) / 48),
}


def measured(shape: Callable[[int], float], max_positions: int = 256, noise: float = 0.0) -> CostCurve:
    chance = random.Random(4)
    curve = CostCurve(knots_up_to(max_positions))
    passes = [PassShape(n) for n in curve.knots for _ in range(3)]
    curve.fit(passes, [shape(p.num_positions) * (1 + noise * chance.gauss(0, 1)) for p in passes])
    return curve


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_survive(name: str) -> None:
    """Flat, rising, stepped and flattening curves are met within 12% at the knots, noise included."""
    curve = measured(SHAPES[name], noise=0.03)
    for n in curve.knots:
        assert curve.seconds(PassShape(n)) == pytest.approx(SHAPES[name](n), rel=0.12)


def test_ridge_and_saturation_of_a_roofline() -> None:
    """Below the ridge saturation is near 0, above near 1, and the ridge lies where the roofline bends."""
    curve = measured(SHAPES["roofline"])
    assert curve.saturation(PassShape(8)) < 0.1
    assert curve.saturation(PassShape(200)) > 0.9
    assert curve.ridge is not None
    assert 48 <= curve.ridge <= 80
    assert measured(SHAPES["flat"]).ridge is None


def test_one_disturbed_pass_does_not_bend_the_curve() -> None:
    """A pass of twenty times the usual length moves the prediction by less than a fifth."""
    curve = measured(SHAPES["roofline"])
    curve.observe(PassShape(8), 0.02)
    curve.observe(PassShape(8), 0.4)
    assert curve.seconds(PassShape(8)) == pytest.approx(0.02, rel=0.2)


def test_lasting_change_is_followed() -> None:
    """When every pass becomes 1.5 times as long the curve has followed within 300 passes."""
    curve = measured(SHAPES["roofline"])
    chance = random.Random(5)
    for _ in range(300):
        curve.observe(PassShape(8), 0.03 * (1 + 0.03 * chance.gauss(0, 1)))
    assert curve.seconds(PassShape(8)) == pytest.approx(0.03, rel=0.07)


def test_context_and_sequences_are_told_apart_from_positions() -> None:
    """Time that context and sequences take is not blamed on positions."""
    curve = CostCurve(knots_up_to(128))
    chance = random.Random(6)
    passes = [
        PassShape(n, s, c) for n in curve.knots for s in (1, min(n, 8)) for c in (200 * s, 1000 * s) for _ in range(2)
    ]
    seconds = [0.02 + 1e-4 * p.num_positions + 2e-4 * p.num_sequences + 1e-6 * p.num_context_tokens for p in passes]
    curve.fit(passes, [value * (1 + 0.01 * chance.gauss(0, 1)) for value in seconds])
    one, many = PassShape(8, 1, 200), PassShape(8, 8, 8000)
    assert curve.seconds(many) - curve.seconds(one) == pytest.approx(7 * 2e-4 + 7.8e-3, rel=0.25)


def test_slow_machine_is_noticed_though_no_shape_comes_twice() -> None:
    """When every pass becomes three times as long, each of another shape, the curve has followed within 60 passes."""
    curve = measured(SHAPES["roofline"])
    chance = random.Random(7)
    for _ in range(60):
        n = chance.randrange(10, 60)
        curve.observe(PassShape(n, 16), 0.06 * (1 + 0.03 * chance.gauss(0, 1)))
    assert curve.seconds(PassShape(16, 16)) == pytest.approx(0.06, rel=0.15)


def test_what_was_not_measured_is_not_free() -> None:
    """Beyond the passes that were measured the curve does not fall, whatever slope noise gave it before."""
    curve = CostCurve(knots_up_to(512))
    curve.fit([PassShape(n) for n in (1, 2, 4, 8, 16)], [0.145, 0.144, 0.14, 0.135, 0.129])
    assert curve.seconds(PassShape(512)) >= curve.seconds(PassShape(16)) == pytest.approx(0.139, rel=0.05)


def test_what_was_not_measured_is_soon_learned() -> None:
    """A first few passes beyond those that were measured say more of such passes than the guess did."""
    curve = CostCurve(knots_up_to(512))
    curve.fit([PassShape(n) for n in (1, 2, 4, 8, 16)], [0.1] * 5)
    for _ in range(4):
        curve.observe(PassShape(64), 0.4)
    assert curve.seconds(PassShape(64)) == pytest.approx(0.4, rel=0.2)
    assert curve.seconds(PassShape(16)) == pytest.approx(0.1, rel=0.3)


def test_curve_never_falls() -> None:
    """Whatever was observed, more positions are never predicted to take less time."""
    curve = measured(SHAPES["roofline"], noise=0.3)
    values = curve.at(1, 0)(np.arange(1.0, 400.0))
    assert (np.diff(values) >= -1e-12).all()


def test_length_counts_the_sequences_that_ride() -> None:
    """By positions and sequences, and as `seconds` has it for one shape."""
    shapes = [PassShape(n, k, k * 100) for k in (1, 4, 16) for n in (16, 32, 64)]
    curve = CostCurve(knots_up_to(64))
    curve.fit(shapes, [0.1 + 0.002 * shape.num_positions + 0.01 * shape.num_sequences for shape in shapes])
    found = curve.length(100.0)(np.array([16.0, 48.0, 16.0]), np.array([1.0, 8.0, 16.0]))
    assert found == pytest.approx([curve.seconds(PassShape(n, k, k * 100)) for n, k in ((16, 1), (48, 8), (16, 16))])
    assert found[2] - found[0] == pytest.approx(0.15, rel=0.1)


def test_saved_curve_is_read_back(tmp_path: Path) -> None:
    """A saved curve predicts the same; a file over other knots, or garbage, is no curve."""
    curve = measured(SHAPES["roofline"])
    path = tmp_path / "curve.json"
    curve.save(path)
    loaded = CostCurve.load(path, curve.knots)
    assert loaded is not None
    assert loaded.points() == curve.points()
    assert CostCurve.load(path, knots_up_to(64)) is None
    content = json.loads(path.read_text())
    damaged = [{**content, "state": [1.0]}, {**content, "covariance": [[float("nan")]]}, {**content, "observed": None}]
    missing = [{key: value for key, value in content.items() if key != left_out} for left_out in content]
    garbage: object
    for garbage in (*damaged, *missing, [], None):
        path.write_text(json.dumps(garbage))
        assert CostCurve.load(path, curve.knots) is None
    path.write_text("{")
    assert CostCurve.load(path, curve.knots) is None
