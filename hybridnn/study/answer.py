"""What a study says: the fastest layouts, what is compared with what, and warnings where that is doubtful."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridnn.comm.hosts import MOST_DISTURBANCE, processor_name
from hybridnn.cost.machine import Machine
from hybridnn.runs.quantities import RunFigures
from hybridnn.runs.records import RunHeader
from hybridnn.runs.run_files import RunRecord
from hybridnn.study.cells import Cell
from hybridnn.study.results import StudyPoint, StudyResults, host_values, point_name, times_as_fast
from hybridnn.study.scaling import (
    LAYOUT,
    WORK,
    Comparison,
    ScalingGroup,
    alike_points,
    compare_points,
    layout_name,
)
from hybridnn.study.statistics import LEAST_REPEATS, Estimate, coverage_of_median, ratio_in_rounds
from hybridnn.utils.text import counted

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
    """The fastest of several layouts of a number of ranks, for one value of all other axes.

    `others` are the other layouts, by their time, each with its seconds over those of the fastest; `predicted` is the
    first choice of the model, None without predictions of all layouts, and `comparison` that with the base.
    """

    name: str  # of the values of the other axes; empty where there are none
    point: StudyPoint
    others: tuple[tuple[StudyPoint, Estimate], ...]
    predicted: StudyPoint | None
    comparison: Comparison | None

    @property
    def alike(self) -> list[StudyPoint]:
        """Layouts of which no difference to the fastest can be told: the interval contains 1, or there is none."""
        return [other for other, ratio in self.others if ratio.low is None or ratio.low <= 1]

    @property
    def text(self) -> str:
        """Sentences on the layout: how fast it is, against the next one and the base, what it loses to, the model."""
        named = f"{self.name}, " if self.name else ""
        seconds = f"{self.point.seconds_per_epoch.format()} s per epoch"
        first = f"{named}{counted(self.point.first.ranks, 'rank')}: {layout_name(self.point)} is the fastest, {seconds}"
        if not self.point.cells[0].run.header.layout.exact:
            first += " (not exact: it trains differently)"
        return " ".join([first + self._against_base(), self._against_next(), *self._model(), *self._disturbed()])

    def _against_base(self) -> str:
        found = self.comparison
        if found is None or found.base is self.point:
            return "."
        text = f", {found.speed_up.format('.2f')} times as fast as {counted(found.base.first.ranks, 'rank')}"
        lost = {name: share for name, share in (found.parts or {}).items() if name != "compute" and share >= LEAST_LOSS}
        if not lost:
            return text + "."
        parts = ", ".join(f"{name} {lost[name]:.0%}" for name in sorted(lost, key=lambda name: -lost[name]))
        return f"{text}; it loses to {parts} of the ranks' time."

    def _against_next(self) -> str:
        (other, ratio), alike = self.others[0], [item for item in self.others if item[0] in self.alike]
        if not alike:
            return f"The next, {layout_name(other)}, takes {ratio.format('.2f')} times as long."
        texts = [
            f"{layout_name(other)} ({ratio.format('.2f')} times as long{', without 3 repeats' * (ratio.low is None)})"
            for other, ratio in alike
        ]
        return f"No difference can be told to {' and '.join(filter(None, [', '.join(texts[:-1]), texts[-1]]))}."

    def _model(self) -> list[str]:
        if self.predicted is None:
            return []
        model = "The model, of a doubtful machine file," if self.predicted.first.prediction_doubt else "The model"
        if self.predicted is self.point:
            return [f"{model} said so."]
        ratio = next(ratio for other, ratio in self.others if other is self.predicted)
        return [f"{model} had chosen {layout_name(self.predicted)}, {ratio.format('.2f')} times as long."]

    def _disturbed(self) -> list[str]:
        cells = [cell for point in (self.point, *(other for other, _ in self.others)) for cell in point.cells]
        disturbed = sum(cell.is_disturbed for cell in cells)
        return [f"{disturbed} of its {counted(len(cells), 'run')} were disturbed by other processes."] * (disturbed > 0)

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values, with units in the names."""
        return {
            "values": {label: value for label, value in self.point.values.items() if label not in LAYOUT},
            "ranks": self.point.first.ranks,
            "layout": layout_name(self.point),
            "seconds_per_epoch": self.point.seconds_per_epoch.value,
            "no_difference_to": [layout_name(point) for point in self.alike],
            "times_as_long": {layout_name(other): vars(ratio) for other, ratio in self.others},
            "predicted": None if self.predicted is None else layout_name(self.predicted),
            "text": self.text,
        }


def fastest_layouts(results: StudyResults) -> list[Fastest]:
    """Return the fastest layout of every number of ranks that has several with times, which do the same work."""
    comparisons = compare_points(results)
    alike = alike_points(results.timed, constant=lambda p: (p.first.train_samples, p.first.batch_size, p.first.ranks))
    several = [points for points in alike if len({layout_name(point) for point in points}) > 1]
    return [_fastest(results, points, comparisons) for points in sorted(several, key=lambda p: p[0].first.ranks)]


def _fastest(results: StudyResults, points: Sequence[StudyPoint], comparisons: dict[str, Comparison]) -> Fastest:
    best, *others = sorted(points, key=lambda point: point.seconds_per_epoch.value)
    name = point_name(results, best, without=LAYOUT)
    said = {point.predicted_seconds_per_epoch: point for point in points}
    return Fastest(
        "" if name == results.manifest.name else name,
        best,
        tuple((other, ratio_in_rounds(other.rounds, best.rounds)) for other in others),
        None if None in said else said[min(seconds for seconds in said if seconds is not None)],
        comparisons.get(best.id),
    )


# -- what is compared --------------------------------------------------------------------------------------------------


def baseline_text(results: StudyResults) -> str:
    """Return the base of the speed-ups as text, with its ranks, and its seconds where all points have the same one.

    A speed-up says little without the time of its base (Hoefler and Belli 2015, rule 1).
    """
    bases = {found.base.id: found.base for found in compare_points(results).values()}
    wanted = ", ".join(f"{label} {value}" for label, value in results.manifest.baseline.items())
    ranks = {base.first.ranks for base in bases.values()}
    details = [counted(ranks.pop(), "rank")] if len(ranks) == 1 else []
    if len(bases) == 1:
        details += [f"{base.seconds_per_epoch.format()} s per epoch" for base in bases.values()]
    return (wanted or "the fewest ranks of the same work") + f" ({', '.join(details)})" * bool(details)


def conditions_text(results: StudyResults) -> str:
    """Return the sentences on what the tables compare, and how: repeats, intervals, base of the speed-ups."""
    repeated = max(len(point.cells) for point in results.points)
    seeds = max(len({str(cell.values.get("seed")) for cell in point.cells}) for point in results.points)
    sentences = [f"Medians of up to {repeated} runs" if repeated > 1 else "Single runs"]
    if repeated >= LEAST_REPEATS:
        least = min(number for point in results.points if (number := len(point.cells)) >= LEAST_REPEATS)
        sentences[0] += f" [{coverage_of_median(least):.0%} confidence interval, bootstrap]"
    if seeds > 1:
        means = f"Results of the training are means ± standard deviations over up to {seeds} seeds"
        sentences = [*sentences[: results.is_timed], means]
    if results.is_timed:
        sentences.append(f"Speed-up against {baseline_text(results)}")
    if times_as_fast(results):
        sentences.append("Times as fast: time per epoch in the first folder divided by the time in this one")
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
        if (found := comparisons.get(point.id)) is not None and _differs_in_ranks(point, found.base):
            warnings.append(_efficiency_warning(name, found))
    curves = alike_points(results.points, LAYOUT | WORK, lambda point: ())
    warnings += hardware_warnings([cell.run for point in curve for cell in point.cells] for curve in curves)
    if disturbed := [cell.id for cell in results.cells if cell.is_disturbed]:
        took = f"processes of others took more than {MOST_DISTURBANCE:.0%} of the cores in use"
        more = f" and {len(disturbed) - 1} more" * (len(disturbed) > 1)
        cells = f"{len(disturbed)} of {counted(len(results.cells), 'cell')}"
        warnings.append(f"{cells} disturbed, also when repeated: {took} in {disturbed[0]}{more}")
    warnings += dict.fromkeys(text for run in runs for text in run.header.crowded)
    warnings += prediction_warnings(runs)
    if without_base := [point for point in results.timed if point.id not in comparisons]:
        rows = f"{len(without_base)} of {len(results.points)} rows have no speed-up"
        name = point_name(results, without_base[0], without=LAYOUT | results.manifest.baseline.keys())
        reason = "the baseline was not run, or has not finished, with their other values, such as"
        warnings.append(f"{rows}: {reason} {name}")
    return [text for text in warnings if text]


def group_warnings(group: ScalingGroup) -> list[str]:
    """Sentences on doubtful speed-ups and predictions of runs outside of a study."""
    runs = [cell.figures for point in group.points for cell in point.cells]
    doubtful = [
        _efficiency_warning(f"{point.first.ranks} ranks, {point.first.grid}", comparison)
        for point, comparison in zip(group.points, group.comparisons, strict=True)
    ]
    doubts = dict.fromkeys(run.prediction_doubt for run in runs)
    return [text for text in (_threads_warning(runs), *doubtful, *doubts) if text]


def _efficiency_warning(what: str, comparison: Comparison) -> str:
    if not (efficiency := comparison.efficiency.value) > MOST_EFFICIENCY:  # NaN is not
        return ""
    causes = "the run it is compared with was slowed down by other work, or had other threads"
    return f"{what}: efficiency {efficiency:.0%}, more than ranks alone can give; perhaps {causes}"


def _threads_warning(runs: Sequence[RunFigures]) -> str:
    threads = sorted({run.threads_per_rank for run in runs})
    if len(threads) < 2:
        return ""
    numbers = ", ".join(map(str, threads))
    return f"the runs differ in BLAS threads per rank ({numbers}): speed-ups compare different numbers of cores"


def _differs_in_ranks(point: StudyPoint, base: StudyPoint) -> bool:
    """Whether a speed-up of the point can only come from more ranks: not from another method of stages, for example."""
    values = ((label, str(value)) for label, value in point.values.items() if label not in LAYOUT)
    same_method = base.grid[0] == 1 or base.first.method == point.first.method
    same_values = all(str(base.values.get(label)) == text for label, text in values)
    return same_method and same_values and point.first.ranks > base.first.ranks


def hardware_warnings(curves: Iterable[Sequence[RunRecord]]) -> list[str]:
    """Sentences on the `CONDITIONS` in which the cells of a curve differ."""
    found: dict[str, Counter[str]] = {}
    for curve in curves:
        for name, value in CONDITIONS.items():
            values = Counter(text for run in curve if (text := value(run.header)))
            if len(values) > 1:
                found.setdefault(name, Counter()).update(values)
    texts = {
        name: "; ".join(f"{text} ({counted(cells, 'cell')})" for text, cells in values.items())
        for name, values in found.items()
    }
    return [f"cells of one curve ran with different {name}: {texts[name]}" for name in CONDITIONS if name in texts]


def prediction_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Sentences on machine files that are doubtful, of fewer ranks than they predict, or of another processor."""
    warnings: list[str] = []
    predictions = [(run, run.prediction) for run in runs if run.prediction is not None]
    for name in dict.fromkeys(found.machine for _, found in predictions):
        of_machine = [(run, found) for run, found in predictions if found.machine == name]
        warnings += filter(None, dict.fromkeys(found.doubt for _, found in of_machine))
        processors = [text for run, _ in of_machine for text in host_values(run.header, "processors")]
        machine, most_ranks = of_machine[0][1], max(run.header.ranks for run, _ in of_machine)
        warnings += _machine_warnings(name, machine.processor, machine.calibrated_ranks, most_ranks, processors)
    return warnings


def price_warnings(machine: Machine, cells: Sequence[Cell]) -> list[str]:
    """Sentences on a machine file that is doubtful, of fewer ranks than the cells have, or of another processor."""
    most, processors = max(cell.ranks for cell in cells), [processor_name()]
    found = _machine_warnings(machine.name, machine.processor, machine.calibrated_ranks, most, processors)
    return [*filter(None, [machine.doubt]), *found]


def _machine_warnings(
    name: str, processor: str, calibrated_ranks: int | None, most_ranks: int, processors: Iterable[str]
) -> list[str]:
    """Sentences on a machine file for runs of up to `most_ranks` ranks on `processors`; it may not state its own."""
    warnings = []
    if calibrated_ranks is not None and calibrated_ranks < most_ranks:
        measured = f"was calibrated on {counted(calibrated_ranks, 'rank')}"
        warnings.append(f"the machine file {name} {measured}: predictions for {most_ranks} are extrapolated")
    others = ", ".join(dict.fromkeys(text for text in processors if text != processor))
    if processor and others:
        warnings.append(f"the machine file {name} is of another processor: {processor}, not {others}")
    return warnings
