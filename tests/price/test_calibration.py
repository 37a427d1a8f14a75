"""What a drafter's confidence is worth: learned from what held."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from coordinator.calibration import Line
from pilotfish.confidence import LEAST, MOST, Calibration

TRUTH = Calibration(-0.8, 0.45)


def taught(line: Line, truth: Calibration, num_nodes: int, seed: int, least: float = -2.0) -> Line:
    """The line after nodes whose confidences lie between `least` and 6."""
    chance = random.Random(seed)
    for _ in range(num_nodes):
        confidence = chance.uniform(least, 6.0)
        line.observe((confidence,), int(chance.random() < truth.probability(confidence)))
    return line


@pytest.mark.parametrize("seed", range(5))
def test_the_line_comes_to_what_holds(seed: int) -> None:
    """After 3,000 nodes acceptance is foretold within .08 wherever nodes were seen; seeds are fixed."""
    line = taught(Line(), TRUTH, 3000, seed)
    for confidence in (-2.0, 0.0, 2.0, 4.0, 6.0):
        assert line.calibration.probability(confidence) == pytest.approx(TRUTH.probability(confidence), abs=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_a_price_chose_bias_nothing(seed: int) -> None:
    """Where only nodes of some confidence are drawn, what is learned of those is the same."""
    line = taught(Line(), TRUTH, 3000, seed, least=1.5)
    for confidence in (1.5, 3.0, 6.0):
        assert line.calibration.probability(confidence) == pytest.approx(TRUTH.probability(confidence), abs=0.08)


def test_little_evidence_moves_it_little() -> None:
    """One node that fails, however sure the drafter was, does not turn the first guess over."""
    line = Line()
    line.observe((3.0,), 0)
    assert line.calibration.probability(3.0) > 0.5


def test_drift_is_followed() -> None:
    """A drafter that has become worse is believed less, though long it was good."""
    line = taught(Line(), Calibration(1.0, 0.8), 3000, 1)
    before = line.calibration.probability(1.0)
    taught(line, TRUTH, 3000, 2)
    assert before > 0.75
    assert line.calibration.probability(1.0) == pytest.approx(TRUTH.probability(1.0), abs=0.1)


@pytest.mark.parametrize("confidence", [LEAST, 0.0, MOST])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_drafter_that_always_says_the_same_breaks_nothing(confidence: float, is_kept: bool) -> None:
    """Nodes of one confidence, all kept or none, leave a line of finite numbers that says about so."""
    line = Line()
    for _ in range(5000):
        line.observe((confidence,), int(is_kept))
    assert abs(line.calibration.probability(confidence) - is_kept) < 0.1


def test_what_was_not_reached_teaches_nothing() -> None:
    """Nodes below one that did not hold leave no trace."""
    lines = Line(), Line()
    for line, confidences in zip(lines, ((2.0, 1.0), (2.0, 1.0, -3.0, 5.0)), strict=True):
        line.observe(confidences, 1)
    assert lines[0].calibration == lines[1].calibration != Line().calibration


def test_a_line_is_kept_over_a_restart() -> None:
    """What was kept says the same, and learns faster the less sure of it one is."""
    old = taught(Line(), TRUTH, 500, 7)
    sure, unsure = Line(), Line()
    sure.restore(old.numbers, sureness=1.0)
    unsure.restore(old.numbers, sureness=0.5)
    assert sure.calibration == unsure.calibration == old.calibration
    for line in (old, sure, unsure):
        line.observe((3.0,), 0)
    assert sure.calibration == old.calibration
    assert unsure.calibration.probability(3.0) < sure.calibration.probability(3.0)


@pytest.mark.parametrize("numbers", [(0.0,), (0.0, 1.0, -1.0, 0.0, 1.0), (0.0, 1.0, 1.0, 3.0, 1.0), "words"])
def test_what_is_no_line_is_refused(numbers: Sequence[float]) -> None:
    """Numbers that cannot be a line's raise, and leave what was known."""
    line = Line()
    with pytest.raises(ValueError, match=r"."):
        line.restore(numbers, sureness=1.0)
    assert line.numbers == Line().numbers
