"""Results of a study, of one folder or several: finished cells grouped into points, other cells with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeVar

from hybridnn.diagnostics.hosts import MOST_DISTURBANCE
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.quantities import RunFigures, TimeShares, figures_of, mean_shares
from hybridnn.runs.records import RunHeader
from hybridnn.runs.run_files import HISTORY, RunRecord, read_run
from hybridnn.study.axes import NO_METHOD, REPEATED
from hybridnn.study.judgement import Estimate, MeanDeviation, Sample, fastest_of, mean_and_deviation, median_of
from hybridnn.study.study_file import conclusions_module
from hybridnn.study.study_folder import ENDED, FAILURES, CellState, StudyFolder, StudyManifest, read_manifest
from hybridnn.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Key = tuple[Hashable, ...]
Name = TypeVar("Name", bound=Hashable)

FOLDER = "folder"  # label of the axis by which the cells of several folders differ
MARK = "†"  # of disturbed times


@dataclass(frozen=True)
class CellResult:
    """A cell that finished or diverged, with the values of its axes by label.

    `is_timed` is whether it has times; one rank alone in a study of ranks in one process counts as the others do.
    """

    id: str
    values: dict[str, Any]
    run: RunRecord
    figures: RunFigures
    is_timed: bool

    @property
    def is_disturbed(self) -> bool:
        """Whether processes of others disturbed its times."""
        return self.is_timed and self.run.disturbance > MOST_DISTURBANCE

    @property
    def point_values(self) -> dict[str, Any]:
        """Values of the axes but repeat and seed."""
        return {label: value for label, value in self.values.items() if label not in REPEATED}

    @property
    def round(self) -> str:
        """Repeat and seed: cells of one round run one after another."""
        return " ".join(str(self.values.get(name)) for name in REPEATED)

    @property
    def diverged(self) -> bool:
        """Whether the loss or the weights became infinite or NaN."""
        return self.run.diverged is not None


@dataclass(frozen=True)
class StudyPoint:
    """Cells (at least one) that differ in repeat and seed alone; `values` are those of the other axes, by label."""

    values: dict[str, Any]
    cells: tuple[CellResult, ...]

    @property
    def id(self) -> str:
        """That of the first cell."""
        return self.cells[0].id

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
    def times(self) -> Sample:
        """Seconds per epoch of the cells that have times, by their repeat and seed: by round."""
        timed = {cell.round: cell.figures.seconds_per_epoch for cell in self.cells if cell.is_timed}
        return Sample(timed, "time")

    @property
    def is_timed(self) -> bool:
        """Whether any of the cells has times."""
        return any(cell.is_timed for cell in self.cells)

    @property
    def is_disturbed(self) -> bool:
        """Whether any of the cells was."""
        return any(cell.is_disturbed for cell in self.cells)

    @cached_property
    def seconds_per_epoch(self) -> Estimate:
        """The median of training, evaluation excluded; NaN without times."""
        return median_of(list(self.times.values.values()) or [nan])

    @property
    def seconds_per_step(self) -> Estimate:
        """Of training."""
        return self.seconds_per_epoch.scaled(1 / self.first.steps_per_epoch)

    @property
    def predicted_seconds_per_epoch(self) -> float | None:
        """Median of the predictions; None without any."""
        found = [value for cell in self.cells if (value := cell.figures.predicted_seconds_per_epoch) is not None]
        return median(found) if found else None

    @property
    def metric(self) -> MeanDeviation | None:
        """Test accuracy or R² after the last epoch, over the seeds; None where there is none.

        Repeats of one seed are the same training, so that they count once, by their mean.
        """
        found = [value for value in self.metrics().values.values() if isfinite(value)]
        return mean_and_deviation(found) if found else None

    def metrics(self, *, best: bool = False) -> Sample:
        """Test accuracy or R² after the last epoch, or the best one, by seed; NaN where the training diverged."""
        by_seed: dict[str, list[float]] = {}
        for cell in self.cells:
            known = [epoch.metric for epoch in cell.run.epochs if epoch.metric is not None]
            value = nan if cell.diverged else cell.figures.metric if not best else max(known, default=None)
            if value is not None:
                by_seed.setdefault(str(cell.values.get("seed")), []).append(value)
        header, is_share = self.cells[0].run.header, self.first.metric_name == "test accuracy"
        step = is_share / max(1, header.validation_samples or header.test_samples)
        return Sample({seed: fmean(values) for seed, values in by_seed.items()}, "training", step=step)

    @property
    def shares(self) -> TimeShares:
        """Means over the cells that have times, if there are any."""
        timed = [cell for cell in self.cells if cell.is_timed]
        return mean_shares([cell.figures.shares for cell in timed or self.cells])


def fastest_by(points: Iterable[StudyPoint], key: Callable[[StudyPoint], Name]) -> dict[Name, StudyPoint]:
    """Of the points of each key the fastest in the rounds that all of these have; without times, the first."""
    groups: dict[Name, list[StudyPoint]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    found = {}
    for name, group in groups.items():
        timed = [point for point in group if point.is_timed] or group[:1]
        found[name] = timed[fastest_of([point.times for point in timed])[0]]
    return found


@dataclass(frozen=True)
class Findings:
    """What the conclusions of a study add to its report.

    `points` are those that tables and curves show. Verdicts on statements are plain values, `lines` of text, the
    statement with its comparisons, and `rows` of a table; `summary` counts them. `columns` are further cells of the
    table of points, by title, for the id of the first cell of a point; `cell_columns` are those of the CSV for every
    cell. `note` is a sentence on the tables, and `draw` returns captions and figures of further plots, by name.
    """

    points: tuple[StudyPoint, ...]
    summary: str = ""
    verdicts: tuple[dict[str, Any], ...] = ()
    lines: tuple[tuple[str, ...], ...] = ()
    rows: Sequence[Mapping[str, str]] = ()
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cell_columns: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    note: str = ""
    draw: Callable[[], dict[str, tuple[str, Figure]]] = dict


@dataclass(frozen=True)
class StudyResults:
    """Results of a study: the cells that finished or diverged, in its order, and the states of the others by id.

    `days` are those on which cells ended: ``YYYY-MM-DD``, or ``YYYY-MM-DD to YYYY-MM-DD``.
    """

    manifest: StudyManifest
    cells: tuple[CellResult, ...]
    unfinished: dict[str, CellState]
    days: str

    @cached_property
    def points(self) -> tuple[StudyPoint, ...]:
        """Cells grouped by all values but repeat and seed."""
        groups: dict[Key, list[CellResult]] = {}
        for cell in self.cells:
            key = tuple((label, str(value)) for label, value in cell.point_values.items())
            groups.setdefault(key, []).append(cell)
        return tuple(StudyPoint(group[0].point_values, tuple(group)) for group in groups.values())

    @cached_property
    def findings(self) -> Findings:
        """What the study concludes; raises `EnvironmentProblem` without the distribution that evaluates it."""
        if not self.manifest.conclusions:
            return Findings(self.points)
        found: Findings = conclusions_module().find(self)
        return found

    @property
    def title(self) -> str:
        """Name of the study."""
        return self.manifest.name + ", reduced" * self.manifest.reduced

    @property
    def timed(self) -> list[StudyPoint]:
        """The points that have times."""
        return [point for point in self.points if point.is_timed]

    @property
    def failures(self) -> int:
        """Number of cells that failed, timed out or were interrupted."""
        return sum(state.status in FAILURES for state in self.unfinished.values())

    @property
    def unfinished_counts(self) -> str:
        """Counts of the unfinished cells by status, ``"2 failed, 1 never run"``."""
        counts = Counter(state.status for state in self.unfinished.values())
        return ", ".join(f"{count} {status}" for status, count in counts.items())

    @property
    def unfinished_texts(self) -> list[tuple[str, str]]:
        """Status of every unfinished cell, and its id with the reason."""
        states = self.unfinished.items()
        return [(state.status, f"{name}: {state.reason}" if state.reason else name) for name, state in states]

    @property
    def varying(self) -> tuple[str, ...]:
        """Labels of the axes that have several values among the points."""
        values = dict.fromkeys((label, str(value)) for point in self.points for label, value in point.values.items())
        numbers = Counter(label for label, _ in values)
        return tuple(label for label, number in numbers.items() if number > 1)

    @property
    def metric_name(self) -> str:
        """Name of the metric of the first cell that has one."""
        names = (cell.figures.metric_name for cell in self.cells if cell.figures.metric is not None)
        return next(names, "test metric")


def read_results(*folders: Path) -> StudyResults:
    """Read the results in one or several folders of a study; of several, the folder is another axis of the cells.

    Raises `SettingError` if two folders are the same or of different studies, `DataError` if one is not the folder of a
    study, no cell of it has ended, or a cell is damaged.
    """
    names = _names(folders) if len(folders) > 1 else [""]
    found = [_read_folder(folder, name) for folder, name in zip(folders, names, strict=True)]
    first, *others = found
    for folder, results in zip(folders[1:], others, strict=True):
        if results.title != first.title:
            raise SettingError("FOLDER", str(folder), f"holds another study ({results.title}) than {folders[0]} does")
    if not others:
        return first
    # Statements are about one folder: over several, the folder would be an axis that they do not name.
    conclusions = {name: value for name, value in first.manifest.conclusions.items() if name != "statements"}
    planned = tuple(cell for results in found for cell in results.manifest.cells)
    return StudyResults(
        replace(first.manifest, cells=planned, conclusions=conclusions),
        tuple(cell for results in found for cell in results.cells),
        {name: state for results in found for name, state in results.unfinished.items()},
        "; ".join(dict.fromkeys(results.days for results in found)),
    )


def _read_folder(folder: Path, name: str) -> StudyResults:
    """The results in a folder; a `name` of it is in the ids and values of the cells."""
    study, manifest = StudyFolder(folder), read_manifest(folder)
    prefix, label = (f"{name}/", {FOLDER: name}) if name else ("", {})
    planned, cells, unfinished, ended = [], [], {}, []
    for cell in manifest.cells:
        planned.append(replace(cell, id=prefix + cell.id, values={**label, **cell.values}))
        state = study.state(cell.id)
        if state.status not in ENDED:
            unfinished[prefix + cell.id] = state
            continue
        run = read_run(study.cell(cell.id))
        is_timed = not run.untimed and not run.header.in_process
        values = planned[-1].values
        cells.append(CellResult(prefix + cell.id, values, run, figures_of(run), is_timed))
        ended.append((study.cell(cell.id) / HISTORY).stat().st_mtime)
    days = [f"{datetime.fromtimestamp(seconds):%Y-%m-%d}" for seconds in sorted(ended)[:: max(1, len(ended) - 1)]]
    manifest = replace(manifest, cells=tuple(planned))
    results = StudyResults(manifest, tuple(cells), unfinished, " to ".join(dict.fromkeys(days)))
    if not cells:
        first = next((f"; {text}" for _, text in results.unfinished_texts if ": " in text), "")
        problem = f"none of the {len(planned)} cells of the study is finished"
        raise DataError(f"{folder}: {problem}: {results.unfinished_counts}{first}")
    return results


def _names(folders: Sequence[Path]) -> list[str]:
    """Names of the folders, or their paths where two names are equal."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SettingError("FOLDER", " ".join(map(str, folders)), "must be different folders")
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def point_name(results: StudyResults, point: StudyPoint, *, without: Iterable[str] = ()) -> str:
    """Values of the axes that vary among the points, but for those in `without`."""
    given = [label for label, value in point.values.items() if (label, value) != ("method", NO_METHOD)]
    labels = [label for label in given if label in results.varying and label not in without]
    parts = [f"{label} {point.values[label]}".removeprefix("variant ") for label in labels]
    return ", ".join(parts) or results.manifest.name


def marked(text: str, is_disturbed: bool) -> str:
    """The text, with a mark where processes of others disturbed what it says."""
    return f"{text} {MARK}" if is_disturbed else text


def disturbed_text(runs: Sequence[bool]) -> str:
    """How many of the runs processes of others disturbed; empty if none."""
    verb = "was" if sum(runs) == 1 else "were"
    return f"{sum(runs)} of {counted(len(runs), 'run')} {verb} disturbed by other processes" * any(runs)


def mark_note(points: Iterable[StudyPoint]) -> str:
    """What the mark is; empty where none of the points has it."""
    return f"{MARK}: disturbed by other processes." if any(point.is_disturbed for point in points) else ""


def host_values(header: RunHeader, name: str) -> list[str]:
    """The values of an attribute of `Hosts` as texts; empty where they were not recorded."""
    found = () if header.hosts is None else getattr(header.hosts, name)
    return [found] if isinstance(found, str) else list(map(str, found))
