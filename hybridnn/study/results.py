"""Results of a study: its finished cells grouped into points, lines of scaling, maps of grids, and doubtful figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from hybridnn.errors import DataError
from hybridnn.runs.run_files import HISTORY, RunRecord, read_run
from hybridnn.study.quantities import RunFigures, efficiency_warning, figures_of, threads_warning
from hybridnn.study.study_folder import FAILURES, CellState, StudyFolder, StudyManifest, read_manifest

REPEATED = frozenset({"repeat", "seed"})  # axes of repetitions; a point is the median over them

LAYOUT = frozenset({"ranks", "grid"})
WORK = frozenset(
    {"batch", "batch-per-rank", "samples-per-rank", "training.batch_size", "data.synthetic.samples", "data.rows"}
)
"""Axes that change the number of samples of an epoch or a minibatch."""

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest value of repeated cells."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Take the spread of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class CellResult:
    """A finished cell with the values of its axes by label."""

    id: str
    values: dict[str, Any]
    run: RunRecord
    figures: RunFigures


@dataclass(frozen=True)
class UnfinishedCell:
    """A cell without a finished run."""

    id: str
    state: CellState

    @property
    def text(self) -> str:
        """Id and reason."""
        return f"{self.id}: {self.state.reason}" if self.state.reason else self.id


@dataclass(frozen=True)
class StudyPoint:
    """Cells (at least one) that differ in repeat and seed alone; `values` are those of the other axes, by label."""

    values: dict[str, Any]
    cells: tuple[CellResult, ...]

    @property
    def first(self) -> RunFigures:
        """Figures of the first cell, for those that all cells share."""
        return self.cells[0].figures

    @property
    def grid(self) -> tuple[int, int, int]:
        """Ranks along pipeline, batch and model (of the first stage)."""
        stages = self.cells[0].run.header.layout.stages
        return len(stages), *stages[0]

    @property
    def seconds_per_epoch(self) -> Spread:
        """Of training, evaluation excluded."""
        return Spread.of([cell.figures.seconds_per_epoch for cell in self.cells])

    @property
    def seconds_per_step(self) -> Spread:
        """Of training."""
        return Spread.of([cell.figures.seconds_per_step for cell in self.cells])

    @property
    def predicted_seconds_per_epoch(self) -> float | None:
        """Median of the predictions; None without any."""
        found = [value for cell in self.cells if (value := cell.figures.predicted_seconds_per_epoch) is not None]
        return median(found) if found else None

    @property
    def metric(self) -> Spread | None:
        """Test accuracy or R² after the last epoch; None where there is none."""
        found = [cell.figures.metric for cell in self.cells if cell.figures.metric is not None]
        return Spread.of(found) if found else None


@dataclass(frozen=True)
class StudyResults:
    """Results of a study: the finished cells in its order, their points, and the other cells.

    `days` are those on which cells finished: ``YYYY-MM-DD``, or ``YYYY-MM-DD to YYYY-MM-DD``.
    """

    manifest: StudyManifest
    cells: tuple[CellResult, ...]
    points: tuple[StudyPoint, ...]
    unfinished: tuple[UnfinishedCell, ...]
    days: str

    @property
    def title(self) -> str:
        """Name of the study."""
        return self.manifest.name + ", reduced" * self.manifest.reduced

    @property
    def failures(self) -> int:
        """Number of cells that failed, timed out or were interrupted."""
        return sum(cell.state.status in FAILURES for cell in self.unfinished)

    @property
    def unfinished_counts(self) -> str:
        """Counts of the unfinished cells by status, ``"2 failed, 1 never run"``."""
        return _counts(self.unfinished)

    @property
    def varying(self) -> tuple[str, ...]:
        """Labels of the axes that have several values among the points."""
        seen: dict[str, set[str]] = {}
        for point in self.points:
            for label, value in point.values.items():
                seen.setdefault(label, set()).add(str(value))
        return tuple(label for label, values in seen.items() if len(values) > 1)

    @property
    def metric_name(self) -> str:
        """Name of the metric of the first cell that has one."""
        names = (cell.figures.metric_name for cell in self.cells if cell.figures.metric is not None)
        return next(names, "test metric")


def read_results(folder: Path) -> StudyResults:
    """Read the results in a study's folder.

    Raises
    ------
    DataError
        If it is not the folder of a study, no cell is finished, or a cell is damaged.
    """
    manifest = read_manifest(folder)
    study = StudyFolder(folder)
    states = {cell.id: study.state(cell.id) for cell in manifest.cells}
    finished = [cell for cell in manifest.cells if states[cell.id].status == "finished"]
    unfinished = tuple(UnfinishedCell(name, state) for name, state in states.items() if state.status != "finished")
    if not finished:
        first = next((f"; {cell.text}" for cell in unfinished if cell.state.reason), "")
        problem = f"none of the {len(manifest.cells)} cells of the study is finished"
        raise DataError(f"{folder}: {problem}: {_counts(unfinished)}{first}")
    cells = []
    for cell in finished:
        run = read_run(study.cell(cell.id))
        cells.append(CellResult(cell.id, cell.values, run, figures_of(run)))
    ended = [(study.cell(cell.id) / HISTORY).stat().st_mtime for cell in finished]
    days = [f"{datetime.fromtimestamp(seconds):%Y-%m-%d}" for seconds in (min(ended), max(ended))]
    return StudyResults(manifest, tuple(cells), _points(cells), unfinished, " to ".join(dict.fromkeys(days)))


def _counts(unfinished: Sequence[UnfinishedCell]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(cell.state.status for cell in unfinished).items())


def _points(cells: Sequence[CellResult]) -> tuple[StudyPoint, ...]:
    groups: dict[Key, list[CellResult]] = {}
    for cell in cells:
        key = tuple((label, str(value)) for label, value in _point_values(cell).items())
        groups.setdefault(key, []).append(cell)
    return tuple(StudyPoint(_point_values(group[0]), tuple(group)) for group in groups.values())


def _point_values(cell: CellResult) -> dict[str, Any]:
    return {label: value for label, value in cell.values.items() if label not in REPEATED}


@dataclass(frozen=True)
class ScalingLine:
    """Points of increasing ranks that otherwise differ in their grid alone: for each number of ranks the fastest.

    `name` has the values of the axes in which the line differs from the others. There are at least two points, each
    with its ranks, measured seconds and predicted seconds: per epoch, or per step where `per_step`.
    """

    name: str
    ranks: tuple[int, ...]
    seconds: tuple[Spread, ...]
    predicted: tuple[float | None, ...]
    per_step: bool = False


@dataclass(frozen=True)
class GridMap:
    """Seconds per epoch of the grids of one network: ``seconds[batch, model]``."""

    name: str
    seconds: dict[tuple[int, int], float]


def _work(point: StudyPoint) -> Key:
    return point.first.train_samples, point.first.batch_size


def alike_points(
    results: StudyResults, without: Iterable[str] = LAYOUT, constant: Callable[[StudyPoint], Key] = _work
) -> list[list[StudyPoint]]:
    """Group the points that have the same values of all axes but those in `without`, and the same `constant`."""
    groups: dict[Key, list[StudyPoint]] = {}
    for point in results.points:
        values = tuple((label, str(value)) for label, value in point.values.items() if label not in without)
        groups.setdefault((values, constant(point)), []).append(point)
    return list(groups.values())


def strong_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which only the ranks grow."""
    return _lines(results, LAYOUT, _work, "")


def weak_lines(results: StudyResults) -> list[ScalingLine]:
    """Lines along which the work grows with the ranks: the samples of the epoch, or those of the minibatch."""

    def samples_each(point: StudyPoint) -> int:
        return round(point.first.train_samples / point.first.ranks)

    def batch_each(point: StudyPoint) -> int:
        return round(point.first.batch_size / point.first.ranks)

    axes, samples = LAYOUT | WORK, "{0} samples per rank"
    return [
        *_lines(results, axes, lambda p: (samples_each(p), p.first.batch_size), f"{samples}, batch {{1}}"),
        *_lines(results, axes, lambda p: (samples_each(p), batch_each(p)), f"{samples}, batch {{1}} per rank"),
        *_lines(results, axes, lambda p: (p.first.train_samples, batch_each(p)), "batch {1} per rank", per_step=True),
    ]


def _lines(
    results: StudyResults,
    without: Iterable[str],
    constant: Callable[[StudyPoint], Key],
    text: str,
    *,
    per_step: bool = False,
) -> list[ScalingLine]:
    """Lines of the groups of `alike_points`; `text` is the format in which the values of `constant` are named."""
    lines = []
    for points in alike_points(results, without, constant):
        fastest: dict[int, StudyPoint] = {}
        for point in sorted(points, key=_ranks_and_seconds):
            fastest.setdefault(point.first.ranks, point)
        if len(fastest) > 1:
            chosen = tuple(fastest.values())
            name = point_name(results, chosen[0], without=without)
            name += f", {text}".format(*constant(chosen[0])) if text else ""
            seconds = tuple(point.seconds_per_step if per_step else point.seconds_per_epoch for point in chosen)
            predicted = tuple(_predicted(point, per_step=per_step) for point in chosen)
            lines.append(ScalingLine(name, tuple(fastest), seconds, predicted, per_step))
    return lines


def _predicted(point: StudyPoint, *, per_step: bool) -> float | None:
    seconds = point.predicted_seconds_per_epoch
    return seconds / point.first.steps_per_epoch if seconds is not None and per_step else seconds


def _ranks_and_seconds(point: StudyPoint) -> tuple[int, float]:
    return point.first.ranks, point.seconds_per_epoch.median


def grid_maps(results: StudyResults) -> list[GridMap]:
    """Maps of batch x model for every network that ran with several numbers of both; all numbers of ranks together."""
    maps = []
    for points in alike_points(results, constant=lambda point: (*_work(point), point.grid[0])):
        seconds: dict[tuple[int, int], float] = {}
        for point in points:
            grid, measured = point.grid[1:], point.seconds_per_epoch.median
            seconds[grid] = min(measured, seconds.get(grid, measured))
        if len({batch for batch, _ in seconds}) > 1 and len({model for _, model in seconds}) > 1:
            name = point_name(results, points[0], without=LAYOUT)
            pipeline = points[0].grid[0]
            maps.append(GridMap(name + f", {pipeline} stages" * (pipeline > 1), seconds))
    return maps


def speed_ups(results: StudyResults) -> dict[str, tuple[float, int]]:
    """Speed-up of each point, by the id of its first cell, and the ranks of its base: the fewest for this work."""
    found = {}
    for points in alike_points(results):
        base = min(points, key=_ranks_and_seconds)
        for point in points:
            ratio = base.seconds_per_epoch.median / point.seconds_per_epoch.median
            found[point.cells[0].id] = ratio, base.first.ranks
    return found


def point_name(results: StudyResults, point: StudyPoint, *, without: Iterable[str] = ()) -> str:
    """Values of the axes that vary among the points, but for those in `without`."""
    labels = [label for label in point.values if label in results.varying and label not in without]
    parts = [f"{label} {point.values[label]}".removeprefix("variant ") for label in labels]
    return ", ".join(parts) or results.manifest.name


def warnings_of(results: StudyResults) -> list[str]:
    """Sentences on threads that differ, placements that differ, and speed-ups above the ideal."""
    warnings = [threads_warning([cell.figures for cell in results.cells])]
    relative = speed_ups(results)
    for point in results.points:
        name = point_name(results, point)
        nodes = sorted({cell.figures.nodes for cell in point.cells})
        if len(nodes) > 1:
            warnings.append(f"{name}: repeated on {', '.join(map(str, nodes))} nodes, whose times are not the same")
        speed_up, base = relative[point.cells[0].id]
        warnings.append(efficiency_warning(name, speed_up * base / point.first.ranks))
    return [text for text in warnings if text]
