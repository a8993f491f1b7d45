"""Verdicts on the statements of a study: whether its runs agree with each, with the measured figures.

What is held against bounds has the percentile interval of the bootstrap over repeats or seeds, at a confidence of 95 %,
as Hoefler and Belli 2015 (Scientific Benchmarking of Parallel Computing Systems, rules 5 to 7) ask for. Wholly within
the bounds it agrees, wholly outside it does not, and otherwise these repeats cannot decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, isnan
from statistics import fmean, stdev
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hybridnn.study.axes import has_values
from hybridnn.study.results import CellResult, StudyPoint, StudyResults
from hybridnn.study.scaling import LAYOUT, base_of
from hybridnn.study.statistics import CONFIDENCE, LEAST_REPEATS, RESAMPLES, SEED, Estimate
from hybridnn.utils.text import counted
from hybridnn_papers.measures import MEASURES, measured
from hybridnn_papers.statements import (
    Combination,
    Conclusions,
    Pair,
    Point,
    Statement,
    best_axes,
    combinations_of,
    points_of,
)

Outcome = Literal["agrees", "does not", "cannot be decided"]
OUTCOMES: tuple[Outcome, ...] = ("agrees", "does not", "cannot be decided")
BEST_METRIC = "best_metric"
MOST_NAMED = 3  # unfinished cells in a reason


@dataclass(frozen=True)
class CheckedPair:
    """One comparison of a statement.

    Attributes
    ----------
    what : str
        Values of the axes that were compared.
    measured, other : float or None
        The quantity on both sides, at the end and the beginning of a step of a trend; `other` is None where the bounds
        are of the quantity itself, and both where it cannot be compared.
    value, low, high : float or None
        What is held against the bounds, with the ends of its interval.
    outcome : {"agrees", "does not", "cannot be decided"}
    reason : str
        Why it cannot be decided.
    """

    what: str
    measured: float | None
    other: float | None
    value: float | None
    low: float | None
    high: float | None
    outcome: Outcome
    reason: str = ""

    @property
    def text(self) -> str:
        """The comparison as a line."""
        parts = [self.what] if self.what else []
        if self.measured is not None and self.other is not None:
            parts.append(f"{self.measured:.4g} against {self.other:.4g}")
        if self.value is not None:
            varies = self.low != self.high
            parts.append(Estimate(self.value, *((self.low, self.high) if varies else ())).format())
        return f"{': '.join(parts)}; {self.outcome}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a statement, with its comparisons.

    `expected` is what the comparisons are held against, as text; `reason` names values that no cell has.
    """

    says: str
    source: str
    expected: str
    outcome: Outcome
    pairs: tuple[CheckedPair, ...]
    reason: str = ""

    @property
    def title(self) -> str:
        """The statement with its source."""
        return f"{self.says} ({self.source})" if self.source else self.says


@dataclass(frozen=True)
class Resampled:
    """A quantity with its value in every resample, so that it can be combined with others.

    Attributes
    ----------
    value : float
    draws : ndarray, shape (RESAMPLES,) or (1,)
        Of an exact quantity, the value alone.
    count : float
        Number of measurements; infinite of an exact quantity.
    """

    value: float
    draws: NDArray[np.float64]
    count: float = inf

    @classmethod
    def exact(cls, value: float) -> Resampled:
        """A quantity without variation."""
        return cls(value, np.array([value]))

    @classmethod
    def of(cls, values: Sequence[float], summary: Callable[..., Any], stream: str) -> Resampled:
        """Summarize measurements, which may be infinite, by `numpy.median` or `numpy.mean`.

        Quantities of one `stream` are drawn together: a resample has the same measurements of each, by position.
        """
        array = np.asarray(values, float)
        chosen = np.random.default_rng([SEED, crc32(stream.encode())]).integers(0, len(array), (RESAMPLES, len(array)))
        return cls(float(summary(array)), np.asarray(summary(array[chosen], axis=1)), len(array))

    def combined(self, function: Callable[..., Any], *others: Resampled) -> Resampled:
        """Apply a function of arrays to this quantity and others, resample by resample."""
        with np.errstate(invalid="ignore", divide="ignore"):
            value = float(function(self.value, *(other.value for other in others)))
            draws = np.asarray(function(self.draws, *(other.draws for other in others)), float)
        return Resampled(value, draws, min([self.count, *(other.count for other in others)]))

    @property
    def estimate(self) -> Estimate:
        """The value with its percentile interval, unless there are too few measurements or undefined values."""
        if self.count < LEAST_REPEATS or np.isnan(self.draws).any():
            return Estimate(self.value)
        tail = (1 - CONFIDENCE) / 2
        # Values that were drawn: between an infinite and a finite one there is none.
        low = float(np.quantile(self.draws, tail, method="lower"))
        high = float(np.quantile(self.draws, 1 - tail, method="higher"))
        return Estimate(self.value, low, high)


class _UndecidedError(Exception):
    """A comparison that cannot be made; the message is the reason."""


def verdicts_of(results: StudyResults, conclusions: Conclusions) -> list[Verdict]:
    """Return the verdict on every statement of the study."""
    judge = _Judge(results, conclusions)
    return [judge.verdict(statement) for statement in conclusions.statements]


def verdicts_summary(verdicts: Sequence[Verdict], paper: str) -> str:
    """Return the first line of a report: with how many statements the runs agree; empty without statements."""
    if not verdicts:
        return ""
    counts = Counter(verdict.outcome for verdict in verdicts)
    about = f"{counted(len(verdicts), 'statement')} of {paper}" if paper else counted(len(verdicts), "statement")
    order: tuple[Outcome, ...] = ("does not", "agrees", "cannot be decided")
    parts = [f"{counts[outcome]} {SUMMARY_TEXTS[outcome]}" for outcome in order if counts[outcome]]
    return f"{about}: {', '.join(parts)}"


SUMMARY_TEXTS: dict[Outcome, str] = {
    "does not": "contradicted by these runs",
    "agrees": "confirmed",
    "cannot be decided": "undecided",
}


def decide(estimate: Estimate, at_least: float | None, at_most: float | None) -> Outcome:
    """Hold a value and its interval against bounds: agrees if all is within, does not if the interval is outside."""
    if estimate.low is None or estimate.high is None or isnan(estimate.value):
        return "cannot be decided"
    least, most = -inf if at_least is None else at_least, inf if at_most is None else at_most
    if least <= min(estimate.low, estimate.value) and max(estimate.high, estimate.value) <= most:
        return "agrees"
    is_outside = max(estimate.high, estimate.value) < least or min(estimate.low, estimate.value) > most
    return "does not" if is_outside else "cannot be decided"


def by_seed(cells: Iterable[CellResult], quantity: str, target: float | None) -> dict[str, float]:
    """A result of the training by seed, where it was recorded: repeats of one seed are the same training."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if (value := measured(cell.run, cell.figures, quantity, target)) is not None:
            found.setdefault(str(cell.values.get("seed")), []).append(value)
    return {seed: fmean(values) for seed, values in sorted(found.items())}


def _mean(values: Mapping[str, float]) -> float:
    return fmean(values.values()) if values else -inf


def _every(outcomes: Sequence[Outcome]) -> Outcome:
    """All agree; one that does not decides."""
    if "does not" in outcomes:
        return "does not"
    return "agrees" if outcomes and set(outcomes) == {"agrees"} else "cannot be decided"


def _some(outcomes: Sequence[Outcome]) -> Outcome:
    """One that agrees decides; none does only if all do not."""
    if "agrees" in outcomes:
        return "agrees"
    return "does not" if outcomes and set(outcomes) == {"does not"} else "cannot be decided"


@dataclass(frozen=True)
class _Side:
    """A quantity on one side of a comparison, at the point that counts, and its values by seed or run."""

    value: Resampled
    point: Point
    values: Mapping[str, float]


@dataclass(frozen=True)
class _Compared:
    """Two sides of a comparison and what is held against the bounds, or the reason why there is nothing."""

    what: str
    value: Resampled | None = None
    side: float | None = None
    other: float | None = None
    reason: str = ""

    def checked(self, bounds: tuple[float | None, float | None], runs: str) -> CheckedPair:
        """Decide; `runs` is what was measured several times. With equal bounds every single value must be that one."""
        if self.value is None:
            return CheckedPair(self.what, None, None, None, None, None, "cannot be decided", self.reason)
        estimate, reason = self.value.estimate, ""
        outcome = decide(estimate, *bounds)
        if bounds[0] is not None and bounds[0] == bounds[1] and estimate.low is not None and outcome != "agrees":
            outcome = "does not"
        if outcome == "cannot be decided":
            reason = "the interval contains a bound"
            if isnan(self.value.value) or np.isnan(self.value.draws).any():
                reason = "it is not defined, as runs diverged, never reached the target, or have a value of 0"
            elif self.value.count < LEAST_REPEATS:
                reason = f"{self.value.count:g} {runs}, and at least {LEAST_REPEATS} are needed"
        found = (self.side, self.other, estimate.value, estimate.low, estimate.high)
        return CheckedPair(self.what, *found, outcome, reason)


class _Judge:
    """Quantities of the points of a study, and the verdicts on statements."""

    def __init__(self, results: StudyResults, conclusions: Conclusions) -> None:
        self._results = results
        self._target, self._best_over = conclusions.target, conclusions.best_over
        self._cells = {cell.id: cell for cell in results.cells}
        self._measured = {cell.id: point for point in results.points for cell in point.cells}
        self._points = points_of((cell.id, cell.values) for cell in results.manifest.cells)
        texts = dict.fromkeys((label, point.text(label)) for point in self._points for label in point.values)
        counts = Counter(label for label, _ in texts)
        self._varying = {label for label, count in counts.items() if count > 1}

    def verdict(self, statement: Statement) -> Verdict:
        """Compare all combinations of a statement."""
        combinations, missing = combinations_of(statement, self._points, self._best_over)
        checked = [self._check(statement, combination) for combination in combinations]
        outcomes = [_every([pair.outcome for pair in pairs]) for pairs in checked]
        outcome = _some(outcomes) if statement.any else _every(outcomes)
        if missing and outcome == ("does not" if statement.any else "agrees"):
            outcome = "cannot be decided"
        reason = f"no cell of this form of the study has {', '.join(missing)}" if missing else ""
        pairs = tuple(pair for found in checked for pair in found)
        return Verdict(statement.says, statement.source, statement.expected, outcome, pairs, reason)

    def _check(self, statement: Statement, combination: Combination) -> list[CheckedPair]:
        compared = [self._compare(statement, combination, pair) for pair in combination.pairs]
        bounds = statement.at_least, statement.at_most
        if statement.trend is not None:
            compared = self._steps(statement, combination, compared)
            bounds = (0.0, None) if statement.trend == "increasing" else (None, 0.0)
        runs = "seeds" if MEASURES[statement.quantity].kind == "training" else "runs"
        return [found.checked(bounds, runs) for found in compared]

    def _steps(self, statement: Statement, combination: Combination, compared: Sequence[_Compared]) -> list[_Compared]:
        """The differences between the values along an axis and those before."""
        name, label = self._text(combination.values), statement.along
        if len(compared) < 2:
            return [_Compared(name, reason=f"a trend needs two values of {label}")]
        steps = []
        ends = pairwise([pair.along for pair in combination.pairs])
        for (before, after), (start, end) in zip(pairwise(compared), ends, strict=True):
            what = ", ".join(filter(None, [name, f"{label} {start} to {end}"]))
            if before.value is None or after.value is None:
                steps.append(_Compared(what, reason=before.reason or after.reason))
            else:
                change = after.value.combined(np.subtract, before.value)
                steps.append(_Compared(what, change, after.value.value, before.value.value))
        return steps

    def _compare(self, statement: Statement, combination: Combination, pair: Pair) -> _Compared:
        """Both sides of a pair and their difference or ratio."""
        name = self._text(combination.values)
        best = best_axes(statement, self._best_over)
        try:
            side = self._side(statement, statement.quantity, self._best(pair.points, best))
            name = self._text({**combination.values, **_texts(side.point, (*best, *statement.over))})
            if pair.against is None:
                return _Compared(name, side.value, side.value.value)
            if not pair.against:
                wanted = {label: " or ".join(texts) for label, texts in statement.other_values.items()}
                raise _UndecidedError(f"no cell to compare with has {self._text(wanted)}")
            other = self._side(statement, statement.other_quantity, self._best(pair.against, best))
            against = self._text(_texts(other.point, dict.fromkeys((*statement.other_values, *best, *statement.over))))
            if statement.other_quantity != statement.quantity:
                against = ", ".join(filter(None, [statement.other_quantity, against]))
            value = _combined(statement, side, other)
            return _Compared(f"{name} against {against}".strip(), value, side.value.value, other.value.value)
        except _UndecidedError as undecided:
            return _Compared(name, reason=str(undecided))

    def _best(self, points: Sequence[Point], best: Sequence[str]) -> list[Point]:
        """Of the points that differ in these axes, those of the highest mean best metric over the seeds."""
        if not best:
            return list(points)
        groups: dict[tuple[str, ...], list[Point]] = {}
        for point in points:
            key = tuple(point.text(label) for label in point.values if label not in best)
            groups.setdefault(key, []).append(point)
        return [max(group, key=lambda point: _mean(self._values(point, BEST_METRIC))) for group in groups.values()]

    def _side(self, statement: Statement, quantity: str, points: Sequence[Point]) -> _Side:
        """The quantity at the one point of a side, or at that of the axes in `over` which counts."""
        sides = [self._quantity(point, quantity, each=statement.demands_equality) for point in points]
        if len(sides) == 1:
            return sides[0]
        take = statement.take or ("max" if MEASURES[quantity].better == "higher" else "min")
        pick, reduce = (max, np.maximum) if take == "max" else (min, np.minimum)
        chosen = pick(sides, key=lambda side: side.value.value)
        first, *others = [side.value for side in sides]
        for other in others:
            first = first.combined(reduce, other)
        return _Side(first, chosen.point, chosen.values)

    def _quantity(self, point: Point, quantity: str, *, each: bool) -> _Side:
        """A quantity of a point; with `each`, the values of the runs in place of resamples."""
        kind = MEASURES[quantity].kind
        values = self._values(point, quantity)
        found = list(values.values())
        if kind == "exact":
            if len(set(found)) > 1:
                raise _UndecidedError(f"{quantity} differs between the runs of {point.cells[0]} and its repeats")
            return _Side(Resampled.exact(found[0]), point, values)
        if each:
            return _Side(Resampled(fmean(found), np.array(found)), point, values)
        if kind == "training":
            return _Side(Resampled.of(found, np.mean, " ".join(values)), point, values)
        value = Resampled.of(found, np.median, " ".join(point.cells))
        if MEASURES[quantity].value is None:
            value = self._against_baseline(point, value, quantity)
        return _Side(value, point, values)

    def _against_baseline(self, point: Point, seconds: Resampled, quantity: str) -> Resampled:
        """The speed-up or efficiency of a point with these seconds per epoch."""
        own = self._measured[point.cells[0]]
        if (base := base_of(self._results, own)) is None:
            raise _UndecidedError(f"no finished cell of the baseline for {point.cells[0]}")
        self._require_finished_bases(own, base)
        (base_point,) = (other for other in self._points if base.cells[0].id in other.cells)
        samples = own.first.train_samples / base.first.train_samples
        ranks = own.first.ranks / base.first.ranks if quantity == "efficiency" else 1
        base_seconds = Resampled.of(
            list(self._values(base_point, quantity).values()), np.median, " ".join(base_point.cells)
        )
        return base_seconds.combined(lambda above, below: samples / ranks * above / below, seconds)

    def _require_finished_bases(self, own: StudyPoint, base: StudyPoint) -> None:
        """Refuse a base that stands in for one which has not finished."""
        baseline = self._results.manifest.baseline
        fixed = own.values.keys() - baseline.keys() - LAYOUT
        for cell in self._results.manifest.cells:
            same = all(str(cell.values.get(label)) == str(own.values[label]) for label in fixed)
            is_base = same and has_values(cell.values, baseline) and cell.ranks <= base.first.ranks
            if is_base and cell.id in self._results.unfinished:
                raise _UndecidedError(f"of the baseline, {self._state(cell.id)}")

    def _values(self, point: Point, quantity: str) -> dict[str, float]:
        """The values of a quantity by seed or cell; of speed-ups, the seconds per epoch."""
        if unfinished := [self._state(name) for name in point.cells if name in self._results.unfinished]:
            more = f" and {len(unfinished) - MOST_NAMED} more" if len(unfinished) > MOST_NAMED else ""
            raise _UndecidedError(", ".join(unfinished[:MOST_NAMED]) + more)
        cells = [self._cells[name] for name in point.cells]
        measure = MEASURES[quantity]
        if measure.kind == "training":
            values = by_seed(cells, quantity, self._target)
        else:
            name = "seconds_per_epoch" if measure.value is None else quantity
            found = {cell.id: measured(cell.run, cell.figures, name, self._target) for cell in cells}
            values = {name: value for name, value in found.items() if value is not None}
        if not values:
            why = next((cell.run.untimed for cell in cells if measure.kind == "time" and cell.run.untimed), "")
            why = why or ("diverged" if any(cell.diverged for cell in cells) else "not recorded")
            raise _UndecidedError(f"no {quantity} of {cells[0].id}: {why}")
        return values

    def _state(self, name: str) -> str:
        return f"{name} {self._results.unfinished[name].status}"

    def _text(self, values: Mapping[str, str]) -> str:
        """Values of the axes that vary, as text."""
        return ", ".join(f"{label} {text}" for label, text in values.items() if label in self._varying)


def _combined(statement: Statement, side: _Side, other: _Side) -> Resampled:
    """What is held against the bounds."""
    is_training = MEASURES[statement.quantity].kind == "training"
    if statement.demands_equality and is_training and side.values.keys() != other.values.keys():
        raise _UndecidedError("equality is that of the same seeds, and these differ")
    if statement.by == "ratio":
        return side.value.combined(np.divide, other.value)
    difference = side.value.combined(np.subtract, other.value)
    if statement.by == "difference":
        return difference
    values = list(other.values.values())
    if len(values) < LEAST_REPEATS or not all(map(isfinite, values)) or (deviation := stdev(values)) == 0:
        raise _UndecidedError(f"no standard deviation of {counted(len(values), 'seed')} of {other.point.cells[0]}")
    return difference.combined(lambda found: found / deviation)


def _texts(point: Point, labels: Iterable[str]) -> dict[str, str]:
    return {label: point.text(label) for label in labels}


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict as text: the statement with its outcome, then a line for each comparison."""
    reason = f"; {verdict.reason}" if verdict.reason else ""
    title = f"{verdict.outcome}: {verdict.title} [{verdict.expected}]{reason}"
    return [title, *(pair.text for pair in verdict.pairs)]
