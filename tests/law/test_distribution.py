from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish import noise
from pilotfish.distribution import Distribution, draw, draw_coupled, quantise

PROBABILITIES = st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20)
LARGEST_UNIFORM = 1.0 - 2.0**-53


@given(PROBABILITIES, st.integers(1, 24))
def test_quantised_weights_fit_and_follow_the_probabilities(probabilities: list[float], num_bits: int) -> None:
    """Every weight has 1 to num_bits bits, the largest all of them, and is off by at most a half."""
    q = quantise(range(len(probabilities)), probabilities, num_bits)
    largest = (1 << num_bits) - 1
    assert max(q.weights) == largest
    assert min(q.weights) >= 1
    weights = dict(zip(q.ids, q.weights, strict=True))
    for token, probability in enumerate(probabilities):
        assert abs(weights.get(token, 0) - probability / max(probabilities) * largest) <= 0.5 + 1e-6


@pytest.mark.parametrize("probabilities", [[], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1.0, math.nan]])
def test_what_is_no_distribution_is_refused(probabilities: list[float]) -> None:
    """Nothing, all zeros, NaN and infinity cannot be quantised."""
    with pytest.raises(ValueError, match="not a distribution"):
        quantise(range(len(probabilities)), probabilities, 8)


@pytest.mark.parametrize("num_bits", [0, -1, 33])
def test_impossible_number_of_bits_is_refused(num_bits: int) -> None:
    """The error names the range and the value."""
    with pytest.raises(ValueError, match=f"from 1 to 32, is {num_bits}"):
        quantise([0], [1.0], num_bits)


@given(PROBABILITIES, st.integers(0, (1 << 53) - 1))
def test_drawn_id_has_a_weight(probabilities: list[float], numerator: int) -> None:
    """Whatever the uniform, what is drawn is in the support, so its weight on the wire is never 0."""
    q = quantise(range(len(probabilities)), probabilities, 8)
    assert q.probability(draw(q, numerator * 2.0**-53)) > 0.0


def test_draw_divides_the_uniforms_by_weight() -> None:
    """A grid of uniforms as fine as the weights selects each id as often as its weight says, exactly."""
    q = Distribution((9, 3, 7), (5, 1, 10))
    counts = Counter(draw(q, numerator / 16) for numerator in range(16))
    assert counts == {9: 5, 3: 1, 7: 10}
    assert draw(q, 0.0) == 9
    assert draw(q, LARGEST_UNIFORM) == 7


def test_draw_is_exact_at_its_borders() -> None:
    """One step of 2**-53 below a border is still the id before it."""
    q = Distribution((1, 2), (1, 1))
    assert draw(q, 0.5 - 2.0**-53) == 1
    assert draw(q, 0.5) == 2


def test_probability_is_weight_over_total() -> None:
    """An id outside the support has probability 0."""
    q = Distribution((9, 3), (3, 1))
    assert (q.probability(9), q.probability(3), q.probability(0)) == (0.75, 0.25, 0.0)


def test_coupled_draw_takes_the_lowest_of_tied_ids() -> None:
    """Ties go to the lowest id, in whatever order the ids come."""
    assert draw_coupled(Distribution((9, 3, 7), (2, 2, 1)), [0.5, 0.5, 0.5]) == 3


def test_coupled_draws_follow_q() -> None:
    """The noise of 20,000 positions draws from q: chi-square under 30 with 2 degrees of freedom (3e-7)."""
    q = Distribution((9, 3, 7), (5, 1, 10))
    counts = Counter(draw_coupled(q, noise.gumbel(1, position, q.ids)) for position in range(20_000))
    expected = {token: 20_000 * q.probability(token) for token in q.ids}
    assert sum((counts[token] - expected[token]) ** 2 / expected[token] for token in q.ids) < 30.0
