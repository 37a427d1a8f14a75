"""What `pilotfish plan --from HOST` predicts, beside the speedup that the same services realised at steady load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.report import markdown
from benchmarks.statistics import Estimate
from pilotfish.cli.measured import measured
from pilotfish.cli.plan import figures

TOLERANCE: Final = 0.1
NUM_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Prediction:
    """One arm at one load."""

    arm: str
    concurrency: int
    realised: Estimate  # over free-running plain decoding, by turns in the same run
    predicted: float
    alpha: float  # as the services measured them
    cost: float
    round_trip: float

    @property
    def is_within(self) -> bool:
        """Whether the interval reaches into a tenth around the prediction."""
        return self.realised.reaches((1.0 - TOLERANCE) * self.predicted) and not self.realised.exceeds(
            (1.0 + TOLERANCE) * self.predicted
        )


def prediction(address: str, arm: str, gamma: int | None, concurrency: int, realised: Estimate) -> Prediction | None:
    """What the plan makes of a running coordinator; None where it has not measured enough.

    Args:
        address: of the coordinator, which has answered nothing but this arm and plain decoding.
        arm: its name.
        gamma: fixed; None: by the price, for which the plan takes the best.
        concurrency: requests at once.
        realised: measured.
    """
    known = measured(address)
    if known.alpha is None or known.cost is None or known.round_trip is None or known.curve is None:
        return None
    facts = figures(
        known.alpha, known.cost, gamma, known.round_trip, concurrency, known.curve.ridge, known.curve.pass_length
    )
    at_load = facts["saturation"][-1]
    speedup = at_load["best_speedup"] if gamma is None else at_load["speedup"]
    return Prediction(arm, concurrency, realised, speedup, known.alpha, known.cost, known.round_trip)


def table(found: Sequence[Prediction]) -> str:
    """Realised beside predicted."""
    head = ("arm", "at once", "realised", "predicted", "realised/predicted", "within 10%", "α", "c", "round trip")
    rows = [
        (
            one.arm,
            str(one.concurrency),
            str(one.realised),
            f"{one.predicted:.2f}",
            f"{one.realised.value / one.predicted:.2f}",
            "yes" if one.is_within else "no",
            *(f"{value:.{NUM_DIGITS}g}" for value in (one.alpha, one.cost, one.round_trip)),
        )
        for one in found
    ]
    return markdown(head, rows)
