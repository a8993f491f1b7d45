"""Statistics of repeated runs, and what they allow to be said. Nothing else compares two means.

The rules are those of Hoefler and Belli 2015 (Scientific Benchmarking of Parallel Computing Systems): times have a
confidence interval (rule 5), and nothing is assumed about the distribution of those that are not compared (rule 6).

A quantity has one value for every seed, or for every repeat of a time. Two sides of a comparison are taken seed by
seed, or round by round, as differences or ratios; the interval of their mean is that of Student's t distribution. Times
and ratios are compared by their logarithms, so that the mean is the geometric one. Times that have no common rounds
have the interval of Welch 1947 (The generalization of 'Student's' problem when several different population variances
are involved). Shares of runs (`converged`, `diverged`) have the interval of Clopper and Pearson 1934, and their
differences that of Newcombe 1998 (Interval estimation for the difference between independent proportions, method 10)
with it. Where one of several comparisons decides, the error of 5 % is divided by their number (Bonferroni).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, hypot, inf, isfinite, isnan, log, nan, sqrt
from statistics import fmean, median, stdev, variance
from typing import Literal

from hybridnn.utils.text import counted

By = Literal["difference", "ratio"]
Outcome = Literal["agrees", "does not", "cannot be decided"]
Conclusion = Literal["lower", "higher", "equal", "undecided"]

MOST_DIGITS = 9  # after the point
CONFIDENCE = 0.95
LEAST_REPEATS = 3
"""Number of measurements from which on there is an interval. Two say nothing of the tails of a distribution."""

LOG_OF_LARGEST = log(sys.float_info.max)


# -- estimates ---------------------------------------------------------------------------------------------------------


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
        if isnan(self.value):
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
    ordered, value = sorted(values), median(values)
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
    if len(set(values)) == 1 and (not least_deviation or len(values) == 1 or not isfinite(values[0])):
        return Estimate(values[0], values[0], values[0])
    if infinite := {value for value in values if not isfinite(value)}:
        return Estimate(infinite.pop() if len(infinite) == 1 else nan)
    are_factors = are_factors and min(values) > 0
    numbers = [log(value) for value in values] if are_factors else list(values)
    mean = fmean(numbers)
    deviation = max(stdev(numbers), least_deviation)
    half = student_quantile(tail, len(numbers) - 1) * deviation / sqrt(len(numbers))
    ends = mean, mean - half, mean + half
    return Estimate(*(exp(end) if end < LOG_OF_LARGEST else inf for end in ends) if are_factors else ends)


@lru_cache(maxsize=1024)
def student_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t distribution with so many degrees of freedom exceeds with the probability `tail`."""
    from scipy.stats import t

    return float(t.isf(tail, freedom))


def mean_and_deviation(values: Sequence[float]) -> MeanDeviation:
    """Summarize at least one value, such as an accuracy over seeds."""
    deviation = stdev(values) if len(values) > 1 else None
    return MeanDeviation(fmean(values), deviation, len(values))


# -- comparisons -------------------------------------------------------------------------------------------------------


class UndecidedError(Exception):
    """A comparison that cannot be made; the message is the reason."""


@dataclass(frozen=True)
class Sample:
    """A quantity at a point of a study.

    Attributes
    ----------
    values : mapping of str to float
        By seed, or by repeat and seed; of an exact quantity, one.
    kind : {"time", "training", "share", "exact"}
        A share has a 0 or a 1 for every seed.
    choices : int
        Number of points of which this one was chosen by its value.
    step : float
        Smallest difference between two values, such as one test sample of an accuracy; 0 if there is none.
    """

    values: Mapping[str, float]
    kind: Literal["time", "training", "share", "exact"]
    choices: int = 1
    step: float = 0.0

    @property
    def mean(self) -> float:
        """The mean; of times the geometric one."""
        return _mean(list(self.values.values()), is_factor=self.kind == "time") if self.values else nan

    def scaled(self, factor: float) -> Sample:
        """The quantity in other units, `factor` times as large."""
        return replace(self, values={name: factor * value for name, value in self.values.items()})


@dataclass(frozen=True)
class Contrast:
    """What is held against bounds: a quantity, or its difference or ratio to another one.

    Raises `UndecidedError` where the two sides were measured with different seeds or repeats.
    """

    side: Sample
    other: Sample | None = None
    by: By = "difference"

    def __post_init__(self) -> None:
        if self.other is not None:
            if self.side.values.keys() != self.other.values.keys():
                raise UndecidedError("sides are compared seed by seed or round by round, and these differ in them")
            if self.side.kind == "share" and self.by == "ratio":
                raise UndecidedError("shares of runs are compared by their difference")

    @property
    def values(self) -> list[float]:
        """What is compared, for every seed or round."""
        if self.other is None:
            return list(self.side.values.values())
        pairs = [(value, self.other.values[name]) for name, value in self.side.values.items()]
        return [_ratio(*pair) if self.by == "ratio" else _difference(*pair) for pair in pairs]

    @property
    def choices(self) -> int:
        """The larger number of points of which a side was chosen."""
        return max(self.side.choices, 1 if self.other is None else self.other.choices)

    def estimate(self, comparisons: int = 1) -> Estimate:
        """The mean with an interval for one of so many comparisons.

        It covers the true value with a probability of `CONFIDENCE`, or more where there are several comparisons or a
        side is the best of several points: the rest is divided by their number (Bonferroni). There is no interval with
        fewer than `LEAST_REPEATS` seeds or repeats, or where some values are infinite.
        """
        tail = _tail(comparisons * self.choices)
        values, is_exact = self.values, self.side.kind == "exact"
        if self.side.kind == "share":
            found = _share(self.side, self.other, tail)
        else:
            is_factor = self.by == "ratio" or (self.side.kind == "time" and self.other is None)
            # Rounding of two values to a step: that some seeds agree does not show that all do.
            rounding = 0.0 if is_factor else self.side.step / sqrt(6)
            found = mean_with_interval(values, tail, are_factors=is_factor, least_deviation=rounding)
        return found if is_exact or len(values) >= LEAST_REPEATS else Estimate(found.value)


def decide(estimate: Estimate, at_least: float | None, at_most: float | None) -> Outcome:
    """Hold a value and its interval against bounds: agrees if all is within, does not if the interval is outside."""
    if estimate.low is None or estimate.high is None or isnan(estimate.value):
        return "cannot be decided"
    least, most = -inf if at_least is None else at_least, inf if at_most is None else at_most
    if least <= min(estimate.low, estimate.value) and max(estimate.high, estimate.value) <= most:
        return "agrees"
    is_outside = max(estimate.high, estimate.value) < least or min(estimate.low, estimate.value) > most
    return "does not" if is_outside else "cannot be decided"


@dataclass(frozen=True)
class Judgement:
    """A quantity compared with that of a base, in the seeds or rounds that both have, or without pairs.

    Attributes
    ----------
    estimate : Estimate
        Mean difference to the base, or geometric mean of the ratios to it, with the interval for one of all
        comparisons.
    conclusion : {"lower", "higher", "equal", "undecided"}
        ``"equal"``: the interval lies within the margin.
    by : {"ratio", "difference"}
    pairs : mapping of str to float
        The differences or ratios, by seed or round.
    reservation : str
        Why nothing can be concluded: too few seeds or rounds, runs that diverged or were disturbed; else empty.
    """

    estimate: Estimate
    conclusion: Conclusion
    by: By
    pairs: Mapping[str, float]
    reservation: str = ""

    @property
    def text(self) -> str:
        """The estimate, with the digits that show on which side of no difference the ends of its interval are."""
        none, spec, least = (1.0, ".", 2) if self.by == "ratio" else (0.0, "+.", 4)
        ends = [end for end in (self.estimate.low, self.estimate.high) if end is not None and end != none]
        digits = next((it for it in range(least, MOST_DIGITS) if none not in [round(end, it) for end in ends]), least)
        value = round(self.estimate.value, digits) + 0.0  # no -0
        return replace(self.estimate, value=value).format(f"{spec}{digits}f")


def judge(
    side: Sample,
    base: Sample,
    by: By = "ratio",
    *,
    comparisons: int = 1,
    margin: float = 0.0,
    reservation: str = "",
    is_paired: bool = True,
) -> Judgement:
    """Compare a quantity with that of a base, and conclude what its interval allows.

    Parameters
    ----------
    side, base : Sample
        Those of their seeds or rounds count that both have. Without one, their means are compared, and nothing is
        concluded.
    by : {"ratio", "difference"}
    comparisons : int
        Number of comparisons that are concluded from, of which this is one.
    margin : float
        Largest difference that counts as none, or with ``"ratio"`` its excess over 1.
    reservation : str
        Why nothing is concluded, such as runs that were disturbed by other processes.
    is_paired : bool
        False for the ratio of two times that were not measured in turns: all values count.
    """
    none, unit = 1.0 if by == "ratio" else 0.0, "round" if side.kind == "time" else "seed"
    common, (first, second) = in_common_rounds([side, base])
    if is_paired and not common:
        means = _ratio(side.mean, base.mean) if by == "ratio" else side.mean - base.mean
        return Judgement(Estimate(means), "undecided", by, {}, reservation or f"no {unit} is common")
    if is_paired:
        contrast = Contrast(first, second, by)
        number, estimate = len(common), contrast.estimate(comparisons)
        pairs = dict(zip(common, contrast.values, strict=True))
    else:
        number, estimate, pairs = min(len(side.values), len(base.values)), _welch(side, base, _tail(comparisons)), {}
    conclusion: Conclusion = "undecided"
    least = 1 / (1 + margin) if by == "ratio" else -margin
    if estimate.low is None or estimate.high is None:
        few = f"{counted(number, unit)} cannot show a difference"
        reservation = reservation or (few if number < LEAST_REPEATS else "some runs diverged")
    elif not reservation:
        if margin and decide(estimate, least, none + margin) == "agrees":
            conclusion = "equal"
        elif not estimate.low <= none <= estimate.high:
            conclusion = "higher" if estimate.low > none else "lower"
    return Judgement(estimate, conclusion, by, pairs, reservation)


def in_common_rounds(sides: Sequence[Sample]) -> tuple[list[str], list[Sample]]:
    """The rounds that all have, and their values in these; all values where there is no such round."""
    common = [name for name in sides[0].values if all(name in side.values for side in sides)]
    return common, [replace(side, values={name: side.values[name] for name in common or side.values}) for side in sides]


def fastest_of(
    layouts: Sequence[Sample], reservation: str = "", answers: int = 1
) -> tuple[int, list[tuple[int, Judgement]], list[str]]:
    """The index of the layout of the least time, the others by their time, each compared with it, and the rounds.

    These are the rounds that all have; without such a round, nothing is concluded from all times of each. The first
    is the fastest if every other one takes longer by its interval, that of one of so many `answers` of a study. As this
    needs every comparison, none is corrected for their number: if several layouts are equally fast everywhere, one is
    called the fastest in at most 5 % of studies.
    """
    common, counted_in = in_common_rounds(layouts)
    doubt = reservation or ("" if common else "no round has all layouts")
    best, *others = sorted(range(len(layouts)), key=lambda index: counted_in[index].mean)
    judged = [judge(counted_in[at], counted_in[best], comparisons=answers, reservation=doubt) for at in others]
    return best, list(zip(others, judged, strict=True)), common


def _tail(comparisons: int) -> float:
    """Probability beside each end of the interval of one of so many comparisons."""
    return (1 - CONFIDENCE) / (2 * comparisons)


def _difference(value: float, other: float) -> float:
    return nan if value == other and not isfinite(value) else value - other


def _ratio(value: float, other: float) -> float:
    if other == 0 or not (isfinite(value) or isfinite(other)):
        return nan
    return value / other


def _mean(values: list[float], *, is_factor: bool) -> float:
    if len(set(values)) == 1:
        return values[0]
    return exp(fmean(map(log, values))) if is_factor and all(0 < value < inf for value in values) else fmean(values)


def _welch(side: Sample, base: Sample, tail: float) -> Estimate:
    """The ratio of the means of two times, with Welch's interval of the difference of their logarithms."""
    ratio, samples = _ratio(side.mean, base.mean), (side.values.values(), base.values.values())
    if min(map(len, samples)) < LEAST_REPEATS:
        return Estimate(ratio)
    errors = [(variance(map(log, values)) / len(values), len(values) - 1) for values in samples]  # with their freedom
    if not (error := sum(square for square, _ in errors)):
        return Estimate(ratio, ratio, ratio)
    freedom = error**2 / sum(square**2 / degrees for square, degrees in errors)
    factor = exp(min(student_quantile(tail, freedom) * sqrt(error), LOG_OF_LARGEST))
    return Estimate(ratio, ratio / factor, ratio * factor)


def _share(side: Sample, other: Sample | None, tail: float) -> Estimate:
    """A share of the runs, or the difference of two, with its interval."""
    p, low, high = _clopper_pearson(round(sum(side.values.values())), len(side.values), tail)
    if other is None:
        return Estimate(p, low, high)
    q, other_low, other_high = _clopper_pearson(round(sum(other.values.values())), len(other.values), tail)
    return Estimate(p - q, p - q - hypot(p - low, other_high - q), p - q + hypot(high - p, q - other_low))


@lru_cache(maxsize=1024)
def _clopper_pearson(hits: int, runs: int, tail: float) -> tuple[float, float, float]:
    from scipy.stats import beta

    low = float(beta.ppf(tail, hits, runs - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, runs - hits)) if hits < runs else 1.0
    return hits / runs, low, high
