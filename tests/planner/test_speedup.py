"""The closed forms against known values and against chance."""

from __future__ import annotations

import random
from functools import partial

import pytest

from pilotfish.speedup import (
    ACCELERATORS,
    batch_speedup,
    best_gamma,
    break_even_alpha,
    break_even_cost,
    expected_tokens,
    levers,
    limit_tokens,
    pass_time,
    speedup,
)


@pytest.mark.parametrize(
    ("alpha", "cost", "gamma", "tokens", "gain"),
    [
        (0.8, 0.05, 4, 3.36, 2.80),
        (0.8, 0.15, 4, 3.36, 2.10),
        (0.5, 0.15, 4, 1.94, 1.21),
        (0.4, 0.30, 4, 1.65, 0.75),
    ],
)
def test_known_values(alpha: float, cost: float, gamma: int, tokens: float, gain: float) -> None:
    """Expected tokens and speedup are the field's known values, to the digits they are quoted with."""
    assert round(expected_tokens(alpha, gamma), 2) == tokens
    assert round(speedup(alpha, cost, gamma), 2) == gain


def test_drafting_deeper_pays_little_and_acceptance_pays_much() -> None:
    """γ 3 → 10 at α .5 gives 7% more tokens, γ 4 → 10 at α .7 18%, and α .7 → .9 at γ 4 48%."""
    assert round(expected_tokens(0.5, 3), 2) == 1.88
    assert round(expected_tokens(0.5, 10), 2) == 2.00
    assert round(100 * (expected_tokens(0.5, 10) / expected_tokens(0.5, 3) - 1)) == 7
    assert round(100 * (expected_tokens(0.9, 4) / expected_tokens(0.7, 4) - 1)) == 48
    assert round(100 * (expected_tokens(0.7, 10) / expected_tokens(0.7, 4) - 1)) == 18


def test_textbook_optimum() -> None:
    """At α .8 and c .05 the best γ is 8, with 3.1 times."""
    assert best_gamma(0.8, 0.05) == 8
    assert round(speedup(0.8, 0.05, 8), 1) == 3.1


def test_closed_forms_agree_with_chance() -> None:
    """At 200 random (α, γ, c) the closed form lies within five standard errors of 4,000 simulated rounds.

    False-alarm rate: 200 × 6e-7, about 1e-4.
    """
    chance = random.Random(20)
    for _ in range(200):
        alpha, gamma, cost = chance.random(), chance.randint(1, 12), chance.random()
        rounds = []
        for _ in range(4000):
            accepted = 0
            while accepted < gamma and chance.random() < alpha:
                accepted += 1
            rounds.append(accepted + 1)
        mean = sum(rounds) / len(rounds)
        error = (sum((tokens - mean) ** 2 for tokens in rounds) / len(rounds) ** 2) ** 0.5
        time = gamma * cost + 1
        assert abs(mean / time - speedup(alpha, cost, gamma)) <= 5 * error / time + 1e-3 / time


def test_break_even_is_where_the_speedup_is_one() -> None:
    """At the break-even α and c the speedup is 1; where nothing pays, there is none."""
    alpha = break_even_alpha(0.1, 4)
    assert alpha is not None
    assert speedup(alpha, 0.1, 4) == pytest.approx(1.0)
    assert speedup(0.7, break_even_cost(0.7, 4), 4) == pytest.approx(1.0)
    assert break_even_alpha(1.5, 4) is None


def test_nothing_pays_is_gamma_zero() -> None:
    """Where every γ loses the best γ is 0, and its speedup is 1."""
    assert best_gamma(0.3, 0.9) == 0
    assert speedup(0.3, 0.9, 0) == 1.0


def test_limits() -> None:
    """E tends to 1 / (1 - α), and is γ + 1 at α = 1."""
    assert expected_tokens(0.9, 1000) == pytest.approx(limit_tokens(0.9))
    assert expected_tokens(1.0, 5) == 6
    assert limit_tokens(1.0) == float("inf")


def test_saturation_story() -> None:
    """An H100's ridge is 295 positions: batch 1 uses .3%, γ 4 1.7%, batch 64 22%, and with γ 4 it is past it."""
    ridge = ACCELERATORS["H100"].ridge
    assert round(ridge) == 295
    assert [round(100 * n / ridge, 1) for n in (1, 5)] == [0.3, 1.7]
    assert round(100 * 64 / ridge) == 22
    assert ridge < 64 * 5
    roofline = partial(pass_time, ridge=ridge)
    assert batch_speedup(0.8, 0.05, 4, 1, roofline) == pytest.approx(speedup(0.8, 0.05, 4))
    assert batch_speedup(0.6, 0.05, 4, 1000, roofline) < 1.0


def test_levers_are_ordered_by_what_they_gain() -> None:
    """With a poor drafter acceptance pays most; with an absurd γ, γ does."""
    assert levers(0.7, 0.05, 4)[0].name == "alpha"
    assert levers(0.5, 0.5, 30)[0].name == "gamma"
