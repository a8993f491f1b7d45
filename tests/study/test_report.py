"""Reports of a study: medians, scaling lines, maps, curves, and the files."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.image import imread

from hybridnn.errors import DataError
from hybridnn.study.cell_table import csv_text
from hybridnn.study.report_files import markdown_text, page_html, point_facts, point_rows, write_report
from hybridnn.study.report_plots import curves_of, draw_plots
from hybridnn.study.results import StudyResults, read_results
from hybridnn.study.scaling import compare_points, warnings_of
from hybridnn.study.study_folder import StudyFolder
from hybridnn.utils.figures import FORMATS, figure_bytes
from reference.finished_runs import made_study, prediction_line, strong_study, write_study
from reference.pictures import least_points


def _grids(folder: Path) -> StudyResults:
    seconds = {(4, 1): 2.0, (2, 2): 1.0, (1, 4): 3.0, (8, 1): 1.5, (4, 2): 0.5}
    runs = {
        f"{b}x{m}": (
            {"ranks": b * m, "grid": f"{b}x{m}"},
            {"ranks": b * m, "grid": (1, b, m), "seconds": [taken]},
        )
        for (b, m), taken in seconds.items()
    }
    return made_study(folder, runs)


def test_curves_are_medians_against_epochs_and_summed_time(tmp_path: Path) -> None:
    runs = {
        f"seed-{seed}": ({"seed": seed}, {"seconds": times, "accuracy": accuracy})
        for seed, (times, accuracy) in enumerate([((2, 1), 0.5), ((4, 3), 0.7), ((3, 2), 0.9)])
    }
    results = made_study(tmp_path, runs)
    (curve,) = curves_of(results, "test accuracy")
    assert (curve.epochs, curve.values) == ((1, 2), (0.35, 0.7))
    assert curve.seconds == (3, 5)  # of 2, 4, 3 and of 3, 7, 5
    assert set(draw_plots(results)) == {"accuracy"}
    assert curves_of(results, "test R²") == []


def test_study_that_names_training_losses_draws_them(tmp_path: Path) -> None:
    runs = {"a": ({}, {"seconds": (1, 1)}), "b": ({"seed": 1}, {"seconds": (1, 1)})}
    results = made_study(tmp_path, runs, more={"conclusions": {"columns": ["least_train_loss"]}})
    plots = draw_plots(results)
    assert set(plots) == {"accuracy", "training_loss"}
    caption, figure = plots["training_loss"]
    assert caption.startswith("Training loss against epochs")
    assert list(figure.axes[0].lines[0].get_ydata()) == [1, 0.5]


def test_training_that_diverged_ends_with_a_cross_and_a_count(tmp_path: Path) -> None:
    runs = {
        "a-0": ({"width": 8, "seed": 0}, {"seconds": (1, 1), "ended": False}),
        "a-1": ({"width": 8, "seed": 1}, {"seconds": (1, 1, 1), "accuracy": 0.7}),
        "b": ({"width": 9, "seed": 0}, {"seconds": (1, 1, 1)}),
    }
    with open(write_study(tmp_path, runs) / "cells/a-0/history.jsonl", "a") as file:
        file.write(json.dumps({"kind": "diverged", "step": 25, "epoch": 3, "reason": "the loss became nan"}) + "\n")
    results = read_results(tmp_path)
    curves = curves_of(results, "test accuracy")
    assert [(curve.name, curve.epochs) for curve in curves] == [
        ("width 8, 1 of 2 diverged", (1, 2, 3)),
        ("width 9", (1, 2, 3)),
    ]
    (axes, *_) = draw_plots(results)["accuracy"][1].axes
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3], [0.7])
    assert cross.get_color() == axes.lines[0].get_color()


def test_curves_take_the_best_rate_as_the_tables_do(tmp_path: Path) -> None:
    runs = {
        f"{method}-{rate}": (
            {"method": method, "optimizer.lr": rate},
            {"accuracy": accuracy, "settings": {"optimizer": {"lr": rate}}},
        )
        for method, rate, accuracy in (("fr", 0.1, 0.8), ("fr", 0.2, 0.9), ("ddg", 0.1, 0.7), ("ddg", 0.2, 0.6))
    }
    results = made_study(tmp_path, runs, more={"conclusions": {"best_over": ["optimizer.lr"]}})
    names = [curve.name for curve in curves_of(results, "test accuracy")]
    assert names == ["method fr, optimizer.lr 0.2", "method ddg, optimizer.lr 0.1"]


def test_results_of_trainings_are_said_to_be_means_over_seeds(tmp_path: Path) -> None:
    runs = {f"{seed}": ({"seed": seed}, {"ranks": 2, "in_process": True}) for seed in range(3)}
    untimed = markdown_text(made_study(tmp_path / "untimed", runs))
    assert "\nResults of the training are means ± standard deviations over up to 3 seeds.\n" in untimed
    timed = markdown_text(made_study(tmp_path / "timed", {name: (values, {}) for name, (values, _) in runs.items()}))
    assert "Medians of up to 3 runs [95% confidence interval, bootstrap]. Results of the training are means" in timed


def test_ranks_that_share_cores_are_a_warning(tmp_path: Path) -> None:
    runs = {
        "4": ({"ranks": 4}, {"ranks": 4, "threads": 3, "hosts": {"ranks": [4], "cores": [8]}}),
        "6": (
            {"ranks": 6},
            {"ranks": 6, "threads": 3, "hosts": {"names": ["a", "b", "c"], "ranks": [2] * 3, "cores": [8]}},
        ),
        "2": ({"ranks": 2}, {"ranks": 2, "threads": 3, "hosts": {"ranks": [2], "cores": [8]}}),
    }
    (warning,) = [text for text in warnings_of(made_study(tmp_path, runs)) if "take turns" in text]
    assert warning.startswith("4 ranks of 3 threads share 8 cores of a node")


def test_csv_has_the_measures_that_statements_and_columns_name(tmp_path: Path) -> None:
    conclusions = {"columns": ["best_metric", "epochs_to_target"], "target": 0.5}
    results = made_study(tmp_path, {"a": ({}, {"accuracy": 0.5})}, more={"conclusions": conclusions})
    (row,) = csv.DictReader(io.StringIO(csv_text(results)))
    assert (float(row["measure.best_metric"]), float(row["measure.epochs_to_target"])) == (0.5, 4)


def test_weight_errors_are_drawn_for_every_distance(tmp_path: Path) -> None:
    errors = {1: ([], []), 2: ([0.5], [0.25]), 3: ([0.75, 1.5], [0.125, 1.0])}
    lines = [
        {
            **{"kind": "step", "step": step, "epoch": 1, "train_loss": 1.0, "learning_rate": 0.1, "bytes_sent": 0},
            **dict.fromkeys(("samples_per_second", "compute_seconds", "communication_seconds"), 1.0),
            **{"stale_error": stale, "predicted_error": predicted},
        }
        for step, (stale, predicted) in errors.items()
    ]
    _, figure = draw_plots(made_study(tmp_path, {"a": ({}, {"lines": lines})}))["weight_error"]
    found = {line.get_label(): [list(line.get_xdata()), list(line.get_ydata())] for line in figure.axes[0].lines}
    assert found == {
        "stale, 1 ahead": [[2, 3], [0.5, 0.75]],
        "predicted, 1 ahead": [[2, 3], [0.25, 0.125]],
        "stale, 2 ahead": [[3], [1.5]],
        "predicted, 2 ahead": [[3], [1.0]],
    }


def test_curves_take_the_fastest_layout_of_a_network(tmp_path: Path) -> None:
    runs = {
        f"{ranks}": ({"ranks": ranks}, {"ranks": ranks, "seconds": [taken, taken]}) for ranks, taken in ((1, 4), (2, 3))
    }
    (curve,) = curves_of(made_study(tmp_path, runs), "training loss")
    assert (curve.name, curve.seconds, curve.values) == ("ranks 2", (3, 6), (1, 0.5))


def test_csv_has_a_line_for_every_cell(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(strong_study(tmp_path)))))
    assert len(rows) == 18
    first = rows[0]
    assert (first["id"], first["axis.width"], first["axis.repeat"], first["ranks"]) == ("8-1-0", "8", "0", "1")
    assert float(first["seconds_per_epoch"]) == 4
    assert float(first["predicted_seconds_per_epoch"]) == 2
    assert float(first["communication_share"]) == 0.25
    assert first["waiting_share"] == ""


def test_markdown_has_a_row_for_every_point_and_the_unfinished_cells(tmp_path: Path) -> None:
    runs = {"a": ({"width": 8}, {"seconds": [2.0]})}
    text = markdown_text(made_study(tmp_path, runs, missing={"b": {"width": 9}}))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert table[2].startswith("| 1 | 1x1 | 1 | 2 | 1.00 | 1.00 | 0.5 |")
    assert "Single runs. Speed-up against the fewest ranks of the same work (1 rank, 2 s per epoch)." in text
    assert "Not finished: 1 cells (1 never run)\n\n* **never run** b\n" in text
    strong = markdown_text(strong_study(tmp_path / "strong"))
    assert "| 1 | 1x1 | 1 | 8 | 5 [4, 9] | 1.00 | 1.00 | 2.5 |" in strong
    assert "| 2 | 2x1 | 1 | 8 | 2.5 [2, 3] | 2.00 [1.33, 4.50] | 1.00 | 1.25 |" in strong
    assert "Medians of up to 3 runs [95% confidence interval, bootstrap]. Speed-up against the fewest ranks" in strong


def test_facts_have_units_in_their_names(tmp_path: Path) -> None:
    facts = point_facts(strong_study(tmp_path))
    assert facts[1]["seconds_per_epoch"] == {"value": 2.5, "low": 2, "high": 3}
    assert facts[1]["seconds_per_step"]["value"] == 0.25
    assert facts[1]["speed_up"]["value"] == 2
    assert (facts[1]["speed_up_against"], facts[1]["speed_up_against_ranks"]) == ("8-1-0", 1)
    assert facts[1]["values"] == {"ranks": 2, "width": 8}
    json.dumps(facts)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "action", "data")]
        if tag not in ("img", "meta"):
            self.open.append(tag)
        assert tag not in ("script", "link", "iframe", "b", "more")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_report_is_complete_and_its_page_self_contained(tmp_path: Path) -> None:
    results = _grids(tmp_path / "study")
    files = write_report(results, tmp_path / "report")
    assert {path.name for path in files} == {
        *("results.csv", "curves.csv", "tables.md", "tables.tex"),
        *(f"{name}.{kind}" for name in ("strong_scaling", "grids") for kind in ("png", "svg", "pdf")),
        "index.html",
    }
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(path.name for path in files)
    page = (tmp_path / "report" / "index.html").read_text()
    links = _Links()
    links.feed(page)
    assert links.open == []
    assert len(links.found) == 2
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert not re.search(r"https?:|url\(|@import", page)
    for fact in ("a <b>bold</b> study", "Some MPI & <more>", "5 of 5 finished", "digits, 1,000 training samples"):
        assert fact in links.text
    assert re.search(r"date\d{4}-\d\d-\d\d", links.text)


def test_plots_are_pictures(tmp_path: Path) -> None:
    for results in (strong_study(tmp_path / "a"), _grids(tmp_path / "b")):
        for caption, figure in draw_plots(results).values():
            assert caption.endswith(".")
            assert imread(BytesIO(figure_bytes(figure, "png"))).std() > 0
            assert least_points(figure) >= 6, caption


def test_strong_scaling_shows_efficiencies_and_explains_all_lines(tmp_path: Path) -> None:
    results = strong_study(tmp_path)
    figure = draw_plots(results)["strong_scaling"][1]
    _, speed_ups, efficiencies = figure.axes
    assert efficiencies.get_ylabel() == "efficiency"
    found = sorted(value for bars in efficiencies.containers for value in bars.lines[0].get_ydata())
    assert found == pytest.approx(sorted(one.efficiency.value for one in compare_points(results).values()))
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[-2:] == ["predicted", "ideal"]
    assert len(entries) == len(set(entries)) == 2 + len(efficiencies.containers)
    assert speed_ups.yaxis.get_major_formatter()(2.0**-7) == "1/128"


def test_equal_results_give_equal_small_files_with_text_as_text(tmp_path: Path) -> None:
    first, second = (draw_plots(strong_study(tmp_path / name))["strong_scaling"][1] for name in "ab")
    for kind in FORMATS:
        content = figure_bytes(first, kind)
        assert content == figure_bytes(second, kind)
        assert len(content) < (15_000 * len(first.axes) if kind != "png" else 100_000)
    assert b">seconds per epoch</text>" in figure_bytes(first, "svg")


def test_single_cell_has_tables_and_no_plots(tmp_path: Path) -> None:
    results = made_study(tmp_path, {"only": ({}, {"seconds": [1.0]})})
    assert draw_plots(results) == {}
    assert [path.name for path in write_report(results, tmp_path / "r")] == [
        *("results.csv", "tables.md", "tables.tex", "index.html")
    ]


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not the folder of a study"):
        read_results(tmp_path)
    (tmp_path / "study.json").write_text('{"name": "x"}')
    with pytest.raises(DataError, match="not written by `hybridnn study run`"):
        read_results(tmp_path)


def test_study_without_a_finished_cell_is_refused(tmp_path: Path) -> None:
    problem = "none of the 2 cells of the study is finished: 1 interrupted, 1 never run; a: its run left no end"
    with pytest.raises(DataError, match=problem):
        made_study(tmp_path, {"a": ({}, {"ended": False})}, missing={"b": {}})


def _with_every_state(folder: Path) -> StudyResults:
    """A study with a finished cell and one unfinished cell of each status."""
    place = StudyFolder(folder)
    for name, status in (("b", "failed"), ("c", "timed out"), ("d", "interrupted")):
        (place.cell(name)).mkdir(parents=True)
        place.fail(name, status, f"reason of <{name}>")  # type: ignore[arg-type]
    runs = {"a": ({"seed": 1}, {}), "e": ({"seed": 5}, {"ended": False})}
    return made_study(folder, runs, missing={name: {"seed": seed} for seed, name in enumerate("bcdf", 6)})


def test_every_form_of_the_report_has_all_states(tmp_path: Path) -> None:
    results = _with_every_state(tmp_path)
    expected = [
        ("e", "interrupted", "its run left no end"),
        ("b", "failed", "reason of <b>"),
        ("c", "timed out", "reason of <c>"),
        ("d", "interrupted", "reason of <d>"),
        ("f", "never run", ""),
    ]
    assert [(cell.id, cell.state.status, cell.state.reason) for cell in results.unfinished] == expected
    assert results.failures == 4
    text = markdown_text(results)
    assert "Not finished: 5 cells (2 interrupted, 1 failed, 1 timed out, 1 never run)" in text
    page = page_html(results, {})
    for name, status, reason in expected:
        assert f"* **{status}** {name}" + f": {reason}" * bool(reason) + "\n" in text
        row = f">{status}</th><td>{name}</td><td>{reason.replace('<', '&lt;').replace('>', '&gt;')}</td></tr>"
        assert f'<th class="{status.replace(" ", "-")}"{row}' in page


def test_a_speed_up_above_the_ideal_is_a_warning(tmp_path: Path) -> None:
    runs = {
        str(ranks): ({"ranks": ranks}, {"ranks": ranks, "seconds": [taken]})
        for ranks, taken in ((1, 12.0), (2, 5.0), (4, 1.0))  # efficiencies of 1.2 and 3
    }
    results = made_study(tmp_path, runs)
    (warning,) = warnings_of(results)
    assert warning.startswith("ranks 4: efficiency 300%, more than ranks alone can give")
    assert f"**Warning:** {warning}\n" in markdown_text(results)
    assert f'<p class="warning">Warning: {warning}</p>' in page_html(results, {})
    assert [point["efficiency"]["value"] for point in point_facts(results)] == pytest.approx([1, 1.2, 3])
    assert warnings_of(strong_study(tmp_path / "strong")) == []


def test_a_faster_grid_of_as_many_ranks_is_no_warning(tmp_path: Path) -> None:
    runs = {
        "4x1": ({"grid": "4x1"}, {"ranks": 4, "grid": (1, 4, 1), "seconds": [12.0]}),
        "2x2": ({"grid": "2x2"}, {"ranks": 4, "grid": (1, 2, 2), "seconds": [5.0]}),
    }
    results = made_study(tmp_path, runs, baseline={"grid": "4x1"})
    assert sorted(point["efficiency"]["value"] for point in point_facts(results)) == pytest.approx([1, 2.4])
    assert warnings_of(results) == []


def test_threads_and_nodes_have_columns_and_mixing_them_is_a_warning(tmp_path: Path) -> None:
    runs = {
        "1": ({"ranks": 1, "repeat": 1}, {"threads": 2, "seconds": [3.0]}),
        "4-1": ({"ranks": 4, "repeat": 1}, {"ranks": 4, "nodes": 1, "seconds": [1.0]}),
        "4-2": ({"ranks": 4, "repeat": 2}, {"ranks": 4, "nodes": 2, "seconds": [2.0]}),
    }
    results = made_study(tmp_path, runs)
    assert warnings_of(results) == [
        "the runs differ in BLAS threads per rank (1, 2): speed-ups compare different numbers of cores",
        "ranks 4: repeated on 1, 2 nodes, whose times are not the same",
    ]
    rows = point_rows(results)
    assert list(rows[0])[:4] == ["ranks", "grid", "threads per rank", "nodes"]
    assert [list(row.values())[:4] for row in rows] == [["1", "1x1", "2", "1"], ["4", "4x1", "1", "1, 2"]]
    found = csv.DictReader(io.StringIO(csv_text(results)))
    assert [(row["threads_per_rank"], row["nodes"]) for row in found] == [("2", "1"), ("1", "1"), ("1", "2")]
    facts = point_facts(results)
    assert (facts[1]["threads_per_rank"], facts[1]["nodes"]) == ([1], [1, 2])


def test_csv_has_every_cell_with_its_outcome_and_all_figures(tmp_path: Path) -> None:
    runs = {
        f"{ranks}-{repeat}": (
            {"ranks": ranks, "repeat": repeat},
            {"ranks": ranks, "seconds": [taken], "lines": [prediction_line(taken / 20)]},
        )
        for ranks, times in ((1, (4.0, 8.0, 6.0)), (2, (4.0, 2.0, 3.0)))
        for repeat, taken in enumerate(times)
    }
    results = made_study(tmp_path, runs, missing={"4-0": {"ranks": 4, "repeat": 0}})
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(csv_text(results)))}
    assert list(rows) == [*runs, "4-0"]
    assert (rows["4-0"]["outcome"], rows["4-0"]["axis.ranks"], rows["4-0"]["speed_up"]) == ("never run", "4", "")
    cell = rows["2-1"]
    assert (float(cell["speed_up"]), float(cell["efficiency"])) == (3.0, 1.5)  # the base has a median of 6 seconds
    assert float(cell["prediction_error"]) == pytest.approx(-0.5)
    expected = {
        "outcome": "finished",
        "nodes": "1",
        "threads_per_rank": "1",
        "method": "",
        "dtype": "float32",
        "train_loss": "1.0",
        "test_loss": "",
        "hosts": "n1",
        "cpu_model": "Some CPU",
        "cores_per_node": "8",
        "version.hybridnn": "0.0",
    }
    assert {name: cell[name] for name in expected} == expected


def test_differing_hardware_is_a_warning_in_every_form(tmp_path: Path) -> None:
    runs = {
        name: ({"ranks": ranks}, {"ranks": ranks, "hosts": {"processors": [name]}, "seconds": [2.0 / ranks]})
        for name, ranks in (("old", 1), ("new", 2))
    }
    results = made_study(tmp_path / "study", runs)
    warning = "cells of one curve ran with different processors: old (1 cell); new (1 cell)"
    assert warnings_of(results) == [warning]
    write_report(results, tmp_path / "report")
    for name in ("tables.md", "tables.tex", "index.html"):
        assert warning in (tmp_path / "report" / name).read_text()


def test_curves_file_has_the_points_of_the_plots(tmp_path: Path) -> None:
    write_report(strong_study(tmp_path / "study"), tmp_path / "report")
    rows = list(csv.DictReader((tmp_path / "report" / "curves.csv").open()))
    seconds = {(row["curve"], row["x"]): float(row["y"]) for row in rows if row["y_name"] == "seconds per epoch"}
    assert seconds["width 8", "1"] == 5
    assert seconds["width 8", "2"] == 2.5
    assert seconds["predicted, width 16", "4"] == 1.0
