"""Results of a study: its finished cells, grouped into points, and the unfinished ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from hybridnn.errors import DataError
from hybridnn.runs.history_file import HISTORY
from hybridnn.runs.run_record import RunRecord, read_run
from hybridnn.study.quantities import RunFigures, figures_of
from hybridnn.study.study_folder import FAILURES, CellState, StudyFolder, StudyManifest, read_manifest

REPEATED = frozenset({"repeat", "seed"})
"""Axes of repetitions; a point is the median over them."""

Values = tuple[tuple[str, Any], ...]


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
    """Cells that differ in repeat and seed alone.

    Attributes
    ----------
    values : tuple of (str, value)
        Of the other axes, by label.
    cells : tuple of CellResult
        At least one.
    """

    values: Values
    cells: tuple[CellResult, ...]

    @property
    def first(self) -> RunFigures:
        """Figures of the first cell, for those that all cells share."""
        return self.cells[0].figures

    @property
    def grid(self) -> tuple[int, int, int]:
        """Ranks along pipeline, batch and model (of the first stage)."""
        header = self.cells[0].run.header
        return header.pipeline, header.batch, header.model

    @property
    def seconds_per_epoch(self) -> Spread:
        """Of training, evaluation excluded."""
        return self._spread(lambda figures: figures.seconds_per_epoch)

    @property
    def seconds_per_step(self) -> Spread:
        """Of training."""
        return self._spread(lambda figures: figures.seconds_per_step)

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

    def _spread(self, figure: Callable[[RunFigures], float]) -> Spread:
        return Spread.of([figure(cell.figures) for cell in self.cells])


@dataclass(frozen=True)
class StudyResults:
    """Results of a study.

    Attributes
    ----------
    cells : tuple of CellResult
        The finished cells in the order of the study.
    unfinished : tuple of UnfinishedCell
        The other cells.
    first_day, last_day : str
        Ends of the first and the last finished cell, ``YYYY-MM-DD``.
    """

    manifest: StudyManifest
    cells: tuple[CellResult, ...]
    points: tuple[StudyPoint, ...]
    unfinished: tuple[UnfinishedCell, ...]
    first_day: str
    last_day: str

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
            for label, value in point.values:
                seen.setdefault(label, set()).add(str(value))
        return tuple(label for label, values in seen.items() if len(values) > 1)

    @property
    def metric_name(self) -> str:
        """Name of the metric of the first cell that has one."""
        names = [cell.figures.metric_name for cell in self.cells if cell.figures.metric is not None]
        return names[0] if names else "test metric"


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
    return StudyResults(manifest, tuple(cells), _points(cells), unfinished, *days)


def _counts(unfinished: Sequence[UnfinishedCell]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(cell.state.status for cell in unfinished).items())


def _points(cells: Sequence[CellResult]) -> tuple[StudyPoint, ...]:
    groups: dict[tuple[tuple[str, str], ...], list[CellResult]] = {}
    for cell in cells:
        key = tuple((label, str(value)) for label, value in _point_values(cell))
        groups.setdefault(key, []).append(cell)
    return tuple(StudyPoint(_point_values(group[0]), tuple(group)) for group in groups.values())


def _point_values(cell: CellResult) -> Values:
    return tuple((label, value) for label, value in cell.values.items() if label not in REPEATED)
