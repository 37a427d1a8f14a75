"""How sure a drafter is of a node before it draws it, and how often such nodes held.

A confidence is log odds in nats, rounded to what a byte can say *before* anything is decided by it, so that both ends
of the wire speak of the same number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_STEPS: Final = 16  # to a nat
_ZERO: Final = 128  # byte of even odds
LEAST: Final = -_ZERO / _STEPS
MOST: Final = (255 - _ZERO) / _STEPS


def confidence(log_odds: float) -> float:
    """Log odds as a byte can say them, between `LEAST` and `MOST`; infinite ones are cut."""
    return round(min(max(log_odds, LEAST), MOST) * _STEPS) / _STEPS


def confidence_of(probability: float) -> float:
    """The confidence of a node that holds with this probability in the drafter's eyes, in [0, 1]."""
    if probability <= 0.0:
        return LEAST
    return MOST if probability >= 1.0 else confidence(math.log(probability) - math.log1p(-probability))


def write_confidences(confidences: Sequence[float]) -> bytes:
    """A byte each."""
    return bytes(round(confidence(value) * _STEPS) + _ZERO for value in confidences)


def read_confidences(data: bytes) -> tuple[float, ...]:
    """Whatever the bytes, each is a confidence."""
    return tuple((byte - _ZERO) / _STEPS for byte in data)


@dataclass(frozen=True, slots=True)
class Calibration:
    """From the confidence in a node to the probability that it holds, given that its parent does."""

    offset: float  # nats
    slope: float  # 0: confidence says nothing

    def probability(self, confidence: float) -> float:
        """In [0, 1]."""
        return logistic(self.offset + self.slope * confidence)


def logistic(log_odds: float) -> float:
    """The probability that has these odds."""
    if log_odds < 0.0:
        odds = math.exp(max(log_odds, -700.0))
        return odds / (1.0 + odds)
    return 1.0 / (1.0 + math.exp(-log_odds))
