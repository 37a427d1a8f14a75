"""A loss is said aloud, once, with its reason; a gain is not."""

from __future__ import annotations

import logging

import pytest

from coordinator.realised import LOSING_WINDOWS, WINDOW_TOKENS, Realised
from pilotfish.telemetry import Telemetry


def run(realised: Realised, speedup: float, num_windows: int) -> None:
    for _ in range(num_windows * WINDOW_TOKENS // 4):
        realised.count("near:1", "chat", "acceptance", round(4 * speedup), 4.0)


def test_lasting_loss_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Windows in a row under plain decoding make one line that names drafter, workload and reason."""
    realised = Realised(Telemetry.off())
    with caplog.at_level(logging.WARNING):
        run(realised, 0.5, LOSING_WINDOWS + 3)
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert all(word in message for word in ("0.50", "near:1", "chat", "acceptance"))
    assert realised.speedups["near:1", "chat"] == 0.5


def test_gain_and_a_single_bad_window_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """One losing window between winning ones is noise."""
    realised = Realised(Telemetry.off())
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            run(realised, 2.0, 1)
            run(realised, 0.5, LOSING_WINDOWS - 1)
    assert not caplog.records
