"""What it costs that there are three services and not one process.

A round's time that is neither its pass nor anything the machine does besides: from the start of a round to the start
of the next, less the pass as the engine measured it. Through the services it holds drafting, two round trips, the
coordinator and the text; in one process drafting and the engine's own turn. Their difference is the split.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.prompts import COPY_HEAVY, prompts
from benchmarks.records import Measurement, RoundRecord
from benchmarks.run import Encode, Plan, interleaved
from benchmarks.statistics import Estimate, median, paired_ratio

if TYPE_CHECKING:
    from benchmarks.setup import Setup

ONE_PROCESS = "one process "


@dataclass(frozen=True, slots=True)
class SplitCost:
    """Of one kind of round, in milliseconds."""

    arm: str
    through_services_ms: Estimate  # of a round, besides its pass
    in_one_process_ms: Estimate
    pass_ms: float  # median, through the services
    rate_ratio: Estimate  # tokens/s through the services over those in one process

    @property
    def cost_ms(self) -> float:
        return self.through_services_ms.value - self.in_one_process_ms.value

    @property
    def share(self) -> float:
        """Of a pass."""
        return self.cost_ms / self.pass_ms


def run(
    setup: Setup,
    per_set: int,
    max_tokens: int,
    encode: Encode,
    out: Path,
    progress: Callable[[int], Callable[[str], None]],
) -> None:
    """Measure, print and write."""
    plan = Plan(prompts(COPY_HEAVY, per_set=per_set), max_tokens)
    with setup.arms(has_library=False, has_one_process=True) as arms:
        known = {arm.name for arm in arms}
        paired = [arm for arm in arms if arm.name.startswith(ONE_PROCESS) or ONE_PROCESS + arm.name in known]
        measurements = list(interleaved(paired, plan, encode, progress(len(plan) * len(paired))))
    names = [arm.name for arm in paired if not arm.name.startswith(ONE_PROCESS)]
    costs = [cost(name, measurements) for name in names]
    head = (
        "arm",
        "services, ms",
        "one process, ms",
        "split, ms",
        "pass, ms",
        "split/pass",
        "rate, services/one process",
    )
    rows = [
        (
            one.arm,
            str(one.through_services_ms),
            str(one.in_one_process_ms),
            f"{one.cost_ms:.2f}",
            f"{one.pass_ms:.1f}",
            f"{one.share:.1%}",
            str(one.rate_ratio),
        )
        for one in costs
    ]
    print(report.markdown(head, rows))
    facts = {"setup": asdict(setup), "costs": [{**asdict(one), "cost_ms": one.cost_ms} for one in costs]}
    path = report.write(out, f"split-{time.strftime('%Y%m%d-%H%M%S')}", facts, measurements)
    print(f"\nraw data: {path}")


def cost(arm: str, measurements: Iterable[Measurement]) -> SplitCost:
    """What the split costs a round of one arm.

    Args:
        arm: its name through the services; the one in one process has the same behind a prefix.
        measurements: of both.
    """
    is_drafted = arm != "plain"
    ours = [one for one in measurements if one.arm == arm]
    theirs = [one for one in measurements if one.arm == ONE_PROCESS + arm]
    return SplitCost(
        arm=arm,
        through_services_ms=median([gap for one in ours for gap in gaps_ms(one.answer.rounds, is_drafted=is_drafted)]),
        in_one_process_ms=median([gap for one in theirs for gap in gaps_ms(one.answer.rounds, is_drafted=is_drafted)]),
        pass_ms=statistics.median(round_.pass_us / 1e3 for one in ours for round_ in one.answer.rounds),
        rate_ratio=paired_ratio(_rates(ours), _rates(theirs)),
    )


def gaps_ms(rounds: Iterable[RoundRecord], *, is_drafted: bool) -> list[float]:
    """From the start of each round to that of the next, less its pass.

    Counted where the round before was of the same kind (both with a draft, or both without): else a pass that the
    session rode free in overlaps the round, and its time is not the split's. The first round, which reads the prompt,
    and the last, which nothing follows, are left out.
    """
    after_prompt = list(rounds)[1:]
    return [
        (after.start_us - round_.start_us - round_.pass_us) / 1e3
        for before, round_, after in zip(after_prompt, after_prompt[1:], after_prompt[2:], strict=False)
        if bool(before.num_drafted) is bool(round_.num_drafted) is bool(after.num_drafted) is is_drafted
    ]


def _rates(measurements: Iterable[Measurement]) -> list[list[float]]:
    by_prompt: dict[str, list[float]] = {}
    for one in sorted(measurements, key=lambda one: (one.set, one.prompt)):
        by_prompt.setdefault(f"{one.set}/{one.prompt}", []).append(one.answer.tokens_per_s or 0.0)
    return list(by_prompt.values())
