"""The plan: the price and the tempo that give all sessions together the most tokens per second.

Every candidate is a pair (period, price). Under it each session answers as `pilotfish.price.choose` says; from the
answers follow the positions of a pass, hence its length, hence who can be back in time: a fixed point, found by a few
damped steps. The candidate with the largest goodput is the plan. Plain free-running decoding is always one of them.

The periods worth trying are those at which somebody is just back in time, and the pass length itself. All candidates
are computed at once, on arrays [candidates, classes]: sessions that are alike form a class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pilotfish.price import MAX_PASSES, Plan, Profile

Array = NDArray[np.float64]
CostCurve = Callable[[Array], Array]  # positions in a pass -> its length in seconds, elementwise

MIN_GAIN = 0.01  # over plain decoding: less is not worth the risk
PRICES = (0.0, 0.02, 0.05, 0.1, 0.16, 0.23, 0.31, 0.4, 0.5, 0.61, 0.73, 0.86, 1.0)
NUM_STEPS = 10
MAX_CLASSES = 12


@dataclass(frozen=True, slots=True)
class Slack:
    """How much later than expected a draft may come and still be counted as in time."""

    relative: float = 0.04  # of the time away
    absolute: float = 0.004  # in pass lengths of plain decoding


def solve(
    profiles: Iterable[Profile],
    cost: CostCurve,
    max_gamma: int,
    trust: Mapping[int, float] = MappingProxyType({}),
    slack: Slack = Slack(),
) -> Plan:
    """The plan for these sessions.

    Args:
        profiles: one per session; a session that may not speculate has an empty survival.
        cost: T(positions).
        max_gamma: most tokens in a draft.
        trust: by kind of plan, what was measured under such a plan over what was predicted; 1 where not measured.
        slack: for jitter.
    """
    classes = _classes(profiles)
    num_sessions = sum(count for _, count in classes)
    if not num_sessions:
        return Plan.plain(0, 0.0)
    plain_s = float(cost(np.array([float(num_sessions)]))[0])
    plain = Plan.plain(num_sessions, plain_s)
    table = _Table.of(classes, max_gamma, slack, plain_s)
    if not table.max_gamma:
        return plain
    periods, prices = _candidates(table, cost, num_sessions)
    found = _fixed_points(table, cost, periods, prices, plain_s)
    trusted = found.tokens_per_s * _trust_of(found.kind, trust)
    best = int(trusted.argmax())
    if trusted[best] < plain.tokens_per_s * (1.0 + MIN_GAIN):
        return plain
    return Plan(
        price=float(prices[best]),
        period_s=float(found.period_s[best]),
        pass_s=float(found.pass_s[best]),
        tokens_per_s=float(found.tokens_per_s[best]),
        kind=int(found.kind[best]),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """What the candidates are computed from; K classes, G = max_gamma."""

    count: Array  # [K] sessions
    survival: Array  # [K, G]
    expected: Array  # [K, G + 1] E by γ
    away_s: Array  # [K] before the first node, slack included
    token_s: Array  # [K] slack included
    max_gamma: int

    @staticmethod
    def of(classes: Sequence[tuple[Profile, int]], max_gamma: int, slack: Slack, plain_s: float) -> _Table:
        depth = min(max_gamma, max(len(profile.survival) for profile, _ in classes))
        survival = np.zeros((len(classes), depth))
        for row, (profile, _) in enumerate(classes):
            known = profile.survival[:depth]
            survival[row, : len(known)] = known
        stretch = 1.0 + slack.relative
        away = np.array([profile.away_s(0) for profile, _ in classes]) * stretch + slack.absolute * plain_s
        token = np.array([profile.token_s for profile, _ in classes]) * stretch
        expected = 1.0 + np.pad(np.cumsum(survival, axis=1), ((0, 0), (1, 0)))
        return _Table(np.array([float(n) for _, n in classes]), survival, expected, away, token, depth)


@dataclass(frozen=True, slots=True)
class _Found:
    """What each candidate comes to, [candidates]."""

    tokens_per_s: Array
    period_s: Array
    pass_s: Array
    kind: NDArray[np.int64]


def _classes(profiles: Iterable[Profile]) -> list[tuple[Profile, int]]:
    """Sessions that are alike, with their number; beyond MAX_CLASSES the rarest join the nearest in first survival."""
    grouped: dict[tuple[float, ...], list[Profile]] = {}
    for profile in profiles:
        grouped.setdefault(_kind(profile), []).append(profile)
    classes = sorted(((group[len(group) // 2], len(group)) for group in grouped.values()), key=lambda c: -c[1])
    kept, counts = classes[:MAX_CLASSES], Counter[int]()
    for profile, count in classes[MAX_CLASSES:]:
        counts[min(range(len(kept)), key=lambda i: _distance(kept[i][0], profile))] += count
    return [(profile, count + counts[i]) for i, (profile, count) in enumerate(kept)]


def _kind(profile: Profile) -> tuple[float, ...]:
    depth = len(profile.survival)
    first, middle = (profile.survival[0], profile.survival[depth // 4]) if depth else (0.0, 0.0)
    return (
        round(first * 12),
        round(middle * 12),
        _band(profile.away_s(0)),
        _band(profile.token_s),
        len(profile.survival),
    )


def _band(seconds: float) -> float:
    """Times within a tenth are alike."""
    return float(round(10.0 * math.log(max(seconds, 1e-6))))


def _distance(one: Profile, other: Profile) -> float:
    first, second = one.survival[:1] or (0.0,), other.survival[:1] or (0.0,)
    return abs(first[0] - second[0]) + abs(one.away_s(4) - other.away_s(4)) / max(one.away_s(4), 1e-9)


def _candidates(table: _Table, cost: CostCurve, num_sessions: int) -> tuple[Array, Array]:
    """Pairs (period, price), flattened: periods at which some class is just back in time, on a 1.5% grid."""
    loads = np.unique(cost(num_sessions * np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])))
    gammas = np.unique(np.minimum([1, 2, 3, 4, 5, 6, 8, 10, 12, 16], table.max_gamma)).astype(float)
    away = (table.away_s[:, None] + table.token_s[:, None] * gammas).ravel()
    back = (loads[:, None, None] + away[None, :, None]) / np.arange(1, 4)
    periods = np.concatenate([loads, np.where(back >= loads[:, None, None], back, loads[:, None, None]).ravel()])
    grid = np.unique(np.ceil(np.log(periods) / 0.015))
    is_bound_by_memory = cost(np.array([num_sessions * (table.max_gamma + 1.0)]))[0] < loads[0] * 1.05
    prices = np.array(PRICES[:1] if is_bound_by_memory else PRICES)
    periods, prices = np.meshgrid(np.exp(grid * 0.015), prices, indexing="ij")
    return periods.ravel(), prices.ravel()


def _fixed_points(table: _Table, cost: CostCurve, wanted_s: Array, prices: Array, plain_s: float) -> _Found:
    """Follow each candidate to where its answers and its pass length agree; those that never do earn nothing."""
    depth = (table.survival[None] >= prices[:, None, None]).sum(2)  # [candidates, K] nodes worth the price
    pass_s = np.full_like(wanted_s, plain_s)
    gamma, passes = _answers(table, depth, prices, np.maximum(wanted_s, pass_s), pass_s)
    for _ in range(NUM_STEPS):
        positions = ((gamma + 1) / passes * table.count).sum(1)
        pass_s = (pass_s + cost(positions)) / 2
        gamma, passes = _answers(table, depth, prices, np.maximum(wanted_s, pass_s), pass_s)
    positions = ((gamma + 1) / passes * table.count).sum(1)
    pass_s = cost(positions)
    period_s = np.maximum(wanted_s, pass_s)
    tokens = (_tokens(table, gamma, passes) / passes * table.count).sum(1)
    back_s = pass_s[:, None] + table.away_s + table.token_s * gamma
    is_in_time = ((back_s <= passes * period_s[:, None] * 1.001) | (gamma == 0)).all(1)
    bits = np.where(gamma > 0, 1 << (passes - 1), 0)
    kind = np.bitwise_or.reduce(bits, axis=1)
    return _Found(np.where(is_in_time, tokens / period_s, 0.0), period_s, pass_s, kind)


def _tokens(table: _Table, gamma: NDArray[np.int64], passes: NDArray[np.int64] | int) -> Array:
    """Expected in `passes` passes: `pilotfish.price.Profile.tokens`, [candidates, K]."""
    rows = np.arange(len(table.count))[None]
    head = np.broadcast_to(np.minimum(np.asarray(passes) - 1, table.max_gamma), gamma.shape)
    return np.asarray(passes + table.expected[rows, gamma] - table.expected[rows, head], dtype=np.float64)


def _trust_of(kind: NDArray[np.int64], trust: Mapping[int, float]) -> Array:
    factors = np.ones(1 << MAX_PASSES)
    for measured, factor in trust.items():
        factors[measured] = factor
    return factors[kind]


def _answers(
    table: _Table, depth: NDArray[np.int64], prices: Array, period_s: Array, pass_s: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`pilotfish.price.choose` for every candidate and class: γ and passes, [candidates, K]."""
    shape = depth.shape
    best = np.broadcast_to(1.0 - prices[:, None], shape).copy()
    gamma, passes = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in range(1, MAX_PASSES + 1):
            spare = k * period_s[:, None] - pass_s[:, None] - table.away_s
            fitting = np.where(table.token_s > 0, spare / table.token_s + 1e-6, np.inf)
            fits = np.where(spare >= -1e-9, np.minimum(depth, fitting), 0).astype(np.int64)
            worth = (_tokens(table, fits, k) - prices[:, None] * (fits + 1)) / k
            is_better = (fits >= k) & (worth > best + 1e-9)
            best = np.where(is_better, worth, best)
            gamma = np.where(is_better, fits, gamma)
            passes = np.where(is_better, k, passes)
    return gamma, passes
