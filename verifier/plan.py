"""The plan: the price and the tempo that give all sessions together the most tokens per second.

Every candidate is a pair (period, price). Under it each session answers as `pilotfish.price.choose` says; from the
answers follow the positions of a pass, hence its length, hence who can be back in time: a fixed point, found by a few
damped steps. The candidate with the largest goodput is the plan. Plain free-running decoding is always one of them.

The periods worth trying are those at which somebody is just back in time, and the pass length itself. Candidates are
computed together, on arrays [candidates, classes]: first a coarse grid, then the surroundings of its best. Sessions
that are alike form a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotfish.price import MAX_PASSES, Plan, Profile, most_passes
from verifier.crowd import Crowd

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
CostCurve = Callable[[Array], Array]  # positions in a pass -> its length in seconds, elementwise

MIN_GAIN = 0.01  # over plain decoding: less is not worth the risk
KEEP_GAIN = 0.03  # over the plan in force: less is not worth the change
PRICES = (0.0, 0.02, 0.05, 0.1, 0.16, 0.23, 0.31, 0.4, 0.5, 0.61, 0.73, 0.86, 1.0)
COARSE_PRICES = (0.0, 0.05, 0.16, 0.31, 0.5, 0.73)
GAMMAS = (1, 2, 3, 5, 8, 12, 16)  # whose return times are tried as periods
COARSE = 0.05  # step between periods, relative
FINE = 0.013
COARSE_STEPS = 3  # of the fixed point
FINE_STEPS = 6
TURN_ROOM = 0.1  # over the mean number of drafts in a pass
NUM_REFINED = 6  # of the coarse candidates


@dataclass(frozen=True, slots=True)
class Slack:
    """How much later than expected a draft may come and still be counted as in time."""

    relative: float = 0.07  # of the time away
    absolute: float = 0.004  # in pass lengths of plain decoding


def solve(
    profiles: Iterable[Profile] | Crowd,
    cost: CostCurve,
    max_gamma: int,
    trust: Mapping[int, float] = MappingProxyType({}),
    current: Plan | None = None,
    slack: Slack = Slack(),
) -> Plan:
    """The plan for these sessions.

    Args:
        profiles: one per session; a session that may not speculate has an empty survival.
        cost: T(positions).
        max_gamma: most tokens in a draft.
        trust: by kind of plan, what was measured under such a plan over what was predicted; 1 where not measured.
        current: the plan in force; its price and period are kept where nothing else promises clearly more.
        slack: for jitter.
    """
    crowd = profiles if isinstance(profiles, Crowd) else Crowd.of(profiles)
    num_sessions = len(crowd)
    if not num_sessions:
        return Plan.plain(0, 0.0)
    plain_s = float(cost(np.array([float(num_sessions)]))[0])
    plain = Plan.plain(num_sessions, plain_s)
    table = _Table.of(crowd.classes(), max_gamma, slack, plain_s)
    if not table.max_gamma:
        return plain
    factors = np.array([trust.get(kind, 1.0) for kind in range(1 << MAX_PASSES)])
    coarse = _fixed_points(table, cost, *_coarse(table, cost, num_sessions), COARSE_STEPS)
    periods, prices = _around(coarse, factors)
    has_current = current is not None and math.isfinite(current.price)
    if current is not None and has_current:
        is_tempo_free = current.period_s <= current.pass_s * 1.001  # passes follow one another
        periods = np.append(periods, plain_s if is_tempo_free else current.period_s)
        prices = np.append(prices, current.price)
    fine = _fixed_points(table, cost, periods, prices, FINE_STEPS)
    trusted = fine.tokens_per_s * factors[fine.kind]
    best = int(trusted.argmax())
    least = plain.tokens_per_s * (1.0 + MIN_GAIN)
    if has_current and trusted[best] <= trusted[-1] * (1.0 + KEEP_GAIN):
        best = len(trusted) - 1
    elif current is not None and current.tokens_per_s and not has_current:
        least *= 1.0 + KEEP_GAIN
    return _plan_of(fine, best, num_sessions) if trusted[best] >= least else plain


def _plan_of(found: _Found, index: int, num_sessions: int) -> Plan:
    return Plan(
        price=float(found.prices[index]),
        period_s=float(found.period_s[index]),
        pass_s=float(found.pass_s[index]),
        tokens_per_s=float(found.tokens_per_s[index]),
        kind=int(found.kind[index]),
        ahead_s=float(found.pass_s[index]) if num_sessions == 1 else None,
        num_drafts=_num_drafts(found, index),
    )


def _num_drafts(found: _Found, index: int) -> int | None:
    """Where sessions take turns: the drafts of one turn, with some room; else whoever is there rides."""
    takes_turns = found.kind[index] > 1
    return math.ceil(found.num_drafts[index] * (1.0 + TURN_ROOM)) if takes_turns else None


@dataclass(frozen=True, slots=True)
class _Table:
    """What the candidates are computed from; K classes, G = max_gamma, L = 2G + 3 depths."""

    count: Array  # [K] sessions
    line: Array  # [K, L] survival from depth 0 on
    sums: Array  # [K, L] its running sum: E by γ
    away_s: Array  # [K] before the first node, slack included
    token_s: Array  # [K] slack included
    drawn_s: Array  # [K] without: a line that goes on does not lose what is a hair late
    log_rate: Array  # [K] of a node beyond the measured depths
    offered: Array  # [K] probability that a draft comes
    is_ahead: NDArray[np.bool_]  # [K] its drafter drafts ahead
    most_passes: Indices  # [K] from one of its drafts to the next
    max_gamma: int
    is_alone: bool

    @staticmethod
    def of(classes: Sequence[tuple[Profile, int]], max_gamma: int, slack: Slack, plain_s: float) -> _Table:
        depth = min(max_gamma, max(len(profile.survival) for profile, _ in classes))
        line = np.zeros((len(classes), 2 * depth + 3))
        for row, (profile, _) in enumerate(classes):
            known = profile.line[: 2 * depth + 3]
            line[row, : len(known)] = known
        stretch = 1.0 + slack.relative
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(line[:, -1] / line[:, -2])
            log_rate = np.log(np.clip(rate, 1e-9, 1.0 - 1e-9))
        return _Table(
            count=np.array([float(count) for _, count in classes]),
            line=line,
            sums=np.cumsum(line, axis=1),
            away_s=np.array([profile.away_s(0) for profile, _ in classes]) * stretch + slack.absolute * plain_s,
            token_s=np.array([profile.token_s for profile, _ in classes]) * stretch,
            drawn_s=np.array([profile.token_s for profile, _ in classes]),
            log_rate=log_rate,
            offered=np.array([profile.offered for profile, _ in classes]),
            is_ahead=np.array([profile.may_draft_ahead and depth > 0 for profile, _ in classes]),
            most_passes=np.array([most_passes(profile) for profile, _ in classes]),
            max_gamma=depth,
            is_alone=sum(count for _, count in classes) == 1,
        )

    def at(self, values: Array, depth: Indices) -> Array:
        """`values` [K, L] at a depth per candidate and class, [candidates, K]."""
        size = values.shape[1]
        return np.asarray(values.ravel().take(depth + np.arange(0, len(values) * size, size)), dtype=np.float64)

    def worthy(self, prices: Array) -> Indices:
        """Nodes worth each price, [candidates, K]."""
        different, inverse = np.unique(prices, return_inverse=True)
        depth = (self.line[None, :, 1 : self.max_gamma + 1] >= different[:, None, None]).sum(2)
        return np.asarray(depth[inverse], dtype=np.int64)

    def worthy_ahead(self, prices: Array) -> Array:
        """Nodes worth each price in a round that lies ahead, [candidates, K]; none where nobody drafts ahead."""
        different, inverse = np.unique(prices, return_inverse=True)
        with np.errstate(divide="ignore"):
            depth = np.minimum(np.log(different)[:, None] / self.log_rate + 1e-9, self.max_gamma)
        return np.where(self.is_ahead, np.maximum(depth, 0.0), 0.0)[inverse]


@dataclass(frozen=True, slots=True)
class _Found:
    """What each candidate comes to, [candidates]."""

    wanted_s: Array
    prices: Array
    tokens_per_s: Array
    period_s: Array
    pass_s: Array
    kind: Indices
    num_drafts: Array  # in a pass


@dataclass(frozen=True, slots=True)
class _Answers:
    """How the classes answer each candidate, per cycle of a draft and the rounds ahead that follow; [candidates, K]."""

    gamma: Indices
    passes: Indices
    tokens: Array
    positions: Array
    length: Array  # in periods

    def rate(self, table: _Table) -> Array:
        """Tokens per period of all sessions, [candidates]."""
        return np.asarray((self.tokens / self.length) @ table.count, dtype=np.float64)

    def load(self, table: _Table) -> Array:
        """Positions per pass, [candidates]."""
        return np.asarray((self.positions / self.length) @ table.count, dtype=np.float64)


class _Cycle(NamedTuple):
    """From one draft that is waited for to the next, what lies ahead and counts in between; [candidates, K]."""

    tokens: Array
    positions: Array | Indices
    length: Array  # in periods


def _coarse(table: _Table, cost: CostCurve, num_sessions: int) -> tuple[Array, Array]:
    """Pairs (period, price), flattened: periods at which some class is just back in time."""
    loads = np.unique(cost(num_sessions * np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])))
    gammas = np.unique(np.minimum(GAMMAS, table.max_gamma)).astype(float)
    away = (table.away_s[:, None] + table.token_s[:, None] * gammas).ravel()
    back = (loads[:, None, None] + away[None, :, None]) / np.arange(1, MAX_PASSES + 1)
    periods = np.concatenate([loads, np.maximum(back, loads[:, None, None]).ravel()])
    periods = np.exp(np.unique(np.ceil(np.log(periods) / COARSE)) * COARSE)
    is_bound_by_memory = cost(np.array([num_sessions * (table.max_gamma + 1.0)]))[0] < loads[0] * 1.05
    prices = np.array(COARSE_PRICES[:1] if is_bound_by_memory else COARSE_PRICES)
    periods, prices = np.meshgrid(periods, prices, indexing="ij")
    return periods.ravel(), prices.ravel()


def _around(coarse: _Found, factors: Array) -> tuple[Array, Array]:
    """The surroundings of the best coarse candidates: neighbouring periods and prices."""
    trusted = coarse.tokens_per_s * factors[coarse.kind]
    best = np.argsort(-trusted)[:NUM_REFINED]
    periods = coarse.wanted_s[best, None, None] * np.exp(FINE * np.arange(-3, 3))[None, :, None]
    known = np.array(PRICES)
    place = np.searchsorted(known, coarse.prices[best])[:, None] + np.array([-1, 0, 1])
    if not coarse.prices.any():
        place = place[:, 1:2]
    prices = known[np.clip(place, 0, len(known) - 1)][:, None, :]
    pairs = np.stack(np.broadcast_arrays(periods, prices), axis=-1).reshape(-1, 2)
    pairs[:, 0] = np.exp(np.round(np.log(pairs[:, 0]) / FINE) * FINE)
    pairs = np.unique(pairs, axis=0)
    return pairs[:, 0], pairs[:, 1]


def _fixed_points(table: _Table, cost: CostCurve, wanted_s: Array, prices: Array, steps: int) -> _Found:
    """Follow each candidate to where its answers and its pass length agree; those that never do earn nothing."""
    depth, ahead = table.worthy(prices), table.worthy_ahead(prices)
    pass_s = np.full_like(wanted_s, float(cost(np.array([float(table.count.sum())]))[0]))
    answers = _answers(table, depth, ahead, prices, np.maximum(wanted_s, pass_s), pass_s)
    for _ in range(steps):
        pass_s = (pass_s + cost(answers.load(table))) / 2
        answers = _answers(table, depth, ahead, prices, np.maximum(wanted_s, pass_s), pass_s)
    pass_s = cost(answers.load(table))
    period_s = np.maximum(wanted_s, pass_s)
    back_s = pass_s[:, None] + table.away_s + table.token_s * answers.gamma
    is_in_time = ((back_s <= answers.passes * period_s[:, None] * 1.001) | (answers.gamma == 0)).all(1)
    kind = np.bitwise_or.reduce(np.where(answers.gamma > 0, 1 << (answers.passes - 1), 0), axis=1)
    tokens_per_s = np.where(is_in_time, answers.rate(table) / period_s, 0.0)
    between = table.offered * answers.passes + (1.0 - table.offered) * np.maximum(1, answers.passes - 1)
    num_drafts = np.where(answers.gamma > 0, table.offered / between, 0.0) @ table.count
    return _Found(wanted_s, prices, tokens_per_s, period_s, pass_s, kind, num_drafts)


def _answers(
    table: _Table, depth: Indices, worthy_ahead: Array, prices: Array, period_s: Array, pass_s: Array
) -> _Answers:
    """`pilotfish.price.choose` for every candidate and class."""
    shape, price = depth.shape, prices[:, None]
    best = np.broadcast_to(1.0 - price, shape).copy()
    gamma, passes = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.int64)
    tokens, positions, length = np.ones(shape), np.ones(shape), np.ones(shape)
    ahead, share = _ahead(table, worthy_ahead, period_s, pass_s)
    per_second = 1.0 / np.maximum(table.token_s, 1e-12)
    spare = (period_s - pass_s)[:, None] - table.away_s
    for k in range(1, MAX_PASSES + 1):
        fitting = np.minimum(spare * per_second + 1e-6, depth)
        spare = spare + period_s[:, None]
        if fitting.max() < k:
            continue
        n = fitting.astype(np.int64)
        np.maximum(n, 0, out=n)
        found = _Cycle(k - table.sums[:, k - 1] + table.at(table.sums, n), n + 1, np.array(float(k)))
        if ahead is not None:
            found = _with_ahead(table, found, n, ahead, share)
        found = _or_plain(table, found, max(1, k - 1))
        worth = (found.tokens - price * found.positions) / found.length
        is_better = (n >= k) & (k <= table.most_passes) & (worth > best + 1e-9)
        best = np.where(is_better, worth, best)
        gamma, passes = np.where(is_better, n, gamma), np.where(is_better, k, passes)
        tokens = np.where(is_better, found.tokens, tokens)
        positions = np.where(is_better, found.positions, positions)
        length = np.where(is_better, found.length, length)
    return _Answers(gamma, passes, tokens, positions, length)


def _ahead(table: _Table, worthy: Array, period_s: Array, pass_s: Array) -> tuple[Indices | None, Array]:
    """Nodes of a round that lies ahead [candidates, K], None where nobody's does; its length in periods."""
    ahead_s = pass_s if table.is_alone else period_s
    share = (ahead_s / period_s)[:, None]
    if not table.is_ahead.any():
        return None, share
    with np.errstate(divide="ignore"):
        drawn = np.where(table.drawn_s > 0.0, ahead_s[:, None] / table.drawn_s + 1e-6, np.inf) - 1.0
    return np.maximum(np.minimum(worthy, drawn), 0.0).astype(np.int64), share


def _with_ahead(table: _Table, cycle: _Cycle, gamma: Indices, ahead: Indices, share: Array) -> _Cycle:
    """The cycle with the rounds that lie ahead and count."""
    alive = table.at(table.line, gamma + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        again = np.where(alive > 0.0, table.at(table.line, gamma + ahead + 2) / alive, 0.0)
    factor = np.where(ahead > 0, 1.0 / (1.0 - np.minimum(again, 0.999)), 0.0)
    hits = alive * factor
    gained = (table.at(table.sums, gamma + 1 + ahead) - table.at(table.sums, gamma)) * factor
    return _Cycle(cycle.tokens + gained, cycle.positions + (ahead + 1) * hits, cycle.length + hits * share)


def _or_plain(table: _Table, cycle: _Cycle, num_passes: int) -> _Cycle:
    """The cycle where a draft comes, else so many passes with a token each."""
    plain = (1.0 - table.offered) * num_passes
    return _Cycle(*(table.offered * each + plain for each in cycle))
