"""Whether a model reasons: what it says between its think marks nobody reads as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.estimator import Phase
from pilotfish.errors import ConfigurationError

USUAL_MARKS = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ThinkMarks:
    """The tokens that begin and end reasoning."""

    begin: int
    end: int

    @staticmethod
    def find(marks: Sequence[str], vocabulary: Sequence[str]) -> ThinkMarks | None:
        """The ids of two token strings; None where none are given, and where a model lacks the usual ones.

        Raises:
            ConfigurationError: one that was asked for is no token of the model.
        """
        if not marks:
            return None
        missing = next((mark for mark in marks if mark not in vocabulary), None)
        if missing is None:
            begin, end = (vocabulary.index(mark) for mark in marks)
            return ThinkMarks(begin, end)
        if tuple(marks) == USUAL_MARKS:
            return None
        raise ConfigurationError.of(
            "think_marks", ",".join(marks), f"{missing!r} is no token of the model; name two that are, or none at all"
        )


class Reasoning:
    """Follows one sequence through its phases."""

    __slots__ = ("_marks", "phase")

    def __init__(self, marks: ThinkMarks | None, tokens: Sequence[int]) -> None:
        """Begin after some tokens: a prompt may end in the mark that opens the reasoning."""
        self._marks = marks
        self.phase = Phase.ANSWER
        if marks is not None and marks.begin in tokens:
            self.follow(tokens)

    def follow(self, tokens: Sequence[int]) -> bool:
        """Go on by some tokens; whether the phase is another one after them."""
        before = self.phase
        if self._marks is not None:
            for token in tokens:
                if token == self._marks.begin:
                    self.phase = Phase.REASONING
                elif token == self._marks.end:
                    self.phase = Phase.ANSWER
        return self.phase is not before
