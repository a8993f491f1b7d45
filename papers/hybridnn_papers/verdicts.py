"""Verdicts on statements: whether the records of a study agree with each, with the measured figures.

What is held against bounds has an interval of `hybridnn.study.judgement` at a confidence of 95 %, as Hoefler and Belli
2015 (Scientific Benchmarking of Parallel Computing Systems, rules 5 to 7) ask for. Wholly within the bounds it agrees,
wholly outside it does not, and otherwise these runs cannot decide. Where one comparison of several decides a statement,
its interval is that of all of them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf, isnan
from statistics import fmean
from typing import Literal

from hybridnn.study.axes import has_values
from hybridnn.study.judgement import LEAST_REPEATS, Contrast, Estimate, Outcome, Sample, UndecidedError, decide, judge
from hybridnn.study.results import disturbed_text
from hybridnn.study.scaling import LAYOUT
from hybridnn.utils.text import counted
from hybridnn_papers.measures import MEASURES, SHARES
from hybridnn_papers.records import CellFigures, StudyRecords
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
    runs : str
        The number of seeds or repeats, as text; empty for an exact quantity.
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
    runs: str
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
            found = Estimate(self.value, *((self.low, self.high) if varies else ())).format()
            parts.append(f"{found} of {self.runs}" if self.runs else found)
        return f"{': '.join(parts)}; {self.outcome}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a statement, with its comparisons.

    `expected` is what the comparisons are held against, as text; `about` is that of the statement; `reason` names
    values that no cell has.
    """

    says: str
    source: str
    expected: str
    about: Literal["paper", "library"]
    outcome: Outcome
    pairs: tuple[CheckedPair, ...]
    reason: str = ""

    @property
    def title(self) -> str:
        """The statement with its source."""
        return f"{self.says} ({self.source})" if self.source else self.says


def verdicts_of(records: StudyRecords, conclusions: Conclusions) -> list[Verdict]:
    """Return the verdict on every statement of the study."""
    judging = _Judge(records, conclusions.best_over)
    return [judging.verdict(statement) for statement in conclusions.statements]


def verdicts_summary(verdicts: Iterable[tuple[str, Outcome]], paper: str) -> str:
    """With how many statements the runs agree, each given as what it is about and its outcome; empty without any.

    Statements about the library are counted apart: they are no support of the paper.
    """
    counts, parts = Counter(verdicts), []
    for about, subject in (("paper", f" of {paper}" * bool(paper)), ("library", " of the library")):
        found = [(counts[about, outcome], text) for outcome, text in SUMMARY_TEXTS.items() if counts[about, outcome]]
        number = counted(sum(count for count, _ in found), "statement")
        parts += [f"{number}{subject}: {', '.join(f'{count} {text}' for count, text in found)}"] if found else []
    return "; ".join(parts)


SUMMARY_TEXTS: dict[Outcome, str] = {
    "does not": "contradicted by these runs",
    "agrees": "confirmed",
    "cannot be decided": "undecided",
}


def by_seed(cells: Iterable[CellFigures], quantity: str) -> dict[str, float]:
    """A result of the training by seed, where it was recorded: repeats of one seed are the same training."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if (value := cell.measures.get(quantity)) is not None:
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
    """A quantity on one side of a comparison, at the point that counts."""

    sample: Sample
    point: Point


@dataclass(frozen=True)
class _Compared:
    """Two sides of a comparison and what is held against the bounds, or the reason why there is nothing.

    `trainings` is what the runs of both sides have in common with those that are equal to the last bit.
    """

    what: str
    contrast: Contrast | None = None
    reason: str = ""
    trainings: Hashable = None

    def checked(self, bounds: tuple[float | None, float | None], comparisons: Mapping[Outcome, int]) -> CheckedPair:
        """Decide; with equal bounds every single value must be that one.

        An outcome that decides the statement alone needs the interval of one of so many `comparisons`.
        """
        if self.contrast is None:
            return CheckedPair(self.what, None, None, None, None, None, "", "cannot be decided", self.reason)
        estimate, reason = self.contrast.estimate(), ""
        outcome = decide(estimate, *bounds)
        if bounds[0] is not None and bounds[0] == bounds[1] and not any(map(isnan, self.contrast.values)):
            outcome = "agrees" if set(self.contrast.values) == {bounds[0]} else "does not"
        elif (number := comparisons.get(outcome, 1)) > 1:
            single, outcome = outcome, decide(self.contrast.estimate(number), *bounds)
            reason = f"'{single}' as the only comparison, but not as one of {number}" * (outcome != single)
        if outcome == "cannot be decided" and not reason:
            reason = self._doubt(estimate)
        other = None if self.contrast.other is None else self.contrast.other.mean
        found = (self.contrast.side.mean, other, estimate.value, estimate.low, estimate.high, self._runs)
        return CheckedPair(self.what, *found, outcome, reason)

    @property
    def _runs(self) -> str:
        """The number of seeds or repeats, as text; empty for an exact quantity."""
        assert self.contrast is not None
        names, side = {"exact": "", "time": "repeats"}, self.contrast.side
        name = names.get(side.kind, "seeds")
        return f"{len(side.values)} {name}" if name else ""

    def _doubt(self, estimate: Estimate) -> str:
        assert self.contrast is not None  # or there would be a reason
        if estimate.low is not None and not isnan(estimate.value):
            return "the interval contains a bound"
        if len(self.contrast.values) < LEAST_REPEATS:
            return f"{self._runs}, and at least {LEAST_REPEATS} are needed"
        return "it is not defined, as runs diverged, never reached the target, or have a value of 0"


class _Judge:
    """Quantities of the points of a study, and the verdicts on statements."""

    def __init__(self, records: StudyRecords, best_over: Sequence[str]) -> None:
        self._records, self._best_over = records, best_over
        self._cells = {cell.id: cell for cell in records.cells}
        self._points = points_of((cell.id, cell.values) for cell in records.planned)
        texts = dict.fromkeys((label, point.text(label)) for point in self._points for label in point.values)
        counts = Counter(label for label, _ in texts)
        self._varying = {label for label, count in counts.items() if count > 1}

    def verdict(self, statement: Statement) -> Verdict:
        """Compare all combinations of a statement."""
        combinations, missing = combinations_of(statement, self._points, self._best_over)
        compared = [self._all(statement, combination) for combination in combinations]
        # The number of comparisons of which one decides the statement. Equal trainings are one.
        number = len({found.trainings or id(found) for listed in compared for found in listed})
        comparisons: dict[Outcome, int] = {"does not": number, "agrees": number if statement.any else 1}
        bounds = statement.at_least, statement.at_most
        if statement.trend is not None:
            bounds = (0.0, None) if statement.trend == "increasing" else (None, 0.0)
        checked = [[found.checked(bounds, comparisons) for found in listed] for listed in compared]
        outcomes = [_every([pair.outcome for pair in pairs]) for pairs in checked]
        outcome = _some(outcomes) if statement.any else _every(outcomes)
        if missing and outcome == ("does not" if statement.any else "agrees"):
            outcome = "cannot be decided"
        reason = f"no cell of this form of the study has {', '.join(missing)}" if missing else ""
        pairs = tuple(pair for found in checked for pair in found)
        about = statement.says, statement.source, statement.expected, statement.about
        return Verdict(*about, outcome, pairs, reason)

    def _all(self, statement: Statement, combination: Combination) -> list[_Compared]:
        """The comparisons of a combination: of a trend, the steps along its axis."""
        compare = partial(self._compare, statement, combination)
        if statement.trend is None:
            return [compare(pair) for pair in combination.pairs]
        name, label = self._text(combination.values), statement.along
        if len(combination.pairs) < 2:
            return [_Compared(name, reason=f"a trend needs two values of {label}")]
        return [self._step(statement, name, before, after) for before, after in pairwise(combination.pairs)]

    def _step(self, statement: Statement, name: str, start: Pair, end: Pair) -> _Compared:
        """The difference between the value at one place of the axis of a trend and that at the place before."""
        what = ", ".join(filter(None, [name, f"{statement.along} {start.along} to {end.along}"]))
        try:
            before, after = (self._compared_sample(statement, pair) for pair in (start, end))
            return _Compared(what, Contrast(after, before))
        except UndecidedError as undecided:
            return _Compared(what, reason=str(undecided))

    def _compared_sample(self, statement: Statement, pair: Pair) -> Sample:
        """What a pair compares, for every seed or round: the quantity, or its difference or ratio."""
        side, other = self._sides(statement, pair)
        if other is None:
            return side.sample
        contrast = Contrast(side.sample, other.sample, statement.by)
        values = dict(zip(side.sample.values, contrast.values, strict=True))
        kind = "training" if side.sample.kind == "share" else side.sample.kind
        return Sample(values, kind, contrast.choices)

    def _compare(self, statement: Statement, combination: Combination, pair: Pair) -> _Compared:
        """Both sides of a pair and their difference or ratio."""
        name = self._text(combination.values)
        best = best_axes(statement, self._best_over)
        try:
            side, other = self._sides(statement, pair)
            name = self._text({**combination.values, **_texts(side.point, (*best, *statement.over))})
            if other is None:
                return _Compared(name, Contrast(side.sample), trainings=self._trainings(statement, side.point))
            against = self._text(_texts(other.point, dict.fromkeys((*statement.other_values, *best, *statement.over))))
            if statement.other_quantity != statement.quantity:
                against = ", ".join(filter(None, [statement.other_quantity, against]))
            what, contrast = f"{name} against {against}".strip(), Contrast(side.sample, other.sample, statement.by)
            return _Compared(what, contrast, trainings=self._trainings(statement, side.point, other.point))
        except UndecidedError as undecided:
            return _Compared(name, reason=str(undecided))

    def _trainings(self, statement: Statement, *points: Point) -> Hashable:
        """All results of the trainings of points, by seed; None if these say nothing: of times, or if all diverged."""
        cells = [[self._cells[name] for name in point.cells] for point in points]
        is_training = MEASURES[statement.quantity].kind == "training"
        if not is_training or any(all(cell.diverged for cell in of_point) for of_point in cells):
            return None
        names = [name for name, measure in MEASURES.items() if measure.kind == "training"]
        return tuple((cell.round, *map(cell.measures.get, names)) for of_point in cells for cell in of_point)

    def _sides(self, statement: Statement, pair: Pair) -> tuple[_Side, _Side | None]:
        side = self._side(statement, statement.quantity, pair.points)
        if pair.against is None:
            return side, None
        if not pair.against:
            wanted = {label: " or ".join(texts) for label, texts in statement.other_values.items()}
            raise UndecidedError(f"no cell to compare with has {self._text(wanted)}")
        return side, self._side(statement, statement.other_quantity, pair.against)

    def _side(self, statement: Statement, quantity: str, points: Sequence[Point]) -> _Side:
        """The quantity at the one point of a side, or at that of the axes in `over` or `best_over` which counts."""
        best = self._best(points, best_axes(statement, self._best_over))
        sides = [_Side(self._quantity(point, quantity), point) for point in best]
        pick = max if MEASURES[quantity].better == "higher" else min
        chosen = pick(sides, key=lambda side: side.sample.mean)
        return _Side(replace(chosen.sample, choices=len(points)), chosen.point)

    def _best(self, points: Sequence[Point], best: Sequence[str]) -> list[Point]:
        """Of the points that differ in these axes, those of the highest mean best metric over the seeds."""
        if not best:
            return list(points)
        groups: dict[tuple[str, ...], list[Point]] = {}
        for point in points:
            key = tuple(point.text(label) for label in point.values if label not in best)
            groups.setdefault(key, []).append(point)
        return [max(group, key=lambda point: _mean(self._values(point, BEST_METRIC))) for group in groups.values()]

    def _quantity(self, point: Point, quantity: str) -> Sample:
        """A quantity of a point, by seed, or by repeat and seed."""
        values, kind = self._values(point, quantity), MEASURES[quantity].kind
        if kind == "exact":
            if len(set(values.values())) > 1:
                raise UndecidedError(f"{quantity} differs between the runs of {point.cells[0]} and its repeats")
            return Sample({"": next(iter(values.values()))}, kind)
        if MEASURES[quantity].value is None:
            return self._against_baseline(point, Sample(values, "time"), quantity)
        return Sample(values, "share" if quantity in SHARES else kind)

    def _against_baseline(self, point: Point, seconds: Sample, quantity: str) -> Sample:
        """The speed-up or efficiency of a point with these seconds per epoch."""
        own = self._cells[point.cells[0]]
        if not own.base:
            raise UndecidedError(f"no finished cell of the baseline for {own.id}")
        base = self._cells[own.base]
        self._require_finished_bases(own, base)
        (base_point,) = (other for other in self._points if base.id in other.cells)
        ranks = own.ranks / base.ranks if quantity == "efficiency" else 1
        factor = own.train_samples / base.train_samples / ranks
        ratios = judge(Sample(self._values(base_point, quantity), "time").scaled(factor), seconds).pairs
        if not ratios:
            raise UndecidedError("no repeat of the baseline is one of these repeats")
        return Sample(ratios, "time")

    def _require_finished_bases(self, own: CellFigures, base: CellFigures) -> None:
        """Refuse a base that stands in for one which has not finished."""
        baseline = self._records.baseline
        fixed = own.point_values.keys() - baseline.keys() - LAYOUT
        for cell in self._records.planned:
            same = all(str(cell.values.get(label)) == str(own.values[label]) for label in fixed)
            is_base = same and has_values(cell.values, baseline) and cell.ranks <= base.ranks
            if is_base and cell.id in self._records.unfinished:
                raise UndecidedError(f"of the baseline, {self._state(cell.id)}")

    def _values(self, point: Point, quantity: str) -> dict[str, float]:
        """The values of a quantity by seed, or by repeat and seed; of speed-ups, the seconds per epoch."""
        if unfinished := [self._state(name) for name in point.cells if name in self._records.unfinished]:
            more = f" and {len(unfinished) - MOST_NAMED} more" if len(unfinished) > MOST_NAMED else ""
            raise UndecidedError(", ".join(unfinished[:MOST_NAMED]) + more)
        cells = [self._cells[name] for name in point.cells]
        measure = MEASURES[quantity]
        if measure.kind == "time" and (disturbed := disturbed_text([cell.is_disturbed for cell in cells])):
            raise UndecidedError(f"of {cells[0].id} and its repeats, {disturbed}")
        if measure.kind == "training":
            values = by_seed(cells, quantity)
        else:
            name = "seconds_per_epoch" if measure.value is None else quantity
            found = {cell.round: cell.measures.get(name) for cell in cells}
            values = {key: value for key, value in found.items() if value is not None}
        if not values:
            why = "diverged" if any(cell.diverged for cell in cells) else "not recorded"
            raise UndecidedError(f"no {quantity} of {cells[0].id}: {why}")
        return values

    def _state(self, name: str) -> str:
        return f"{name} {self._records.unfinished[name]}"

    def _text(self, values: Mapping[str, str]) -> str:
        """Values of the axes that vary, as text."""
        return ", ".join(f"{label} {text}" for label, text in values.items() if label in self._varying)


def _texts(point: Point, labels: Iterable[str]) -> dict[str, str]:
    return {label: point.text(label) for label in labels}


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict as text: the statement with its outcome, then a line for each comparison."""
    reason = f"; {verdict.reason}" if verdict.reason else ""
    title = f"{verdict.outcome}: {verdict.title} [{verdict.expected}]{reason}"
    return [title, *(pair.text for pair in verdict.pairs)]
