"""Time to the first token under load, with the start rule and without."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.load import Block
from benchmarks.report import markdown
from benchmarks.statistics import Estimate, bootstrap

ON: Final = "rule on"
OFF: Final = "rule off"
SETTINGS: Final[dict[str, dict[str, str]]] = {ON: {}, OFF: {"start_wait_ms": "0"}}  # of the verifier


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """At one load: requests that come while others run."""

    workload: str
    concurrency: int
    num_requests: int
    mean_s: dict[str, float]  # by arm
    mean_ratio: Estimate  # rule on over rule off, turn by turn
    high_ratio: Estimate  # likewise of the ninth decile
    rate_ratio: Estimate  # tokens per second

    @property
    def is_no_worse(self) -> bool:
        """The interval does not lie above 1."""
        return not self.mean_ratio.exceeds(1.0)


def first_tokens(blocks: Sequence[Block]) -> list[FirstTokens]:
    """Every load at which both arms saw requests come."""
    found = []
    for point in dict.fromkeys(block.point for block in blocks):
        here = [block for block in blocks if block.point == point]
        by_turn = {(block.arm, block.turn): block for block in here}
        pairs = [(by_turn[ON, turn], by_turn[OFF, turn]) for turn in sorted({block.turn for block in here})]
        whole = [(on, off) for on, off in pairs if on.first_token_s and off.first_token_s]
        if whole:
            found.append(_at(point, here, whole))
    return found


def _at(point: tuple[str, int], blocks: Sequence[Block], pairs: Sequence[tuple[Block, Block]]) -> FirstTokens:
    times = {arm: [s for block in blocks if block.arm == arm for s in block.first_token_s] for arm in SETTINGS}

    def over(figure: Callable[[Block], float]) -> Estimate:
        return bootstrap([figure(on) / figure(off) for on, off in pairs], statistics.geometric_mean)

    return FirstTokens(
        *point,
        sum(map(len, times.values())),
        {arm: statistics.fmean(of_arm) for arm, of_arm in times.items()},
        over(lambda block: statistics.fmean(block.first_token_s)),
        over(lambda block: _ninth_decile(block.first_token_s)),
        over(lambda block: block.tokens_per_s),
    )


def _ninth_decile(values: Sequence[float]) -> float:
    return sorted(values)[round(0.9 * (len(values) - 1))]


def table(found: Sequence[FirstTokens]) -> str:
    """Rule on beside rule off."""
    head = ("workload", "at once", "requests", "on, ms", "off, ms", "mean, on/off", "90%, on/off", "tokens/s, on/off",
            "no worse")  # fmt: skip
    rows = [
        (
            one.workload,
            str(one.concurrency),
            str(one.num_requests),
            f"{1e3 * one.mean_s[ON]:.0f}",
            f"{1e3 * one.mean_s[OFF]:.0f}",
            str(one.mean_ratio),
            str(one.high_ratio),
            str(one.rate_ratio),
            "yes" if one.is_no_worse else "no",
        )
        for one in found
    ]
    return markdown(head, rows)
