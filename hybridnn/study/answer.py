"""What a study says: the fastest layouts, what trainings cost, what is compared with what, and warnings of doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridnn.cost.machine import Machine
from hybridnn.diagnostics.hosts import MOST_DISTURBANCE, processor_name
from hybridnn.runs.quantities import RunFigures
from hybridnn.runs.records import PredictedStep, RunHeader
from hybridnn.runs.run_files import RunRecord
from hybridnn.study.cells import Cell
from hybridnn.study.judgement import (
    CONFIDENCE,
    LEAST_REPEATS,
    Contrast,
    Judgement,
    coverage_of_median,
    fastest_of,
    judge,
)
from hybridnn.study.results import StudyPoint, StudyResults, disturbed_text, host_values, point_name
from hybridnn.study.scaling import (
    LAYOUT,
    WORK,
    Comparison,
    alike_points,
    base_of,
    baseline_text,
    compare_points,
    compare_with,
    layout_name,
    times_as_fast,
)
from hybridnn.utils.text import counted, joined

LEAST_LOSS = 0.01  # share of the ranks' time from which on a part is named

MOST_EFFICIENCY = 1.2
"""Parallel efficiency above which a speed-up is doubtful. Larger caches give a few percent more than the ranks."""

TIMES = "the median of a run's epochs, without the first if there are more"

CONDITIONS: Mapping[str, Callable[[RunHeader], str]] = {
    "processors": lambda header: ", ".join(host_values(header, "processors")),
    "numbers of cores on a node": lambda header: ", ".join(host_values(header, "cores")),
    "MPI libraries": lambda header: header.versions.get("MPI", ""),
    "BLAS libraries": lambda header: ", ".join(host_values(header, "blas")),
    "versions of hybridnn": lambda header: header.versions.get("hybridnn", ""),
}
"""What the cells of a curve must have in common; an empty text is not known."""


# -- fastest layouts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fastest:
    """The layout of the least time of several of a number of ranks, for one value of all other axes.

    `others` are the other layouts, by their time, each compared with it in the rounds that all have, of which `own`
    has the cells. `predicted` is the first choice of the model, None without predictions of all layouts, `comparison`
    that with the base, and `reservation` the reason why nothing is concluded, if there is one.
    """

    name: str  # of the values of the other axes; empty where there are none
    point: StudyPoint
    own: StudyPoint
    others: tuple[tuple[StudyPoint, Judgement], ...]
    predicted: StudyPoint | None
    comparison: Comparison | None
    reservation: str

    @property
    def alike(self) -> list[StudyPoint]:
        """Layouts of which no difference to this one can be told: the interval contains 1, or there is none."""
        return [other for other, found in self.others if found.conclusion == "undecided"]

    @property
    def text(self) -> str:
        """Sentences on the layout: what may be said of its time, against the others and the base; the model."""
        name, ranks = layout_name(self.point), counted(self.point.first.ranks, "rank")
        first = f"{self.name}, " * bool(self.name) + f"{ranks}: "
        inexact = " (not exact: it trains differently)" * (not self.point.cells[0].run.header.layout.exact)
        rounds = len(self.own.cells)
        which = f" in the {counted(rounds, 'round')} of all" * (rounds < len(self.point.cells))
        time = f", {Contrast(self.own.times).estimate().format()} s per epoch on average{which}{inexact}"
        if self.reservation:
            said = [f"{first}{self.reservation}, so nothing is concluded; {name} had the least time{time}."]
        else:
            had = "had the least time" if self.alike else "is the fastest"
            said = [f"{first}{name} {had}{time}{self._against_base()}", self._against_others()]
        return " ".join([*said, *self._model()])

    def _against_base(self) -> str:
        found = self.comparison
        if found is None or found.base.first.ranks == self.point.first.ranks:
            return "."
        base, ratio = counted(found.base.first.ranks, "rank"), f"{found.judged.text} times as fast"
        if found.judged.reservation:
            return f". It is not compared with {base}: {found.judged.reservation}."
        texts = {"higher": f", {ratio} as {base}", "lower": f", slower than {base} ({ratio})"}
        text = texts.get(found.judged.conclusion, f"; no difference to {base} can be told ({ratio})")
        parts = sorted((found.parts or {}).items(), key=lambda part: -part[1])
        lost = ", ".join(f"{name} {share:.0%}" for name, share in parts if name != "compute" and share >= LEAST_LOSS)
        return f"{text}; it loses to {lost} of the ranks' time." if lost else f"{text}."

    def _against_others(self) -> str:
        alike = [f"{layout_name(it)} ({found.text} times as long)" for it, found in self.others if it in self.alike]
        if alike:
            return f"No difference can be told to {joined(alike)}."
        other, found = self.others[0]
        return f"The next, {layout_name(other)}, takes {found.text} times as long."

    def _model(self) -> list[str]:
        if self.predicted is None:
            return []
        model = "The model, of a doubtful machine file," if self.predicted.first.prediction_doubt else "The model"
        if self.predicted is self.point and not self.alike:
            return [f"{model} said so."]
        ratio = [f", {found.text} times as long" for it, found in self.others if it is self.predicted]
        return [f"{model} had chosen {layout_name(self.predicted)}{''.join(ratio) * (not self.reservation)}."]

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values, with units in the names."""
        return {
            "values": {label: value for label, value in self.point.values.items() if label not in LAYOUT},
            "ranks": self.point.first.ranks,
            "layout": layout_name(self.point),
            "is_fastest": not self.alike,
            "reservation": self.reservation,
            "seconds_per_epoch": self.own.times.mean,
            "no_difference_to": [layout_name(point) for point in self.alike],
            "times_as_long": {layout_name(other): vars(found.estimate) for other, found in self.others},
            "predicted": None if self.predicted is None else layout_name(self.predicted),
            "text": self.text,
        }


def fastest_layouts(results: StudyResults) -> list[Fastest]:
    """Judge the layouts of every number of ranks that has several with times, which do the same work."""
    comparisons = compare_points(results)
    alike = alike_points(results.timed, constant=lambda p: (p.first.train_samples, p.first.batch_size, p.first.ranks))
    several = [points for points in alike if len({layout_name(point) for point in points}) > 1]
    several.sort(key=lambda points: points[0].first.ranks)
    return [_fastest(results, points, comparisons, len(several)) for points in several]


def _fastest(
    results: StudyResults, points: Sequence[StudyPoint], comparisons: Mapping[str, Comparison], answers: int
) -> Fastest:
    compared = {point.id: point for point in points}
    compared |= {found.base.id: found.base for point in points if (found := comparisons.get(point.id))}
    common = set.intersection(*(set(point.times.values) for point in points))
    cells = [cell for point in compared.values() for cell in point.cells if not common or cell.round in common]
    # Nothing is concluded from times of runs that others disturbed, or whose ranks took turns.
    crowded = dict.fromkeys(text.partition(":")[0] for cell in cells for text in cell.run.header.crowded)
    doubt = "; ".join(filter(None, [disturbed_text([cell.is_disturbed for cell in cells]), *crowded]))
    best, others, rounds = fastest_of([point.times for point in points], doubt, answers)
    point, found = points[best], comparisons.get(points[best].id)
    own = replace(point, cells=tuple(cell for cell in point.cells if not rounds or cell.round in rounds))
    name = point_name(results, point, without=LAYOUT)
    said = {point.predicted_seconds_per_epoch: point for point in points}
    return Fastest(
        "" if name == results.manifest.name else name,
        point,
        own,
        tuple((points[at], found) for at, found in others),
        None if None in said else said[min(seconds for seconds in said if seconds is not None)],
        None if found is None else compare_with(own, found.base, len(points) * answers),
        others[0][1].reservation,
    )


def answers_of(results: StudyResults) -> list[str]:
    """What a report says first: the fastest layouts, and what trainings cost beside the baseline."""
    return [*(found.text for found in fastest_layouts(results)), *(it.text for it in compare_trainings(results))]


# -- what trainings cost -----------------------------------------------------------------------------------------------

CONCLUSIONS = {"equal": "costs nothing", "lower": "costs accuracy", "higher": "higher", "undecided": "undecided"}


@dataclass(frozen=True)
class ComparedTraining:
    """Points of one training, whose records are equal to the bit, compared with the base.

    `last` is the difference of the metric after the last epoch, from which is concluded, and `best` that of the best
    metric; both have the interval of one of all `comparisons` of the study. They are None where the training is that of
    the base. `names` are the values of the axes in which the points differ from the base, and `group` those of others.
    """

    base: StudyPoint
    points: tuple[StudyPoint, ...]
    group: str
    base_name: str
    names: tuple[str, ...]
    last: Judgement | None
    best: Judgement | None
    margin: float | None
    comparisons: int

    @property
    def conclusion(self) -> str:
        """What the interval allows to be said, for a table."""
        return "the same training" if self.last is None else self.last.reservation or CONCLUSIONS[self.last.conclusion]

    @property
    def text(self) -> str:
        """A sentence on the difference to the base."""
        names, base, metric = joined(self.names), self.base_name, self.base.first.metric_name
        group, s = f"{self.group}: " * bool(self.group), "s" * (len(self.names) == 1)
        if self.last is None:
            return f"{group}{names} train{s} as {base}, to the bit."
        names += ", the same training to the bit," * (not s)
        quantity, margin = metric.removeprefix("test "), f"the margin of {self.margin}"
        seeds = counted(len(self.last.pairs), "seed")
        found = f"{metric} {self.last.text} over {seeds}" if self.last.pairs else "no figure"
        optimizers = [point.cells[0].run.header.optimizer for point in (self.points[0], self.base)]
        names += f" (with {optimizers[0]}, not {optimizers[1]})" * (optimizers[0] != optimizers[1])
        said = {
            "equal": f"{names} cost{s} nothing against {base}: {found}, within {margin}",
            "lower": f"{names} cost{s} {quantity} against {base}: {found}",
            "higher": f"{names} {'has' if s else 'have'} a higher {quantity} than {base}: {found}",
            "undecided": f"No difference of {names} to {base} can be told: {found}"
            + f", which is not wholly within {margin}" * (self.margin is not None),
        }[self.last.conclusion]
        if self.last.reservation:
            said = f"{self.last.reservation}, so nothing is concluded on {names} against {base}: {found}"
        return f"{group}{said}."

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "points": [point.id for point in self.points],
            "against": self.base.id,
            "metric": self.base.first.metric_name,
            **{name: getattr(self, name) for name in ("margin", "comparisons", "conclusion", "text")},
            "seeds": 0 if self.last is None else len(self.last.pairs),
            "last_difference": self.last and vars(self.last.estimate),
            "best_difference": self.best and vars(self.best.estimate),
        }


def compare_trainings(results: StudyResults) -> list[ComparedTraining]:
    """Compare the metrics of a study of trainings with those of its baseline; none without a baseline or a metric.

    Trainings are equal to the bit where all losses and metrics of all seeds are; they are one comparison. What the
    statements of a study conclude is not concluded here too.
    """
    manifest, points = results.manifest, results.findings.points
    is_asked = manifest.compares == "training" and manifest.baseline and "statements" not in manifest.conclusions
    has_metric = any(point.metric is not None for point in points)
    found: dict[tuple[str, Hashable], tuple[StudyPoint, list[StudyPoint]]] = {}
    for point in points if is_asked and has_metric else ():
        base = base_of(results, point, points)
        if base is not None and base is not point:
            found.setdefault((base.id, _records(point)), (base, []))[1].append(point)
    number = sum(_records(base) != records for (_, records), (base, _) in found.items())
    return [_compared(results, base, equal, number) for base, equal in found.values()]


def _compared(
    results: StudyResults, base: StudyPoint, points: Sequence[StudyPoint], comparisons: int
) -> ComparedTraining:
    differing = [label for label in base.values if any(base.values[label] != it.values[label] for it in points)]
    base_name, *names = (" ".join(str(it.values[label]) for label in differing) for it in (base, *points))
    group, margin = point_name(results, base, without=differing), results.manifest.margin
    cells = [*points[0].cells, *base.cells]
    diverged = sum(cell.diverged for cell in cells)
    doubt = f"{diverged} of {counted(len(cells), 'run')} diverged" * (diverged > 0)

    def judged(*, best: bool) -> Judgement | None:
        if _records(points[0]) == _records(base):
            return None
        side, other, within = points[0].metrics(best=best), base.metrics(best=best), margin or 0.0
        return judge(side, other, "difference", comparisons=comparisons, margin=within, reservation=doubt)

    group = "" if group == results.manifest.name else group
    differences = judged(best=False), judged(best=True)
    return ComparedTraining(base, tuple(points), group, base_name, tuple(names), *differences, margin, comparisons)


def _records(point: StudyPoint) -> Hashable:
    """All losses and metrics of a point, by seed."""
    cells = [(str(cell.values.get("seed")), cell.figures.diverged_at, cell.run.epochs) for cell in point.cells]
    return tuple((*cell, *((it.train_loss, it.validation_loss, it.metric) for it in epochs)) for *cell, epochs in cells)


def accuracy_rows(results: StudyResults) -> list[dict[str, str]]:
    """The table of compared trainings: cells by title, a row for every point, those of the baseline first."""
    found = {point.id: training for training in compare_trainings(results) for point in training.points}
    bases = {training.base.id for training in found.values()}
    points = [point for point in results.points if point.id in bases]
    rows = []
    for point in points + [point for point in results.points if point.id in found.keys() - bases]:
        training, header = found.get(point.id), point.cells[0].run.header
        last, best = (training.last, training.best) if training is not None else (None, None)
        rows.append(
            {label: str(point.values[label]) for label in results.varying if label in point.values}
            | {point.first.metric_name: "-" if point.metric is None else point.metric.format()}
            | {"difference": "-" if last is None else last.text, "of the best": "-" if best is None else best.text}
            | {"mean staleness": "-" if header.mean_staleness is None else f"{header.mean_staleness:.3g}"}
            | {"optimizer": header.optimizer, "conclusion": training.conclusion if training else "the baseline"}
        )
    return rows


def accuracy_note(found: ComparedTraining) -> str:
    """Sentences below that table: what its columns and intervals are."""
    within = f"the interval lies within the margin of {found.margin} of the study file"
    return (
        "± is the standard deviation, the spread over the seeds and not an error of the mean. Difference: mean of "
        f"those to the baseline, seed by seed, after the last epoch [{CONFIDENCE:.0%} confidence interval of all "
        f"{counted(found.comparisons, 'comparison')}, Student's t]. Of the best: the same of the best epochs."
    ) + f" Costs nothing: {within}." * (found.margin is not None)


# -- what is compared --------------------------------------------------------------------------------------------------


def conditions_text(results: StudyResults) -> str:
    """Return the sentences on what the tables compare, and how: repeats, intervals, base of the speed-ups."""
    repeated = max(len(point.cells) for point in results.points)
    seeds = max(len({str(cell.values.get("seed")) for cell in point.cells}) for point in results.points)
    sentences = [f"Medians of up to {repeated} runs" if repeated > 1 else "Single runs"]
    if repeated >= LEAST_REPEATS:
        least = min(number for point in results.points if (number := len(point.cells)) >= LEAST_REPEATS)
        sentences[0] += f" [{coverage_of_median(least):.0%} confidence interval, binomial]"
    if seeds > 1:
        spread = "± standard deviations, the spread over the seeds and not an error of the mean"
        means = f"Results of the training are means over up to {seeds} seeds {spread}"
        sentences = [*sentences[: len(results.timed)], means]
    if results.timed:
        level = f"{CONFIDENCE:.0%} confidence interval, Student's t; in sentences, that of all comparisons"
        paired = f", by round [{level}]" * (repeated >= LEAST_REPEATS)
        sentences.append(f"Speed-up against {baseline_text(results)}{paired}")
    if times_as_fast(results):
        sentences.append("Times as fast: time per epoch in the first folder divided by the time in this one")
        sentences.append("Its interval is Welch's, as the folders have no common rounds")
    sentences += filter(None, [results.findings.note])
    return " ".join(f"{sentence}." for sentence in sentences)


# -- warnings ----------------------------------------------------------------------------------------------------------


def warnings_of(results: StudyResults) -> list[str]:
    """Sentences on differing conditions, disturbed cells, doubtful speed-ups and predictions, and missing bases."""
    comparisons, runs = compare_points(results), [cell.run for cell in results.cells]
    warnings = [_threads_warning([cell.figures for cell in results.cells])]
    for point in results.points:
        name = point_name(results, point)
        nodes = sorted({cell.figures.nodes for cell in point.cells})
        if len(nodes) > 1:
            warnings.append(f"{name}: repeated on {', '.join(map(str, nodes))} nodes, whose times are not the same")
        if (found := comparisons.get(point.id)) is not None and found.differs_in_ranks:
            warnings.append(_efficiency_warning(name, found))
    curves = alike_points(results.points, LAYOUT | WORK, lambda point: ())
    warnings += hardware_warnings([cell.run for point in curve for cell in point.cells] for curve in curves)
    if disturbed := [cell.id for cell in results.cells if cell.is_disturbed]:
        took = f"processes of others took more than {MOST_DISTURBANCE:.0%} of the cores in use in {disturbed[0]}"
        more = f" and {len(disturbed) - 1} more" * (len(disturbed) > 1)
        warnings.append(f"{len(disturbed)} of {counted(len(results.cells), 'cell')} disturbed: {took}{more}")
    warnings += dict.fromkeys(text for run in runs for text in run.header.crowded)
    warnings += prediction_warnings(runs)
    if without_base := [point for point in results.timed if point.id not in comparisons]:
        rows = f"{len(without_base)} of {len(results.points)} rows have no speed-up"
        name = point_name(results, without_base[0], without=LAYOUT | results.manifest.baseline.keys())
        reason = "the baseline was not run, or has not finished, with their other values, such as"
        warnings.append(f"{rows}: {reason} {name}")
    return [text for text in warnings if text]


def group_warnings(group: Sequence[Comparison]) -> list[str]:
    """Sentences on doubtful speed-ups and predictions of runs outside of a study."""
    runs = [cell.figures for found in group for cell in found.point.cells]
    doubtful = [_efficiency_warning(f"{it.point.first.ranks} ranks, {it.point.first.grid}", it) for it in group]
    return [*filter(None, [_threads_warning(runs), *doubtful, *dict.fromkeys(run.prediction_doubt for run in runs)])]


def _efficiency_warning(what: str, comparison: Comparison) -> str:
    if not (efficiency := comparison.efficiency.value) > MOST_EFFICIENCY:  # NaN is not
        return ""
    causes = "the run it is compared with was slowed down by other work, or had other threads"
    return f"{what}: efficiency {efficiency:.0%}, more than ranks alone can give; perhaps {causes}"


def _threads_warning(runs: Sequence[RunFigures]) -> str:
    threads = sorted({run.threads_per_rank for run in runs})
    numbers = ", ".join(map(str, threads))
    text = f"the runs differ in BLAS threads per rank ({numbers}): speed-ups compare different numbers of cores"
    return text * (len(threads) > 1)


def hardware_warnings(curves: Iterable[Sequence[RunRecord]]) -> list[str]:
    """Sentences on the `CONDITIONS` in which the cells of a curve differ."""
    headers, warnings = [[run.header for run in curve] for curve in curves], []
    for name, value in CONDITIONS.items():
        found = [Counter(text for header in curve if (text := value(header))) for curve in headers]
        if differing := sum((values for values in found if len(values) > 1), Counter()):
            texts = "; ".join(f"{text} ({counted(cells, 'cell')})" for text, cells in differing.items())
            warnings.append(f"cells of one curve ran with different {name}: {texts}")
    return warnings


def prediction_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Sentences on machine files that are doubtful, of fewer ranks than they predict, or of another processor."""
    warnings: list[str] = []
    predictions = [(run, run.prediction) for run in runs if run.prediction is not None]
    for name in dict.fromkeys(found.machine for _, found in predictions):
        of_machine = [(run, found) for run, found in predictions if found.machine == name]
        warnings += filter(None, dict.fromkeys(found.doubt for _, found in of_machine))
        processors = [text for run, _ in of_machine for text in host_values(run.header, "processors")]
        most_ranks = max(run.header.ranks for run, _ in of_machine)
        warnings += _machine_warnings(name, of_machine[0][1], most_ranks, processors)
    return warnings


def price_warnings(machine: Machine, cells: Sequence[Cell]) -> list[str]:
    """Sentences on a machine file that is doubtful, of fewer ranks than the cells have, or of another processor."""
    found = _machine_warnings(machine.name, machine, max(cell.ranks for cell in cells), [processor_name()])
    return [*filter(None, [machine.doubt]), *found]


def _machine_warnings(
    name: str, machine: Machine | PredictedStep, most_ranks: int, processors: Iterable[str]
) -> list[str]:
    """Sentences on a machine file for runs of up to `most_ranks` ranks on `processors`; it may not state its own."""
    warnings, calibrated, processor = [], machine.calibrated_ranks, machine.processor
    if calibrated is not None and calibrated < most_ranks:
        measured = f"was calibrated on {counted(calibrated, 'rank')}"
        warnings.append(f"the machine file {name} {measured}: predictions for {most_ranks} are extrapolated")
    others = ", ".join(dict.fromkeys(text for text in processors if text != processor))
    if processor and others:
        warnings.append(f"the machine file {name} is of another processor: {processor}, not {others}")
    return warnings
