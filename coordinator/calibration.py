"""From a drafter's confidence to acceptance: what each kind of draft taught of it.

A node holds, given that its parent does, with probability 1 / (1 + exp(-(offset + slope · confidence))): a logistic
regression that is learned node by node, leaning on a first guess (the drafter is about as right as it says) and
forgetting slowly. Nodes that were not reached teach nothing. Which nodes were drawn does not matter, though a price
chose them: what is learned is acceptance *given* the confidence.

Sessions have no share of their own in it: given the confidence they differ little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotfish.confidence import Calibration


@dataclass(frozen=True, slots=True)
class Habits:
    """How a calibration learns."""

    first_offset: float = 0.0  # before anything is known
    first_slope: float = 0.6
    first_offset_weight: float = 4.0  # how firmly that is believed, as the precision of a guess
    first_slope_weight: float = 30.0
    memory: float = 0.999  # of what was learned, left after a node


class Line:
    """The regression of one kind: the likeliest line so far, and with what precision it is known."""

    def __init__(self, habits: Habits = Habits()) -> None:
        self.calibration = Calibration(habits.first_offset, habits.first_slope)
        self._habits = habits
        self._offset_weight, self._both_weight = habits.first_offset_weight, 0.0
        self._slope_weight = habits.first_slope_weight

    def observe(self, confidences: Sequence[float], num_kept: int) -> None:
        """Learn from a round.

        Args:
            confidences: of the nodes of a chain that were verified.
            num_kept: of them; the next one did not hold, and those below it say nothing.
        """
        for node, confidence in enumerate(confidences[: num_kept + 1]):
            self._observe(confidence, node < num_kept)

    def _observe(self, confidence: float, is_kept: bool) -> None:
        """One step of Newton's method. What was learned before fades a little, and the first guess comes back."""
        habits, now = self._habits, self.calibration
        expected = now.probability(confidence)
        surprise, information = is_kept - expected, expected * (1.0 - expected)
        faded = 1.0 - habits.memory
        offset_guess, slope_guess = faded * habits.first_offset_weight, faded * habits.first_slope_weight
        self._offset_weight = habits.memory * self._offset_weight + offset_guess + information
        self._both_weight = habits.memory * self._both_weight + information * confidence
        self._slope_weight = habits.memory * self._slope_weight + slope_guess + information * confidence**2
        offset_pull = surprise + offset_guess * (habits.first_offset - now.offset)
        slope_pull = surprise * confidence + slope_guess * (habits.first_slope - now.slope)
        determinant = self._offset_weight * self._slope_weight - self._both_weight**2
        self.calibration = Calibration(
            now.offset + (self._slope_weight * offset_pull - self._both_weight * slope_pull) / determinant,
            now.slope + (self._offset_weight * slope_pull - self._both_weight * offset_pull) / determinant,
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """All there is to keep of it."""
        line = self.calibration
        return (line.offset, line.slope, self._offset_weight, self._both_weight, self._slope_weight)

    def restore(self, numbers: Sequence[float], sureness: float) -> None:
        """Take what was kept.

        Args:
            numbers: of a line.
            sureness: how much it counts against what is learned from now on, of what it counted; in (0, 1].

        Raises:
            ValueError: the numbers are of no line.
        """
        offset, slope, offset_weight, both_weight, slope_weight = map(float, numbers)
        if not (offset_weight > 0.0 and offset_weight * slope_weight > both_weight**2):
            raise ValueError(f"{list(numbers)} are of no line: its precision is not positive")
        self.calibration = Calibration(offset, slope)
        self._offset_weight, self._both_weight = sureness * offset_weight, sureness * both_weight
        self._slope_weight = sureness * slope_weight
