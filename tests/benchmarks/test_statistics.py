"""Figures of the bench, against cases that can be worked out by hand."""

import math
import random
from dataclasses import dataclass

import pytest

from benchmarks.statistics import acceptance_by_depth, bootstrap, geometric_mean, median, paired_ratio


@dataclass(frozen=True)
class Counts:
    num_drafted: int
    num_accepted: int


def test_median_lies_in_its_interval() -> None:
    """The interval of a median holds it and stays within the samples."""
    estimate = median([3.0, 1.0, 2.0, 5.0, 4.0])
    assert estimate.value == 3.0
    assert 1.0 <= estimate.low <= 3.0 <= estimate.high <= 5.0


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """The 95% interval of a mean of 20 exponentials covers 1 in 85% to 99% of 200 trials.

    The percentile bootstrap is known to cover about 91% here; with fixed seeds the test cannot fail by chance.
    """
    chance = random.Random(7)
    covered = 0
    for trial in range(200):
        samples = [chance.expovariate(1.0) for _ in range(20)]
        estimate = bootstrap(samples, lambda values: sum(values) / len(values), seed=trial)
        covered += estimate.low <= 1.0 <= estimate.high
    assert 170 <= covered <= 198


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    """Twice as fast and half as fast make as fast."""
    assert geometric_mean([2.0, 0.5]).value == pytest.approx(1.0)


def test_ratio_is_paired_by_prompt() -> None:
    """A prompt that is slow in both arms does not move the ratio, nor does one outlier of three."""
    estimate = paired_ratio([[20.0, 20.0, 900.0], [2.0]], [[10.0], [1.0]])
    assert estimate.value == pytest.approx(2.0)
    assert (estimate.low, estimate.high) == pytest.approx((2.0, 2.0))


def test_one_sample_has_no_interval() -> None:
    """A single measurement says nothing of its uncertainty."""
    assert math.isnan(median([1.0]).low)


def test_no_samples_are_an_error() -> None:
    """Nothing measured is not a figure."""
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_acceptance_counts_only_tokens_that_were_looked_at() -> None:
    """With 2 of 4 held, depth 3 was looked at and failed, depth 4 was not looked at; plain rounds count nowhere."""
    depths = acceptance_by_depth([Counts(4, 2), Counts(4, 4), Counts(1, 1), Counts(0, 0)])
    assert [(d.num_reached, d.num_held) for d in depths] == [(3, 3), (2, 2), (2, 1), (1, 1)]
    assert depths[2].alpha == 0.5
