"""Statistics of repeated runs: medians and means with confidence intervals, means with deviations.

The rules are those of Hoefler and Belli 2015 (Scientific Benchmarking of Parallel Computing Systems): times have a
confidence interval (rule 5), and nothing is assumed about the distribution of those that are not compared (rule 6).
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
LEAST_REPEATS = 3
"""Number of measurements from which on there is an interval. Two say nothing of the tails of a distribution."""

LOG_OF_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Estimate:
    """A median, a mean or a ratio.

    `low` and `high` are the ends of its interval of `CONFIDENCE`, None with fewer than `LEAST_REPEATS` measurements.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in other units, `factor` times as large; `factor` is positive."""
        if self.low is None or self.high is None:
            return Estimate(factor * self.value)
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    def format(self, spec: str = ".4g") -> str:
        """Return ``median [low, high]``, or the value alone where there is no interval; ``-`` for NaN."""
        if math.isnan(self.value):
            return "-"
        if self.low is None or self.high is None:
            return f"{self.value:{spec}}"
        spec = spec.replace("4g", "3g")  # digits beyond the interval would say nothing
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


@dataclass(frozen=True)
class MeanDeviation:
    """Mean and sample standard deviation; the deviation of a single value is None."""

    mean: float
    deviation: float | None
    count: int

    def format(self, spec: str = ".4g") -> str:
        """Return ``mean ± deviation``, or the mean alone."""
        return f"{self.mean:{spec}}" + ("" if self.deviation is None else f" ± {self.deviation:#.2g}".removesuffix("."))


def median_of(values: Sequence[float]) -> Estimate:
    """Estimate the median of at least one measurement, with an interval that assumes no distribution.

    Its ends are two of the measurements. So many lie below the median as heads fall of as many coins: the interval is
    the shortest that contains the median with probability `CONFIDENCE`. Of three to five measurements even that from
    the least to the greatest does so less often: 94 % for five.
    """
    ordered, value = sorted(values), statistics.median(values)
    if len(values) < LEAST_REPEATS:
        return Estimate(value)
    from scipy.stats import binom

    outside = max(1, int(binom.ppf((1 - CONFIDENCE) / 2, len(values), 0.5)))
    return Estimate(value, ordered[outside - 1], ordered[-outside])


def coverage_of_median(count: int) -> float:
    """Probability with which the interval of `median_of` so many measurements contains the median: 94 % for five."""
    return min(CONFIDENCE, 1 - 2.0 ** (1 - count))


def mean_with_interval(
    values: Sequence[float],
    tail: float = (1 - CONFIDENCE) / 2,
    *,
    are_factors: bool = False,
    least_deviation: float = 0.0,
) -> Estimate:
    """Estimate the mean of several values, with the interval of Student's t distribution beside two such tails.

    Of positive factors it is the geometric mean, with the interval of their logarithms. Where some values are infinite,
    there is no interval. The standard deviation counts as at least `least_deviation`.
    """
    if len(set(values)) == 1 and (not least_deviation or len(values) == 1 or not math.isfinite(values[0])):
        return Estimate(values[0], values[0], values[0])
    if infinite := {value for value in values if not math.isfinite(value)}:
        return Estimate(infinite.pop() if len(infinite) == 1 else math.nan)
    are_factors = are_factors and min(values) > 0
    numbers = [math.log(value) for value in values] if are_factors else list(values)
    mean = statistics.fmean(numbers)
    deviation = max(statistics.stdev(numbers), least_deviation)
    half = student_quantile(tail, len(numbers) - 1) * deviation / math.sqrt(len(numbers))
    ends = mean, mean - half, mean + half
    return Estimate(*(math.exp(end) if end < LOG_OF_LARGEST else math.inf for end in ends) if are_factors else ends)


@lru_cache(maxsize=1024)
def student_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t distribution with so many degrees of freedom exceeds with the probability `tail`."""
    from scipy.stats import t

    return float(t.isf(tail, freedom))


def mean_and_deviation(values: Sequence[float]) -> MeanDeviation:
    """Summarize at least one value, such as an accuracy over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return MeanDeviation(statistics.fmean(values), deviation, len(values))
