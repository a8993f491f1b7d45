"""Records of a study: the measures of its cells, as its verdicts need them and as a CSV file keeps them.

A file begins with lines ``# name: text`` on the study and on how it was made: the commit, the versions, the processor
and the kernels of the BLAS. Then there is one line for each planned cell, with its state, the values of its axes
(``axis.width``) and its measures. Missing values are empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridnn.errors import DataError
from hybridnn.study.axes import REPEATED, format_value
from hybridnn.study.results import CellResult, StudyResults, host_values
from hybridnn.study.scaling import base_of
from hybridnn.study.study_folder import ManifestCell
from hybridnn.utils.files import read_text
from hybridnn_papers.measures import MEASURES, measured

AXIS = "axis."
DISTURBED = "disturbed"
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class CellFigures:
    """A cell that finished or diverged; `base` is the first cell of the base of its speed-up, empty without one.

    `is_disturbed` is whether processes of others disturbed its times.
    """

    id: str
    values: Mapping[str, Any]
    ranks: int
    train_samples: int
    diverged: bool
    base: str
    measures: Mapping[str, float | None]
    is_disturbed: bool = False

    @property
    def point_values(self) -> dict[str, Any]:
        """Values of the axes but repeat and seed."""
        return {label: value for label, value in self.values.items() if label not in REPEATED}

    @property
    def round(self) -> str:
        """Its repeat and seed, as text."""
        return " ".join(str(self.values.get(label)) for label in REPEATED)


@dataclass(frozen=True)
class StudyRecords:
    """Cells of a study: those that ended, all that are planned, and the states of the unfinished ones by id."""

    planned: tuple[ManifestCell, ...]
    cells: tuple[CellFigures, ...]
    unfinished: Mapping[str, str]
    baseline: Mapping[str, str] = field(default_factory=dict)


def records_of(results: StudyResults, target: float | None) -> StudyRecords:
    """The records of a study's folder; `target` is that of its conclusions."""
    bases: dict[str, str] = {}
    for point in results.points:
        base = base_of(results, point, results.timed) if point.is_timed else None
        bases |= dict.fromkeys((cell.id for cell in point.cells), base.cells[0].id if base else "")
    cells = tuple(_figures(cell, bases[cell.id], target) for cell in results.cells)
    unfinished = {name: state.status for name, state in results.unfinished.items()}
    return StudyRecords(results.manifest.cells, cells, unfinished, results.manifest.baseline)


def _figures(cell: CellResult, base: str, target: float | None) -> CellFigures:
    known = [name for name, measure in MEASURES.items() if target is not None or not measure.needs_target]
    measures = {name: measured(cell.run, cell.figures, name, target) for name in known}
    figures = cell.figures
    about = figures.ranks, figures.train_samples, cell.diverged, base, measures, cell.is_disturbed
    return CellFigures(cell.id, cell.values, *about)


def provenance_of(results: StudyResults) -> dict[str, str]:
    """How the cells were made, by name: versions, processors, kernels of the BLAS, days."""
    headers = [cell.run.header for cell in results.cells]

    def distinct(texts: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(texts))

    return {
        "days": results.days,
        "versions": distinct(f"{name} {version}" for header in headers for name, version in header.versions.items()),
        "processors": distinct(text for header in headers for text in host_values(header, "processors")),
        "BLAS": distinct(text for header in headers for text in host_values(header, "blas")),
    }


def csv_text(records: StudyRecords, about: Mapping[str, str]) -> str:
    """The records as a file; `about` are the lines at its beginning, by name."""
    text = io.StringIO()
    text.writelines(f"# {name}: {value}\n" for name, value in about.items())
    figures = {cell.id: cell for cell in records.cells}
    labels = list(dict.fromkeys(label for cell in records.planned for label in cell.values))
    names = [name for name in MEASURES if any(cell.measures.get(name) is not None for cell in records.cells)]
    columns = ["id", "state", "ranks", "train_samples", "base", DISTURBED, *(AXIS + label for label in labels), *names]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for planned in records.planned:
        axes = [format_value(planned.values[label]) if label in planned.values else "" for label in labels]
        cell = figures.get(planned.id)
        if cell is None:
            writer.writerow([planned.id, records.unfinished[planned.id], planned.ranks, "", "", "", *axes])
            continue
        state = "diverged" if cell.diverged else "finished"
        measures = [cell.measures.get(name) for name in names]
        disturbed = "yes" if cell.is_disturbed else ""
        writer.writerow([cell.id, state, cell.ranks, cell.train_samples, cell.base, disturbed, *axes, *measures])
    return text.getvalue()


def read_records(path: Path) -> tuple[StudyRecords, dict[str, str]]:
    """The records in a file, without the baseline, and the lines at its beginning.

    Raises `DataError` if it cannot be read.
    """
    lines = read_text(path, MOST_BYTES).splitlines()
    about = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# "))
    planned, cells, unfinished = [], [], {}
    try:
        for row in csv.DictReader(line for line in lines if not line.startswith("# ")):
            labels = [name for name in row if name.startswith(AXIS) and row[name]]
            values = {label.removeprefix(AXIS): _value(row[label]) for label in labels}
            planned.append(ManifestCell(row["id"], int(row["ranks"]), values))
            if row["state"] not in ("finished", "diverged"):
                unfinished[row["id"]] = row["state"]
                continue
            measures = {name: float(row[name]) for name in MEASURES if row.get(name)}
            figures = int(row["ranks"]), int(row["train_samples"]), row["state"] == "diverged", row["base"], measures
            cells.append(CellFigures(row["id"], values, *figures, bool(row.get(DISTURBED))))
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the records of a study: {error}") from error
    return StudyRecords(tuple(planned), tuple(cells), unfinished), about


def _value(text: str) -> Any:
    """The value of an axis from its text: a number where that has the same text."""
    for kind in (int, float):
        try:
            if str(value := kind(text)) == text:
                return value
        except ValueError:
            continue
    return text
