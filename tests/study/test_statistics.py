from __future__ import annotations

import statistics
from math import comb

import numpy as np
import pytest

from hybridnn.study.statistics import (
    CONFIDENCE,
    Estimate,
    MeanDeviation,
    mean_and_deviation,
    median_of,
)


def _exact_quantile(values: list[float], level: float) -> float:
    """Quantile of the medians of all equally likely resamples of an odd number of values, by the binomial law.

    The median is at most the i-th smallest value if more than half of the draws are among the i smallest.
    """
    n, ordered = len(values), sorted(values)
    for i, value in enumerate(ordered, 1):
        below = sum(comb(n, k) * (i / n) ** k * (1 - i / n) ** (n - k) for k in range(n // 2 + 1, n + 1))
        if below >= level:
            return value
    raise AssertionError(level)


@pytest.mark.parametrize("count", [3, 5, 9, 25])
def test_interval_of_a_median_has_the_quantiles_of_all_resamples(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count).tolist()
    found = median_of(values)
    assert found.value == statistics.median(values)
    tail = (1 - CONFIDENCE) / 2
    assert (found.low, found.high) == (_exact_quantile(values, tail), _exact_quantile(values, 1 - tail))


def test_few_or_equal_measurements_have_no_interval_or_one_point() -> None:
    assert median_of([1.0]) == Estimate(1.0)
    assert median_of([1.0, 2.0]) == Estimate(1.5)
    assert median_of([2.0, 2.0, 2.0]) == Estimate(2.0, 2.0, 2.0)


def test_estimates_can_be_scaled_and_printed() -> None:
    assert Estimate(2.0, 1.0, 4.0).scaled(0.5) == Estimate(1.0, 0.5, 2.0)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)
    assert Estimate(2.0, 1.0, 4.0).format(".2f") == "2.00 [1.00, 4.00]"
    assert Estimate(2.0).format() == "2"


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    found = mean_and_deviation([1.0, 2.0, 4.0])
    assert (found.mean, found.count) == (pytest.approx(7 / 3), 3)
    assert found.deviation == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert mean_and_deviation([0.5]) == MeanDeviation(0.5, None, 1)
    assert mean_and_deviation([0.5]).format() == "0.5"
    assert mean_and_deviation([0.25, 0.75]).format() == "0.5 ± 0.35"
    assert MeanDeviation(0.9437, 0.0103, 5).format() == "0.9437 ± 0.010"
    assert MeanDeviation(40.0, 12.3, 5).format() == "40 ± 12"
