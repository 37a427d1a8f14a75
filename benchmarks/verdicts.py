"""What blocks of a load say: arms against one another, and whether what was to be shown holds.

The best fixed γ is chosen on one half of the turns and compared on the other, and the reverse; both comparisons count
together. So no arm is judged by the turns that it was chosen for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import geometric_mean
from typing import Final

from benchmarks.load import Block
from benchmarks.statistics import Estimate, bootstrap

PLAIN: Final[str] = "plain"
OURS: Final[str] = "auto"
TABLE: Final[str] = "table"
LEAST_OF_FIXED: Final = 0.97
LEAST_OF_PLAIN: Final = 0.98
LEAST_OF_NEIGHBOUR: Final = 0.95  # of the goodput at the load before: less is a cliff
VARYING: Final = ("mixed", "phases", "both")  # workloads on which no single γ is right: ours is to be over all of them


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a figure reaches what it must."""

    where: str
    what: str
    least: float
    found: Estimate
    is_over: bool = False  # it must be over `least`, not only reach it

    @property
    def holds(self) -> bool:
        return self.found.exceeds(self.least) if self.is_over else self.found.reaches(self.least)

    def __str__(self) -> str:
        answer = "yes" if self.holds else "no"
        if not self.holds and self.found.reaches(self.least):
            answer = "open"  # the interval holds the bound
        return f"{self.where}: {self.what} {'>' if self.is_over else '≥'} {self.least:g}: {answer} {self.found}"


@dataclass(frozen=True, slots=True)
class Best:
    """The best fixed arm, as the other half of the turns has it."""

    chosen: Mapping[int, str]  # by the turn in which it is compared

    @property
    def name(self) -> str:
        return " or ".join(dict.fromkeys(self.chosen.values()))


def fixed_arms(blocks: Iterable[Block]) -> list[str]:
    """Names of the fixed γ among the arms, in the order they came."""
    return [arm for arm in dict.fromkeys(block.arm for block in blocks) if arm.startswith("γ=")]


def best_fixed(blocks: Sequence[Block]) -> Best | None:
    """Of one point or of several; None where no γ was fixed.

    With a single turn it is chosen and compared on the same one: a smoke test and no more.
    """
    fixed, turns = fixed_arms(blocks), sorted({block.turn for block in blocks})
    if not fixed:
        return None
    chosen = {}
    for turn in turns:
        others = [one for one in turns if (one - turn) % 2] or turns
        rates = {
            arm: geometric_mean([b.tokens_per_s for b in blocks if b.arm == arm and b.turn in others]) for arm in fixed
        }
        chosen[turn] = max(fixed, key=lambda arm: rates[arm])
    return Best(chosen)


def compared(blocks: Sequence[Block], above: Callable[[int], str], below: Callable[[int], str]) -> Estimate:
    """Rate of an arm over another's: ratios within a point and turn, their geometric mean.

    Args:
        blocks: of one point or of several.
        above: name of the arm that is judged, by the turn.
        below: of the one it is compared with.
    """
    rates = {(block.point, block.turn, block.arm): block.tokens_per_s for block in blocks}
    pairs = sorted({(point, turn) for point, turn, _ in rates})
    ratios = [rates[point, turn, above(turn)] / rates[point, turn, below(turn)] for point, turn in pairs]
    return bootstrap(ratios, geometric_mean)


def ratio(blocks: Sequence[Block], above: str, below: str) -> Estimate:
    """Rate of one arm over another's."""
    return compared(blocks, lambda _: above, lambda _: below)


@dataclass(frozen=True, slots=True)
class Point:
    """The three arms at one load."""

    workload: str
    concurrency: int
    tokens_per_s: dict[str, Estimate]  # by "plain", "fixed", "auto"
    best: str | None  # the fixed arms that were compared
    fixed_over_plain: Estimate | None
    ours_over_plain: Estimate | None
    ours_over_fixed: Estimate | None
    ours_over_table: Estimate | None  # by batch size

    @property
    def where(self) -> str:
        return f"{self.workload}, {self.concurrency} at once"


def points(blocks: Sequence[Block]) -> list[Point]:
    """Every load that was measured, in order."""
    found = dict.fromkeys(block.point for block in blocks)
    return [_point([block for block in blocks if block.point == point]) for point in found]


def _point(blocks: Sequence[Block]) -> Point:
    arms = {block.arm for block in blocks}
    best = best_fixed(blocks)
    of_arm = {name: [b.tokens_per_s for b in blocks if b.arm == name] for name in {PLAIN, OURS} & arms}
    if best is not None:
        of_arm["fixed"] = [b.tokens_per_s for b in blocks if best.chosen[b.turn] == b.arm]
    has_ours, has_plain = OURS in arms, PLAIN in arms
    return Point(
        *blocks[0].point,
        {name: bootstrap(rates, geometric_mean) for name, rates in of_arm.items()},
        best.name if best else None,
        compared(blocks, lambda turn: best.chosen[turn], lambda _: PLAIN) if best and has_plain else None,
        ratio(blocks, OURS, PLAIN) if has_ours and has_plain else None,
        compared(blocks, lambda _: OURS, lambda turn: best.chosen[turn]) if best and has_ours else None,
        ratio(blocks, OURS, TABLE) if has_ours and TABLE in arms else None,
    )


def verdicts(
    blocks: Sequence[Block], least_of_plain: float = LEAST_OF_PLAIN, least_of_fixed: float = LEAST_OF_FIXED
) -> list[Verdict]:
    """Everything that was to be shown, point by point, then load by load, then from one load to the next."""
    found = []
    for point in points(blocks):
        if point.ours_over_fixed is not None:
            what = f"ours over the best fixed γ ({point.best})"
            found.append(Verdict(point.where, what, least_of_fixed, point.ours_over_fixed))
        if point.ours_over_table is not None:
            found.append(
                Verdict(point.where, "ours over the table by batch size", least_of_fixed, point.ours_over_table)
            )
        if point.ours_over_plain is not None:
            found.append(Verdict(point.where, "ours over plain", least_of_plain, point.ours_over_plain))
    for name in dict.fromkeys(block.workload for block in blocks):
        of_load = [block for block in blocks if block.workload == name]
        found += [*_single_gamma(name, of_load), *_cliffs(name, of_load)]
    return found


def _single_gamma(name: str, blocks: Sequence[Block]) -> list[Verdict]:
    """Ours over the one γ that is best at all numbers of sessions together."""
    best = best_fixed(blocks)
    if best is None or name not in VARYING or OURS not in {block.arm for block in blocks}:
        return []
    found = compared(blocks, lambda _: OURS, lambda turn: best.chosen[turn])
    return [Verdict(f"{name}, all", f"ours over the best single γ ({best.name})", 1.0, found, is_over=True)]


def _cliffs(name: str, blocks: Sequence[Block]) -> list[Verdict]:
    """Ours at each number of sessions over the number before."""
    rates = {(block.concurrency, block.turn): block.tokens_per_s for block in blocks if block.arm == OURS}
    found = []
    for before, after in pairwise(sorted({concurrency for concurrency, _ in rates})):
        turns = [turn for concurrency, turn in rates if concurrency == after and (before, turn) in rates]
        if turns:
            estimate = bootstrap([rates[after, turn] / rates[before, turn] for turn in turns], geometric_mean)
            found.append(
                Verdict(f"{name}, {before} to {after} at once", "goodput of ours", LEAST_OF_NEIGHBOUR, estimate)
            )
    return found
