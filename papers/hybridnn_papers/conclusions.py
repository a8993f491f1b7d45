"""What a study concludes: the keys of its file are checked, and evaluated for its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from hybridnn.drawing.figures import Plots
from hybridnn.errors import DataError, SettingError
from hybridnn.study.cells import Cell
from hybridnn.study.judgement import mean_and_deviation, median_of
from hybridnn.study.plots import draw_curves
from hybridnn.study.results import Findings, StudyPoint, StudyResults, marked
from hybridnn.study.study_file import Study, load_study
from hybridnn.utils.settings_models import first_problem, setting_error
from hybridnn.utils.text import counted
from hybridnn_papers.measures import MEASURES
from hybridnn_papers.plots import draw_depths, draw_stability
from hybridnn_papers.records import CellFigures, csv_text, provenance_of, read_records, records_of
from hybridnn_papers.statements import Conclusions, combinations_of, points_of
from hybridnn_papers.verdicts import Verdict, by_seed, verdict_lines, verdicts_of, verdicts_summary

SHOWN = ("speed_up", "efficiency", "seconds_per_epoch", "last_metric")  # measures that have a column in any case
LOSSES = {"least_train_loss", "last_train_loss"}


def check(study: Study, cells: Iterable[Cell]) -> dict[str, Any]:
    """Return the conclusions of a form of a study, with labels of axes and lists of texts as their values.

    They may name values that only the other form has.

    Raises
    ------
    SettingError
        If a key or value is not allowed, or a statement compares no cells of the full form.
    """
    conclusions = _stated(study)
    if not study.reduced:  # the short form may lack what a statement names
        _require_comparable(conclusions, cells)
    return conclusions.model_dump(exclude_defaults=True)


def _stated(study: Study) -> Conclusions:
    """The conclusions of a form of a study, checked but for the cells that they compare."""
    given, reduced = study.keys.given, study.keys.reduced
    short = reduced.given if study.reduced and reduced else {}
    section = "reduced." if "statements" in short else ""
    try:
        conclusions = Conclusions.model_validate(given | short)
    except ValidationError as error:
        raise setting_error(error, tuple(Conclusions.model_fields)) from None
    others = {axis.label: values for axis, values in study.other_axes}
    known = [(axis, values + [v for v in others.get(axis.label, []) if v not in values]) for axis, values in study.axes]
    conclusions = conclusions.checked(section, known)
    for number, statement in enumerate(conclusions.statements if study.keys.in_process else ()):
        for name in {statement.quantity, statement.other_quantity}:
            if MEASURES[name].kind == "time":
                problem = "ranks that take turns in one process (in_process) have no times"
                raise SettingError(f"{section}statements[{number}].quantity", name, problem)
    return conclusions


def _require_comparable(conclusions: Conclusions, cells: Iterable[Cell]) -> None:
    """Raise `SettingError` for a statement that compares no cells of the study, or cells with none."""
    points = points_of((cell.id, cell.values) for cell in cells)
    for number, statement in enumerate(conclusions.statements):
        key = f"statements[{number}]"
        combinations, _ = combinations_of(statement, points, conclusions.best_over)
        if not combinations:
            raise SettingError(f"{key}.where", statement.where, "no cell of this study has these values")
        for combination in combinations:
            if any(pair.against == () for pair in combination.pairs):
                at = ", ".join(f"{label} {text}" for label, text in combination.values.items())
                raise SettingError(f"{key}.against", statement.other_values, f"no cell to compare {at} with")


def conclusions_of(results: StudyResults) -> Conclusions:
    """The conclusions in the manifest of a study; raises `DataError` if it is damaged."""
    try:
        return Conclusions.model_validate(results.manifest.conclusions)
    except ValidationError as error:
        raise DataError(f"conclusions of {results.title}: {first_problem(error)}") from error


def records_text(results: StudyResults, commit: str) -> str:
    """The records of a study as a CSV file; `commit` is that of the code that ran it."""
    about = {"study": results.manifest.name, "form": "short" if results.manifest.reduced else "full", "commit": commit}
    return csv_text(records_of(results, conclusions_of(results).target), about | provenance_of(results))


def verdicts_in(path: Path) -> tuple[dict[str, str], list[Verdict]]:
    """What a file of records says about itself, and the verdicts on the statements of its study as they are now.

    Raises `DataError` if it cannot be read.
    """
    records, about = read_records(path)
    study = load_study(about["study"], reduced=about["form"] == "short")
    return about, verdicts_of(replace(records, baseline=study.baseline), _stated(study))


def find(results: StudyResults) -> Findings:
    """Evaluate the conclusions of a study with finished cells: its verdicts, measures and best points.

    Raises `DataError` if its manifest is damaged.
    """
    conclusions = conclusions_of(results)
    records = records_of(results, conclusions.target)
    verdicts, cells = verdicts_of(records, conclusions), {cell.id: cell for cell in records.cells}
    stated = [name for found in conclusions.statements for name in (found.quantity, found.other_quantity)]
    names = list(dict.fromkeys([*stated, *conclusions.columns]))
    best_over = conclusions.best_over
    figures = {point.cells[0].id: [cells[cell.id] for cell in point.cells] for point in results.points}
    shown = best_points(results, figures, best_over)
    return Findings(
        points=shown,
        summary=verdicts_summary(((verdict.about, verdict.outcome) for verdict in verdicts), results.manifest.paper),
        verdicts=tuple(asdict(verdict) for verdict in verdicts),
        lines=tuple(tuple(verdict_lines(verdict)) for verdict in verdicts),
        rows=[{"statement": found.title, "expected": found.expected, "verdict": found.outcome} for found in verdicts],
        columns={name: _columns(found, names) for name, found in figures.items()},
        cell_columns={
            cell.id: {f"measure.{name}": cell.measures.get(name) for name in names} for cell in records.cells
        },
        note=f"Of {', '.join(best_over)} the value of the best metric" if best_over else "",
        draw=partial(_draw, results, conclusions, names, shown),
    )


def _draw(results: StudyResults, conclusions: Conclusions, names: Iterable[str], points: Sequence[StudyPoint]) -> Plots:
    """Draw what the study names: largest rates and depths for `converged` as a column, and training losses."""
    plots = {} if LOSSES.isdisjoint(names) else draw_curves(results, ["training loss"], "training_loss")
    if "converged" in conclusions.columns:
        plots |= draw_stability(results, conclusions.target)
    if "converged" in conclusions.columns and conclusions.best_over:
        plots |= draw_depths(results, points, conclusions.target)
    return plots


def best_points(
    results: StudyResults, figures: Mapping[str, list[CellFigures]], best_over: Iterable[str]
) -> tuple[StudyPoint, ...]:
    """Of the points that differ in `best_over` alone those of the highest mean best metric.

    `figures` are those of the cells of a point, by the id of its first one.
    """
    groups: dict[tuple[str, ...], list[StudyPoint]] = {}
    for point in results.points:
        key = tuple(str(value) for label, value in point.values.items() if label not in best_over)
        groups.setdefault(key, []).append(point)

    def metric(point: StudyPoint) -> float:
        values = by_seed(figures[point.cells[0].id], "best_metric").values()
        return fmean(values) if values else -inf

    return tuple(max(group, key=metric) for group in groups.values())


def _columns(cells: Sequence[CellFigures], names: Iterable[str]) -> Mapping[str, str]:
    """Measures of the cells of a point, as cells of a table by title.

    Times are medians with their interval, results of a training means with the standard deviation over the seeds.
    """
    texts = {}
    for name in names:
        measure = MEASURES[name]
        if name not in SHOWN:
            title = f"{measure.text}, {measure.unit}" if measure.unit else measure.text
            texts[title] = _cell_text(cells, name)
    return texts


def _cell_text(cells: Sequence[CellFigures], name: str) -> str:
    if MEASURES[name].kind == "training":
        values = list(by_seed(cells, name).values())
        finite = [value for value in values if isfinite(value)]
        part = f" ({len(finite)} of {counted(len(values), 'seed')})" if len(finite) < len(values) else ""
        return (mean_and_deviation(finite).format() if finite else "-") + part
    found = [cell.measures.get(name) for cell in cells]
    finite = [value for value in found if value is not None and isfinite(value)]
    if not finite:
        return "-"
    if MEASURES[name].kind == "exact":
        return f"{finite[0]:.4g}"
    return marked(median_of(finite).format(), any(cell.is_disturbed for cell in cells))
