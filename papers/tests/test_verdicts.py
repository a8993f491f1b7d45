"""Verdicts on statements: made-up results with known answers, and every reason why a study cannot decide."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.errors import DataError, SettingError
from hybridnn.runs.quantities import figures_of
from hybridnn.runs.run_files import read_run
from hybridnn.study.axes import check_axes
from hybridnn.study.cells import make_cells
from hybridnn.study.plots import curves_of, draw_plots
from hybridnn.study.report import csv_text, latex_text, markdown_text, point_rows
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.study_file import load_study
from hybridnn_papers.conclusions import records_text
from hybridnn_papers.measures import measured
from hybridnn_papers.records import StudyRecords, read_records, records_of
from hybridnn_papers.statements import Conclusions
from hybridnn_papers.verdicts import Verdict, verdicts_of
from reference.finished_runs import load_line, made_study, write_run, write_study

AXIS_NAMES = {"width": "widths", "seed": "seeds"}
UNFINISHED: dict[str, Any] = {}
Cell = tuple[dict[str, Any], dict[str, Any]]  # values of axes; options of `write_run`, `UNFINISHED`


def _results(folder: Path, cells: list[Cell], statement: Mapping[str, Any], **keys: Any) -> StudyResults:
    """A study of these cells with a statement, and other keys of its conclusions."""
    axes: dict[str, list[Any]] = {}
    for values, _ in cells:
        grid, method = values.get("grid", "2x1x1"), values.get("method")
        if {"grid", "method"} & values.keys():
            axes.setdefault("layouts", []).append(f"{grid}:{method}" if method else grid)
        for label, value in values.items():
            if label not in ("repeat", "grid", "method"):
                axes.setdefault(AXIS_NAMES.get(label, label), []).append(value)
    known = check_axes({name: list(dict.fromkeys(values)) for name, values in axes.items()}, {})
    given = Conclusions.model_validate({"statements": [{"says": "Says.", **statement}], **keys})
    named = {"_".join(f"{label}-{value}" for label, value in values.items()): (values, run) for values, run in cells}
    missing = {name: values for name, (values, run) in named.items() if run is UNFINISHED}
    runs = {name: found for name, found in named.items() if name not in missing}
    more = {"conclusions": given.checked("", known).model_dump(exclude_defaults=True), "paper": "Someone 2020"}
    write_study(folder, runs, missing, more=more)
    return read_results(folder)


def _verdict(folder: Path, cells: list[Cell], statement: Mapping[str, Any], **keys: Any) -> Verdict:
    return _verdict_of(_results(folder, cells, statement, **keys))


def _verdict_of(results: StudyResults) -> Verdict:
    conclusions = Conclusions.model_validate(results.manifest.conclusions)
    (verdict,) = verdicts_of(records_of(results, conclusions.target), conclusions)
    return verdict


def _trained(by_method: Mapping[str, list[float]], **values: Any) -> list[Cell]:
    """Cells of methods and seeds with these best accuracies."""
    return [
        ({"method": method, **values, "seed": seed}, {"accuracy": accuracy})
        for method, accuracies in by_method.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def _timed(by_width: Mapping[int, Mapping[int, list[float]]]) -> list[Cell]:
    """Cells of widths and ranks with these seconds per epoch in repeats."""
    return [
        ({"ranks": ranks, "width": width, "repeat": n}, {"ranks": ranks, "hidden": [width], "seconds": [taken]})
        for width, by_ranks in by_width.items()
        for ranks, seconds in by_ranks.items()
        for n, taken in enumerate(seconds, 1)
    ]


CLEAR = {"sequential": [0.80, 0.81, 0.82, 0.80], "fr": [0.90, 0.91, 0.92, 0.91]}
FR = {"quantity": "best_metric", "where": {"method": "fr"}, "against": {"method": "sequential"}}


@pytest.mark.parametrize(
    ("bounds", "outcome"),
    [
        ({"at_least": 0.0}, "agrees"),
        ({"at_most": 0.0}, "does not"),
        ({"at_least": 0.101}, "cannot be decided"),
        ({"at_least": 0.05, "at_most": 0.2}, "agrees"),
        ({"at_least": 1.0, "by": "ratio"}, "agrees"),
        ({"at_least": 0.0, "at_most": 0.0}, "does not"),
    ],
)
def test_metrics_are_compared_over_seeds(tmp_path: Path, bounds: dict[str, Any], outcome: str) -> None:
    verdict = _verdict(tmp_path, _trained(CLEAR), {**FR, **bounds})
    assert verdict.outcome == outcome
    (pair,) = verdict.pairs
    assert (pair.measured, pair.other) == (pytest.approx(0.91), pytest.approx(0.8075))
    ratios = np.array(CLEAR["fr"]) / np.array(CLEAR["sequential"])
    assert pair.value == pytest.approx(np.exp(np.log(ratios).mean()) if bounds.get("by") == "ratio" else 0.1025)
    assert pair.runs == "4 seeds"
    assert (pair.reason != "") == (outcome == "cannot be decided")


def test_equal_trainings_need_one_seed_and_every_seed_to_be_equal(tmp_path: Path) -> None:
    equality = {**FR, "at_least": 0, "at_most": 0}
    assert _verdict(tmp_path / "a", _trained({"sequential": [0.8], "fr": [0.8]}), equality).outcome == "agrees"
    swapped = {"sequential": [0.8, 0.9], "fr": [0.9, 0.8]}  # equal means
    assert _verdict(tmp_path / "b", _trained(swapped), equality).outcome == "does not"
    other = _trained({"sequential": [0.8, 0.9], "fr": [0.8]})
    verdict = _verdict(tmp_path / "c", other, equality)
    assert (verdict.outcome, "these differ" in verdict.pairs[0].reason) == ("cannot be decided", True)


def test_equal_trainings_are_one_comparison(tmp_path: Path) -> None:
    stale, other = [0.80, 0.845, 0.81], [0.80, 0.846, 0.81]
    cells = _trained({"ddg": stale, "pipedream": stale, "sequential": [0.87, 0.88, 0.88]})
    lower = {"quantity": "best_metric", "against": {"method": "sequential"}, "at_least": 0.0}
    lower |= {"where": {"method": ["ddg", "pipedream"]}}
    assert _verdict(tmp_path / "equal", cells, lower).outcome == "does not"
    cells = _trained({"ddg": stale, "pipedream": other, "sequential": [0.87, 0.88, 0.88]})
    assert _verdict(tmp_path / "different", cells, lower).pairs[0].reason.endswith("not as one of 2")


@pytest.mark.parametrize(
    ("last", "least", "measures"),
    [
        ((0.9, 0.1), 0.1, {"reached": 1, "converged": 1, "diverged": 0}),
        ((0.9, 0.6), 0.1, {"reached": 1, "converged": 0, "diverged": 1}),  # the loss has blown up
        ((0.7, 0.1), 0.1, {"reached": 1, "converged": 0, "diverged": 0}),
    ],
)
def test_shares_count_the_last_evaluation_and_the_last_loss(
    tmp_path: Path, last: tuple[float, float], least: float, measures: dict[str, float]
) -> None:
    run, (accuracy, loss) = read_run(write_run(tmp_path / "run")), last
    end = replace(run.epochs[-1], validation_accuracy=accuracy, train_loss=loss)
    middle = replace(run.epochs[-2], validation_accuracy=0.95, train_loss=least)
    run = replace(run, epochs=(*run.epochs[:-2], middle, end))
    assert {name: measured(run, figures_of(run), name, 0.85) for name in measures} == measures


SCALING = {32: {1: [4.0, 4.1, 4.2], 2: [4.0, 4.1, 3.9]}, 64: {1: [8.0, 8.1, 8.2], 2: [4.0, 4.1, 4.2]}}


@pytest.mark.parametrize(
    ("statement", "outcome"),
    [
        ({"where": {"ranks": 2}, "along": "width", "trend": "increasing"}, "agrees"),
        ({"where": {"ranks": 2}, "along": "width", "trend": "decreasing"}, "does not"),
        ({"where": {"ranks": 2}, "over": ["width"], "at_least": 1.8}, "agrees"),
        ({"where": {"ranks": 2, "width": 64}, "against": {"width": [32]}, "by": "ratio", "at_least": 1.5}, "agrees"),
        ({"where": {"ranks": 2}, "at_least": 1.5}, "does not"),
        ({"where": {"ranks": 2}, "at_least": 1.5, "any": True}, "agrees"),
        ({"where": {"ranks": 2}, "at_least": 3, "any": True}, "does not"),
        ({"at_least": 0.9}, "agrees"),
        ({"where": {"ranks": 1}, "at_least": 1, "at_most": 1.0000001}, "agrees"),  # the base itself
    ],
)
def test_speed_ups(tmp_path: Path, statement: dict[str, Any], outcome: str) -> None:
    verdict = _verdict(tmp_path, _timed(SCALING), {"quantity": "speed_up", **statement})
    assert verdict.outcome == outcome


def test_best_mixed_grid_against_batch_parallelism(tmp_path: Path) -> None:
    times = {"4x1": 2.0, "2x2": 1.0, "1x4": 3.0, "8x1": 1.5, "4x2": 3.0, "2x4": 0.5}
    cells = []
    for grid, seconds in times.items():
        batch, model = map(int, grid.split("x"))
        for repeat in (1, 2, 3):
            options = {"ranks": batch * model, "grid": (1, batch, model), "seconds": [seconds + repeat / 1000]}
            cells.append(({"ranks": batch * model, "grid": grid, "repeat": repeat}, options))
    statement = {"where": {"grid": "mixed"}, "over": ["grid"], "against": {"grid": "batch"}, "by": "ratio"}
    statement |= {"quantity": "seconds_per_epoch"}
    verdict = _verdict(tmp_path / "a", cells, {**statement, "at_most": 0.9})
    assert [pair.value for pair in verdict.pairs] == pytest.approx([1.002 / 2.002, 0.502 / 1.502], rel=1e-5)
    assert [pair.what for pair in verdict.pairs] == [
        "ranks 4, grid 2x2 against grid 4x1",
        "ranks 8, grid 2x4 against grid 8x1",
    ]
    assert verdict.outcome == "agrees"
    falls = {**statement, "along": "ranks", "trend": "decreasing"}
    assert _verdict(tmp_path / "b", cells, falls).outcome == "agrees"


def _diverging(by_method: Mapping[str, list[bool]], rate: float) -> list[Cell]:
    return [
        ({"method": method, "optimizer.lr": rate, "seed": seed}, {"diverges": True} if diverges else {})
        for method, found in by_method.items()
        for seed, diverges in enumerate(found)
    ]


@pytest.fixture(autouse=True)
def _diverging_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that diverge after their epochs, by the option ``diverges`` of `write_run`."""

    def write(folder: Path, *, diverges: bool = False, **options: Any) -> Path:
        write_run(folder, ended=not diverges, **options)
        line = {"kind": "diverged", "step": 41, "epoch": 5, "reason": "the loss became nan"}
        with open(folder / "history.jsonl", "a") as file:
            file.write((json.dumps(line) + "\n") * diverges)
        return folder

    monkeypatch.setattr("reference.finished_runs.write_run", write)


def test_divergence_is_an_outcome(tmp_path: Path) -> None:
    cells = _diverging({"pipedream": [True] * 12, "fr": [False] * 12}, 0.5)
    cells += _diverging({"pipedream": [False] * 12, "fr": [False] * 12}, 0.1)
    statement = {"quantity": "diverged", "where": {"method": "pipedream"}, "against": {"method": "fr"}, "at_least": 0.5}
    assert _verdict(tmp_path / "all", cells, statement).outcome == "does not"
    assert _verdict(tmp_path / "some", cells, {**statement, "any": True}).outcome == "agrees"
    falls = {"quantity": "converged", "along": "optimizer.lr", "trend": "decreasing"}
    verdict = _verdict(tmp_path / "falls", cells, {**falls, "where": {"method": "pipedream"}})
    assert verdict.outcome == "agrees"
    # Equal shares of twelve runs do not show that the true shares are not in the other order.
    assert _verdict(tmp_path / "equal", cells, falls).outcome == "cannot be decided"
    order = {"where": {"method": ["fr", "pipedream"]}, "along": "method"}
    verdict = _verdict(tmp_path / "order", cells, {**falls, **order})
    assert [pair.value for pair in verdict.pairs] == [-1, 0]
    worst = {"quantity": "best_metric", "where": {"optimizer.lr": 0.5, "method": "pipedream"}, "at_least": 0.1}
    assert _verdict(tmp_path / "worst", cells, worst).outcome == "does not"
    cells = _diverging({"fr": [True, False, False]}, 0.5)
    verdict = _verdict(tmp_path / "seeds", cells, {"quantity": "converged", "at_least": 0.9})
    assert (verdict.outcome, verdict.pairs[0].value) == ("cannot be decided", pytest.approx(2 / 3))


def test_times_of_diverged_runs_are_not_compared(tmp_path: Path) -> None:
    cells = _diverging({"pipedream": [True] * 3, "fr": [False] * 3}, 0.5)
    no_times = {"quantity": "seconds_per_step", "where": {"optimizer.lr": 0.5, "method": "pipedream"}, "at_least": 0}
    assert _verdict(tmp_path, cells, no_times).pairs[0].reason.endswith("diverged")


def test_best_of_an_axis_is_compared_unless_the_statement_names_it(tmp_path: Path) -> None:
    cells = _trained({"fr": [0.5, 0.52, 0.5]}, **{"optimizer.lr": 0.5})
    cells += _trained({"fr": [0.9, 0.88, 0.9]}, **{"optimizer.lr": 0.1})
    statement = {"quantity": "best_metric", "at_least": 0.7}
    results = _results(tmp_path / "best", cells, statement, best_over=["optimizer.lr"])
    verdict = _verdict_of(results)
    assert (verdict.outcome, verdict.pairs[0].what) == ("agrees", "optimizer.lr 0.1")
    assert [row["optimizer.lr"] for row in point_rows(results)] == ["0.1"]
    named = {**statement, "where": {"optimizer.lr": [0.5, 0.1]}}
    assert _verdict(tmp_path / "all", cells, named, best_over=["optimizer.lr"]).outcome == "does not"


def test_another_measure_and_epochs_to_a_target(tmp_path: Path) -> None:
    cells = _trained({"fr": [0.8, 0.8, 0.8]})  # half of it before the fourth and last epoch
    other = {"quantity": "best_metric", "against": {"quantity": "last_metric"}, "at_least": 0, "at_most": 0}
    assert _verdict(tmp_path / "other", cells, other).outcome == "agrees"
    for target, epochs in ((0.3, 1), (0.5, 4), (0.9, inf)):
        found = _verdict(tmp_path / f"{epochs}", cells, {"quantity": "epochs_to_target", "at_most": 4}, target=target)
        assert found.pairs[0].value == epochs
        assert found.outcome == ("agrees" if epochs <= 4 else "does not")
    turns = read_run(write_run(tmp_path / "turns", in_process=True))
    assert measured(turns, figures_of(turns), "epochs_to_target", 0.5) == 4
    assert measured(turns, figures_of(turns), "seconds_to_target", 0.5) is None  # no times
    seconds = {"quantity": "seconds_to_target", "at_least": 11.5, "at_most": 12.5}  # epochs of 9, 2, 1 and 3 s
    assert _verdict(tmp_path / "s", cells, {**seconds, "at_most": 15}, target=0.5).pairs[0].value == 15


def test_exact_quantities_need_one_run(tmp_path: Path) -> None:
    cells = [({"width": 8}, {"hidden": [8]}), ({"width": 16}, {"hidden": [16]})]
    ratio = (64 * 16 + 16 + 160 + 10) / (64 * 8 + 8 + 80 + 10)
    statement = {"quantity": "parameters", "where": {"width": 16}, "against": {"width": 8}, "by": "ratio"}
    verdict = _verdict(tmp_path, cells, {**statement, "at_least": ratio, "at_most": ratio})
    assert (verdict.outcome, verdict.pairs[0].low) == ("agrees", ratio)


@pytest.mark.parametrize(
    ("cells", "statement", "reason"),
    [
        (_trained({"fr": [0.9, 0.9]}), {"at_least": 0.5}, "2 seeds, and at least 3 are needed"),
        (_trained({"fr": [0.9] * 3}), {"along": "method", "trend": "increasing"}, "a trend needs two values of method"),
        (_trained({"fr": [0.7, 0.8, 0.9]}), {"at_least": 0.8}, "the interval contains a bound"),
        (
            [*_trained({"fr": [0.9] * 3}), ({"method": "fr", "seed": 3}, UNFINISHED)],
            {"at_least": 0.5},
            "method-fr_seed-3 never run",
        ),
        (_trained({"fr": [0.9] * 3}), {"quantity": "converged", "at_least": 0.5}, "the interval contains a bound"),
        (_trained({"fr": [0.9] * 3}), {"quantity": "least_test_loss", "at_least": 0}, "not recorded"),
        (_trained({"fr": [0.9] * 3}), {"quantity": "waiting_share", "at_least": 0}, "not recorded"),
    ],
)
def test_reasons_for_no_decision(tmp_path: Path, cells: list[Cell], statement: dict[str, Any], reason: str) -> None:
    bounds = {} if {"at_least", "trend"} & set(statement) else {"at_least": 0}
    verdict = _verdict(tmp_path, cells, {"quantity": "best_metric", **bounds, **statement})
    assert verdict.outcome == "cannot be decided"
    assert reason in verdict.pairs[0].reason


def test_disturbed_times_decide_nothing_and_are_marked(tmp_path: Path) -> None:
    cells = _timed({32: {1: [4.0, 4.1, 3.9], 2: [2.0, 2.1, 2.0]}})
    cells[0][1]["lines"] = [load_line(1.5)]
    reason = "of ranks-1_width-32_repeat-1 and its repeats, 1 of 3 runs was disturbed by other processes"
    two = {"where": {"ranks": 2}, "at_least": 0.1}
    for statement in (
        {"quantity": "speed_up", **two},
        {**two, "quantity": "seconds_per_step", "against": {"ranks": 1}},
    ):
        results = _results(tmp_path / statement["quantity"], cells, statement)
        for records in (records_of(results, None), _written(tmp_path, results)):
            (verdict,) = verdicts_of(records, Conclusions.model_validate(results.manifest.conclusions))
            assert (verdict.outcome, verdict.pairs[0].reason) == ("cannot be decided", reason)
    assert [row["time per step, s"][-2:] == " †" for row in point_rows(results)] == [True, False]
    assert _verdict(tmp_path / "alone", cells, {**two, "quantity": "seconds_per_step"}).outcome == "agrees"
    assert _verdict(tmp_path / "exact", cells, {**two, "quantity": "parameters", "where": {}}).outcome == "agrees"


def _written(folder: Path, results: StudyResults) -> StudyRecords:
    """The records of a study, written and read."""
    path = folder / "records.csv"
    path.write_text(records_text(results, "c"))
    return read_records(path)[0]


def test_unfinished_base_is_not_replaced_by_another(tmp_path: Path) -> None:
    cells = _timed({32: {2: [2.0, 2.1, 2.2], 4: [1.0, 1.1, 1.2]}})
    cells += [({"ranks": 1, "width": 32, "repeat": 1}, UNFINISHED)]
    verdict = _verdict(tmp_path, cells, {"quantity": "speed_up", "where": {"ranks": 4}, "at_least": 1})
    assert (verdict.outcome, verdict.pairs[0].value) == ("cannot be decided", None)
    assert verdict.pairs[0].reason == "of the baseline, ranks-1_width-32_repeat-1 never run"


BOUND_LINE = "at_least = 0.5"
STUDY = """
name = "s"
target = 0.5
[axes]
ranks = [1, 2]
widths = [8, 16]
layouts = ["2x1x1:sequential,fr"]
[reduced.axes]
widths = [8]
[[statements]]
says = "A."
quantity = "speed_up"
where = {width = [8, 16]}
at_least = 0.5
"""


def test_values_of_the_full_form_are_missing_in_the_short_one(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY)
    study = load_study(path, reduced=True)
    plan = make_cells(study)
    cells = [(cell.values, {"hidden": [8], "seconds": [1.0]}) for cell in plan.cells]
    runs = {str(number): found for number, found in enumerate(cells)}
    write_study(tmp_path / "r", runs, more={"conclusions": plan.conclusions})
    verdict = _verdict_of(read_results(tmp_path / "r"))
    assert (verdict.outcome, verdict.reason) == ("cannot be decided", "no cell of this form of the study has width 16")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"speed_up"', '"speed"', r"statements\[0\]\.quantity = 'speed': must be 'speed_up', "),
        ("width =", "depth =", r"\[0\]\.where\.depth = .*: not an axis of this study: ranks, grid, method, width"),
        ("[8, 16]}", "[8, 32]}", r"statements\[0\]\.where\.width = 32: not a value of this axis: 8, 16"),
        ("width = [8, 16]}", 'method = "fr", ranks = 1}', r"\[0\]\.where = .*no cell of this study has these"),
        (BOUND_LINE, 'along = "lr"\ntrend = "increasing"', r"statements\[0\]\.along = 'lr': not an axis"),
        (BOUND_LINE, 'trend = "increasing"', r"statements\[0\]\.trend = 'increasing': needs along beside it"),
        (BOUND_LINE, "at_least = 2\nat_most = 1", r"statements\[0\]\.at_least = 2.*at_most = 1"),
        (BOUND_LINE, "", r"statements\[0\]\.at_least = None: is needed"),
        (BOUND_LINE, 'at_least = 0.5\nby = "ratio"', r"statements\[0\]\.by = 'ratio': needs against"),
        (BOUND_LINE, "at_least = 1\nat_most = 1", r"statements\[0\]\.at_most = 1.0: equal bounds are for"),
        (BOUND_LINE, 'at_least = 0.5\nagainst = {quantity = "x"}', r"statements\[0\]\.against\.quantity = 'x'"),
        (BOUND_LINE, 'at_least = 0\nagainst = {method = "sequential"}\nby = "sd"', r"statements\[0\]\.by = 'sd'"),
        (BOUND_LINE, 'at_least = 0\nabout = "me"', r"statements\[0\]\.about = 'me'"),
        ("target = 0.5", "target = 2", r"target = 2: must be a number, at most 1"),
        ("target = 0.5", 'columns = ["seconds_to_target"]', r"columns = 'seconds_to_target': needs target"),
        ("target = 0.5", 'best_over = ["optimizer.lr"]', r"best_over = 'optimizer.lr': not an axis"),
    ],
)
def test_wrong_statements_are_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "s.toml"
    assert STUDY.count(old) == 1
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(SettingError, match=f"^{re.escape(str(path))}: .*{problem}"):
        make_cells(load_study(path))


@pytest.mark.parametrize("name", ["speed_up", "seconds_to_target"])
def test_times_of_ranks_in_one_process_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "s.toml").write_text(
        STUDY.replace('"speed_up"', f'"{name}"').replace("[axes]", "in_process = true\n[axes]")
    )
    with pytest.raises(SettingError, match=rf"statements\[0\].quantity = '{name}': ranks that take turns"):
        make_cells(load_study(tmp_path / "s.toml"))


def test_records_in_a_file_have_the_same_verdicts(tmp_path: Path) -> None:
    """With times against a baseline, diverged cells, unfinished ones, and values that are no numbers."""
    timed = _timed(SCALING), {"quantity": "speed_up", "where": {"ranks": 2}, "along": "width", "trend": "increasing"}
    lost = ({"method": "fr", "optimizer.lr": 0.5, "seed": 9}, UNFINISHED)
    trained = [*_diverging({"fr": [True, False, False], "ddg": [False] * 3}, 0.5), lost]
    shares = {"quantity": "converged", "at_least": 0.5}
    for name, (cells, statement) in {"timed": timed, "shares": (trained, shares)}.items():
        results = _results(tmp_path / name, cells, statement)
        conclusions = Conclusions.model_validate(results.manifest.conclusions)
        path = tmp_path / f"{name}.csv"
        path.write_text(records_text(results, "abc"))
        records, about = read_records(path)
        assert verdicts_of(records, conclusions) == verdicts_of(records_of(results, None), conclusions)
        assert (about["commit"], about["BLAS"], about["form"]) == ("abc", "openblas 1", "full")
    path.write_text("# study: s\nid,state\na,finished\n")
    with pytest.raises(DataError, match=r"shares\.csv: not the records of a study"):
        read_records(path)


def test_statements_about_the_library_are_counted_apart(tmp_path: Path) -> None:
    results = _results(tmp_path, _trained(CLEAR), {**FR, "at_least": 0, "about": "library"})
    assert results.findings.summary == "1 statement of the library: 1 confirmed"


def test_every_form_of_the_report_begins_with_a_contradiction(tmp_path: Path) -> None:
    results = _results(tmp_path, _trained(CLEAR), {**FR, "at_most": 0, "source": "Table <6>"}, columns=["memory"])
    summary = "1 statement of Someone 2020: 1 contradicted by these runs"
    assert results.findings.summary == summary
    ((statement, pair),) = results.findings.lines
    assert statement == "does not: Says. (Table <6>) [best metric, difference: at most 0]"
    assert re.match(r"method fr against method sequential: 0\.91 against 0\.8075: 0\.10[23] \[.*\] of 4 seeds", pair)
    text = markdown_text(results, {})
    assert text.splitlines()[2] == f"**{summary}**"
    assert f"* {statement}\n    * {pair}\n" in text
    latex = latex_text(results)
    assert summary in latex
    assert r"Says. (Table \textless{}6\textgreater{}) & best metric, difference: at most 0 & does not" in latex
    rows = point_rows(results)
    assert [row["best metric"] for row in rows] == ["0.8075 ± 0.0096", "0.91 ± 0.0082"]
    assert [row["memory, B"] for row in rows] == ["0", "0"]


def test_training_losses_are_drawn_where_the_study_names_them(tmp_path: Path) -> None:
    results = _results(tmp_path, _trained({"fr": [0.5] * 3}), {"quantity": "least_train_loss", "at_least": 0})
    plots = draw_plots(results)
    assert set(plots) == {"accuracy", "accuracy-time", "training_loss", "training_loss-time"}
    caption, figure = plots["training_loss"]
    assert caption.startswith("Training loss against epochs")
    assert list(figure.axes[0].lines[0].get_ydata())[:2] == [1, 0.5]


def test_curves_take_the_best_rate_as_the_tables_do(tmp_path: Path) -> None:
    accuracies = {("fr", 0.1): 0.8, ("fr", 0.2): 0.9, ("ddg", 0.1): 0.7, ("ddg", 0.2): 0.6}
    runs = {
        f"{method}-{rate}": (
            {"method": method, "optimizer.lr": rate},
            {"accuracy": accuracy, "settings": {"optimizer": {"lr": rate}}},
        )
        for (method, rate), accuracy in accuracies.items()
    }
    results = made_study(tmp_path, runs, more={"conclusions": {"best_over": ["optimizer.lr"]}})
    names = [curve.name for curve in curves_of(results, "test accuracy")]
    assert names == ["method fr, optimizer.lr 0.2", "method ddg, optimizer.lr 0.1"]


def test_measures_are_columns_of_the_cells(tmp_path: Path) -> None:
    more = {"conclusions": {"columns": ["best_metric", "epochs_to_target"], "target": 0.5}}
    results = made_study(tmp_path, {"a": ({"width": 8}, {"seconds": [4.0]})}, more=more)
    (cell,) = csv.DictReader(io.StringIO(csv_text(results)))
    assert (cell["measure.best_metric"], cell["measure.epochs_to_target"]) == ("0.5", "1")


def test_damaged_conclusions_of_a_folder_are_one_line(tmp_path: Path) -> None:
    results = made_study(tmp_path, {"a": ({}, {})}, more={"conclusions": {"columns": ["colour"]}})
    with pytest.raises(DataError, match="conclusions of my-study: columns: must be 'speed_up', "):
        _ = results.findings
