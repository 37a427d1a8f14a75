"""What speculating really gains, beside what plain decoding would have got in the same time: measured, and said aloud.

A session that speculates is compared, verdict by verdict, with a verifier whose sessions all run free: how long such a
pass would take is in every frame. The comparison is kept by drafter and workload.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from pilotfish.telemetry import Metric, Telemetry

WINDOW_TOKENS: Final = 256  # that plain decoding would have committed, before a window is judged
LOSING_WINDOWS: Final = 2  # in a row that make it worth a line in the log

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Window:
    num_tokens: int = 0
    num_plain_tokens: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    num_losing: int = 0  # windows before this one that lost, in a row


class Realised:
    """Speedup over free-running plain decoding, of all requests of a coordinator."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._windows: dict[tuple[str, str], _Window] = {}
        self.speedups: dict[tuple[str, str], float] = {}  # by drafter and workload, in the last full window

    def count(self, drafter: str, workload: str, reason: str, num_tokens: int, num_plain_tokens: float) -> None:
        """A verdict of a session that speculates.

        Args:
            drafter: address of the drafter.
            workload: the request's label.
            reason: for its γ.
            num_tokens: committed.
            num_plain_tokens: what plain decoding would have committed since the verdict before.
        """
        self._telemetry.add(Metric.SPECULATED_TOKENS, num_tokens, drafter, workload)
        self._telemetry.add(Metric.PLAIN_EQUIVALENT_TOKENS, num_plain_tokens, drafter, workload)
        key = drafter, workload
        window = self._windows.setdefault(key, _Window())
        window.num_tokens += num_tokens
        window.num_plain_tokens += num_plain_tokens
        window.reasons[reason] += 1
        if window.num_plain_tokens >= WINDOW_TOKENS:
            self._judge(key, window)

    def _judge(self, key: tuple[str, str], window: _Window) -> None:
        speedup = self.speedups[key] = window.num_tokens / window.num_plain_tokens
        num_losing = window.num_losing + 1 if speedup < 1.0 else 0
        if num_losing == LOSING_WINDOWS:
            logger.warning(
                "speculating loses: %.2f of plain decoding with drafter %s%s; most rounds were for %s",
                speedup,
                key[0],
                f", workload {key[1]}" if key[1] else "",
                window.reasons.most_common(1)[0][0],
            )
        self._windows[key] = _Window(num_losing=num_losing)
