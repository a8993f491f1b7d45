"""Quantities that were measured several times, and the intervals of what statements compare.

A quantity has one value for every seed, or for every repeat of a time. Two sides of a comparison are taken seed by
seed, or round by round, as differences or ratios; the interval of their mean is that of Student's t distribution. Times
and ratios are compared by their logarithms, so that the mean is the geometric one. Shares of runs (`converged`,
`diverged`) have the interval of Clopper and Pearson 1934, and their differences that of Newcombe 1998 (Interval
estimation for the difference between independent proportions, method 10) with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, hypot, inf, isfinite, log, nan
from statistics import fmean
from typing import Literal

from hybridnn.study.statistics import CONFIDENCE, LEAST_REPEATS, Estimate, mean_with_interval

By = Literal["difference", "ratio"]


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
    """

    values: Mapping[str, float]
    kind: Literal["time", "training", "share", "exact"]
    choices: int = 1

    @property
    def mean(self) -> float:
        """The mean; of times the geometric one."""
        return _mean(list(self.values.values()), is_factor=self.kind == "time")

    def over(self, other: Sample, factor: float = 1.0) -> Sample:
        """The ratios to another quantity in the rounds that both have, `factor` times as large."""
        common = [name for name in self.values if name in other.values]
        if not common:
            raise UndecidedError("no repeat of the baseline is one of these repeats")
        return Sample({name: factor * self.values[name] / other.values[name] for name in common}, self.kind)


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

    @property
    def runs(self) -> str:
        """The number of seeds or repeats, as text; empty for an exact quantity."""
        names = {"exact": "", "time": "repeats"}
        name = names.get(self.side.kind, "seeds")
        return f"{len(self.side.values)} {name}" if name else ""

    def estimate(self, comparisons: int = 1) -> Estimate:
        """The mean with an interval for one of so many comparisons.

        It covers the true value with a probability of `CONFIDENCE`, or more where there are several comparisons or a
        side is the best of several points: the rest is divided by their number (Bonferroni). There is no interval with
        fewer than `LEAST_REPEATS` seeds or repeats, or where some values are infinite.
        """
        tail = (1 - CONFIDENCE) / (2 * comparisons * self.choices)
        values, is_exact = self.values, self.side.kind == "exact"
        if self.side.kind == "share":
            found = _share(self.side, self.other, tail)
        else:
            is_factor = self.by == "ratio" or (self.side.kind == "time" and self.other is None)
            found = mean_with_interval(values, tail, are_factors=is_factor)
        return found if is_exact or len(values) >= LEAST_REPEATS else Estimate(found.value)


def _difference(value: float, other: float) -> float:
    return nan if value == other and not isfinite(value) else value - other


def _ratio(value: float, other: float) -> float:
    if other == 0 or not (isfinite(value) or isfinite(other)):
        return nan
    return value / other


def _mean(values: list[float], *, is_factor: bool) -> float:
    return exp(fmean(map(log, values))) if is_factor and all(0 < value < inf for value in values) else fmean(values)


def _share(side: Sample, other: Sample | None, tail: float) -> Estimate:
    """A share of the runs, or the difference of two, with its interval."""
    first = _clopper_pearson(side, tail)
    if other is None:
        return Estimate(*first)
    (p, low, high), (q, other_low, other_high) = first, _clopper_pearson(other, tail)
    return Estimate(p - q, p - q - hypot(p - low, other_high - q), p - q + hypot(high - p, q - other_low))


def _clopper_pearson(sample: Sample, tail: float) -> tuple[float, float, float]:
    runs, hits = len(sample.values), round(sum(sample.values.values()))
    low = _beta(tail, hits, runs - hits + 1) if hits else 0.0
    high = _beta(1 - tail, hits + 1, runs - hits) if hits < runs else 1.0
    return hits / runs, low, high


@lru_cache(maxsize=1024)
def _beta(probability: float, a: int, b: int) -> float:
    from scipy.stats import beta

    return float(beta.ppf(probability, a, b))
