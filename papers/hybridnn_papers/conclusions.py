"""What a study concludes: the keys of its file are checked, and evaluated for its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from math import inf, isfinite
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from hybridnn.errors import DataError, SettingError
from hybridnn.study.cells import Cell
from hybridnn.study.report_plots import Plots
from hybridnn.study.results import Findings, StudyPoint, StudyResults
from hybridnn.study.statistics import mean_and_deviation, median_of
from hybridnn.study.study_file import Study
from hybridnn.utils.settings_models import first_problem, setting_error
from hybridnn.utils.text import counted
from hybridnn_papers.measures import MEASURES, measured
from hybridnn_papers.plots import draw_depths, draw_paper_plots, draw_stability
from hybridnn_papers.statements import Conclusions, combinations_of, points_of
from hybridnn_papers.verdicts import by_seed, verdict_lines, verdicts_of, verdicts_summary

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
    if not study.reduced:  # the short form may lack what a statement names
        _require_comparable(conclusions, cells)
    return conclusions.model_dump(exclude_defaults=True)


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


def find(results: StudyResults) -> Findings:
    """Evaluate the conclusions of a study with finished cells: its verdicts, measures and best points.

    Raises `DataError` if its manifest is damaged.
    """
    try:
        conclusions = Conclusions.model_validate(results.manifest.conclusions)
    except ValidationError as error:
        raise DataError(f"conclusions of {results.title}: {first_problem(error)}") from error
    verdicts = verdicts_of(results, conclusions)
    stated = [name for found in conclusions.statements for name in (found.quantity, found.other_quantity)]
    names = list(dict.fromkeys([*stated, *conclusions.columns]))
    best_over, target = conclusions.best_over, conclusions.target
    return Findings(
        points=best_points(results, best_over),
        summary=verdicts_summary(verdicts, results.manifest.paper),
        verdicts=tuple(asdict(verdict) for verdict in verdicts),
        lines=tuple(tuple(verdict_lines(verdict)) for verdict in verdicts),
        rows=[{"statement": found.title, "expected": found.expected, "verdict": found.outcome} for found in verdicts],
        columns={point.cells[0].id: _columns(point, names, target) for point in results.points},
        cell_columns={
            cell.id: {f"measure.{name}": measured(cell.run, cell.figures, name, target) for name in names}
            for cell in results.cells
        },
        note=f"Of {', '.join(best_over)} the value of the best metric" if best_over else "",
        draw=partial(_draw, results, conclusions, names),
    )


def _draw(results: StudyResults, conclusions: Conclusions, names: Iterable[str]) -> Plots:
    """Draw what the study names: largest rates and depths for `converged` as a column, and training losses."""
    target, plots = conclusions.target, draw_paper_plots(results, losses=not LOSSES.isdisjoint(names))
    if "converged" in conclusions.columns:
        plots |= draw_stability(results, target)
    if "converged" in conclusions.columns and conclusions.best_over:
        plots |= draw_depths(results, best_points(results, conclusions.best_over), target)
    return plots


def best_points(results: StudyResults, best_over: Iterable[str]) -> tuple[StudyPoint, ...]:
    """Of the points that differ in `best_over` alone those of the highest mean best metric."""
    groups: dict[tuple[str, ...], list[StudyPoint]] = {}
    for point in results.points:
        key = tuple(str(value) for label, value in point.values.items() if label not in best_over)
        groups.setdefault(key, []).append(point)

    def metric(point: StudyPoint) -> float:
        values = by_seed(point.cells, "best_metric", None).values()
        return fmean(values) if values else -inf

    return tuple(max(group, key=metric) for group in groups.values())


def _columns(point: StudyPoint, names: Iterable[str], target: float | None) -> Mapping[str, str]:
    """Measures of a point, as cells of a table by title.

    Times are medians with their interval, results of a training means with the standard deviation over the seeds.
    """
    cells = {}
    for name in names:
        measure = MEASURES[name]
        if name not in SHOWN:
            title = f"{measure.text}, {measure.unit}" if measure.unit else measure.text
            cells[title] = _cell_text(point, name, target)
    return cells


def _cell_text(point: StudyPoint, name: str, target: float | None) -> str:
    if MEASURES[name].kind == "training":
        values = list(by_seed(point.cells, name, target).values())
        finite = [value for value in values if isfinite(value)]
        part = f" ({len(finite)} of {counted(len(values), 'seed')})" if len(finite) < len(values) else ""
        return (mean_and_deviation(finite).format() if finite else "-") + part
    found = [measured(cell.run, cell.figures, name, target) for cell in point.cells]
    finite = [value for value in found if value is not None and isfinite(value)]
    if not finite:
        return "-"
    return f"{finite[0]:.4g}" if MEASURES[name].kind == "exact" else median_of(finite).format()
