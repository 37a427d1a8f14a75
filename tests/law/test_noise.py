from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from pilotfish import noise
from pilotfish.noise import Purpose

SEEDS = [0, 1, -1, 2**63, 2**64 - 1]
NUM_DRAWS = 20_000
EXPECTED_BITS = -1_854_505_203_099_846_764
Draws = Callable[[int], float]


def streams() -> dict[str, Draws]:
    """Uniforms along each of the things they are keyed by."""
    return {
        "seeds": lambda index: noise.uniform(index, Purpose.ACCEPT, 10, 0),
        "distant seeds": lambda index: noise.uniform(index << 40, Purpose.ACCEPT, 10, 0),
        "positions": lambda index: noise.uniform(7, Purpose.ACCEPT, index, 0),
        "nodes": lambda index: noise.uniform(7, Purpose.ACCEPT, 10, index),
        "ids": lambda index: noise.uniform(7, Purpose.COUPLED, 10, index),
        "diagonal": lambda index: noise.uniform(7, Purpose.DRAFT, index, 1000 - index % 1000),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("position", [0, 1, 100_000])
def test_python_numpy_and_torch_give_the_same_bits(seed: int, position: int) -> None:
    """All three kinds of integer wrap to the same 64 bits, so peers agree; the logarithms differ by an ulp at most."""
    ids = [0, 1, 2, 49_151, 2**31 - 1]
    one_by_one = [noise.bits(seed, Purpose.COUPLED, position, token) for token in ids]
    assert noise.bits(seed, Purpose.COUPLED, position, np.array(ids)).tolist() == one_by_one
    assert noise.bits(seed, Purpose.COUPLED, position, torch.tensor(ids)).tolist() == one_by_one
    gumbel = noise.gumbel(seed, position, ids)
    assert gumbel == pytest.approx(noise.gumbel(seed, position, np.array(ids)).tolist(), rel=1e-14)
    assert gumbel == pytest.approx(noise.gumbel(seed, position, torch.tensor(ids)).tolist(), rel=1e-14)


def test_bits_stay_what_they_are() -> None:
    """Seeded text must be the same in the next release: a fixed key has these bits."""
    assert noise.bits(42, Purpose.ACCEPT, 7, 3) == EXPECTED_BITS
    assert noise.uniform(42, Purpose.ACCEPT, 7, 3) == (EXPECTED_BITS % 2**64 >> 11) / 2**53


@pytest.mark.parametrize("name", streams())
def test_uniforms_fill_their_interval_evenly(name: str) -> None:
    """Along every key 100 equal cells are filled evenly; false alarm 1e-6."""
    values = [streams()[name](index) for index in range(NUM_DRAWS)]
    counts = np.bincount((np.array(values) * 100).astype(int), minlength=100)
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("name", streams())
def test_neighbours_are_independent(name: str) -> None:
    """Pairs of neighbours fill 10 x 10 cells evenly, at distance 1, 2 and 1000; false alarm 3e-6."""
    values = np.array([streams()[name](index) for index in range(NUM_DRAWS)])
    for distance in (1, 2, 1000):
        cells = (values[:-distance] * 10).astype(int) * 10 + (values[distance:] * 10).astype(int)
        assert stats.chisquare(np.bincount(cells, minlength=100)).pvalue > 1e-6


def test_purposes_seeds_and_positions_do_not_correlate() -> None:
    """Sequences that differ in one key only have no correlation above 5 standard deviations; false alarm 1e-5."""
    sequences = [
        [noise.uniform(seed, purpose, position, node) for node in range(NUM_DRAWS)]
        for seed, purpose, position in [
            (1, Purpose.ACCEPT, 5),
            (2, Purpose.ACCEPT, 5),
            (1, Purpose.DRAFT, 5),
            (1, Purpose.FINAL, 5),
            (1, Purpose.ACCEPT, 6),
            (1, Purpose.COUPLED, 5),
        ]
    ]
    correlations = np.corrcoef(sequences) - np.eye(len(sequences))
    assert np.abs(correlations).max() < 5 / math.sqrt(NUM_DRAWS)


def test_no_key_starts_where_another_does() -> None:
    """100,000 keys of sessions, purposes and positions are all different."""
    keys = {noise.key(seed, purpose, position) for seed in range(100) for purpose in Purpose for position in range(200)}
    assert len(keys) == 100 * len(Purpose) * 200


def test_every_bit_is_a_fair_coin() -> None:
    """Each of the 64 bits is set in half of 20,000 draws, to 6 standard deviations; false alarm 2e-7."""
    drawn = noise.bits(3, Purpose.COUPLED, 8, np.arange(NUM_DRAWS))
    set_bits = [(int(np.count_nonzero((drawn >> bit) & 1))) for bit in range(64)]
    assert all(abs(count - NUM_DRAWS / 2) < 6 * math.sqrt(NUM_DRAWS) / 2 for count in set_bits)


def test_gumbel_noise_has_its_law() -> None:
    """The Kolmogorov distance to exp(-exp(-x)) is that of a true sample; false alarm 1e-6."""
    drawn = noise.gumbel(5, 3, np.arange(NUM_DRAWS))
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "gumbel_r").pvalue > 1e-6


def test_exponentials_are_positive_at_the_ends_of_the_interval() -> None:
    """The open interval leaves no zero and no infinity: its ends are half a step inside."""
    values = np.array([-(1 << 63), (1 << 63) - 1, 0, -1])
    inside = noise._open(values)
    assert ((inside > 0.0) & (inside < 1.0)).all()
    assert (-np.log(inside) > 0.0).all()


def test_uniforms_are_multiples_of_a_power_of_two() -> None:
    """A uniform is an integer over 2**53 in [0, 1), so a draw from integer weights is exact."""
    for index in range(1000):
        value = noise.uniform(index, Purpose.DRAFT, 1, 2)
        assert 0.0 <= value < 1.0
        assert (value * 2**53).is_integer()
    assert all(first != second for first, second in pairwise(noise.gumbel(1, 2, list(range(100)))))
