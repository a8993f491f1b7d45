"""Reports of a study: curves, tables, plots, warnings, and the files."""

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hybridnn.errors import DataError, SettingError
from hybridnn.study.answer import warnings_of
from hybridnn.study.plots import draw_plots
from hybridnn.study.report import (
    csv_text,
    latex_table,
    latex_text,
    markdown_text,
    point_facts,
    point_rows,
    write_csv,
    write_report,
)
from hybridnn.study.results import StudyResults, point_name, read_results
from hybridnn.study.scaling import compare_points, strong_lines
from hybridnn.study.study_folder import StudyFolder
from reference.finished_runs import load_line, made_study, prediction_line, runs_by_ranks, write_run, write_study


def _cells(results: StudyResults) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(results))))


def test_csv_has_every_cell_with_its_outcome_and_all_figures(tmp_path: Path) -> None:
    runs = {
        f"{ranks}-{repeat}": (
            {"ranks": ranks, "repeat": repeat},
            {"ranks": ranks, "seconds": [taken], "lines": [prediction_line(taken / 20)]},
        )
        for ranks, times in ((1, (4.0, 8.0, 6.0)), (2, (4.0, 2.0, 3.0)))
        for repeat, taken in enumerate(times)
    }
    missing = {"4-0": {"ranks": 4, "repeat": 0}}
    rows = {row["id"]: row for row in _cells(made_study(tmp_path, runs, missing))}
    assert list(rows) == [*runs, "4-0"]
    assert (rows["4-0"]["outcome"], rows["4-0"]["axis.ranks"], rows["4-0"]["speed_up"]) == ("never run", "4", "")
    cell = rows["2-1"]
    numbers = {
        "seconds_per_epoch": 2,
        "predicted_seconds_per_epoch": 1,
        "communicate_share": 0.25,
        "speed_up": 4,  # the base took 8 seconds in this round
        "efficiency": 2,
        "prediction_error": -0.5,
    }
    assert {name: float(cell[name]) for name in numbers} == pytest.approx(numbers)
    expected = {
        "outcome": "finished",
        "axis.repeat": "1",
        "nodes": "1",
        "threads_per_rank": "1",
        "method": "",
        "dtype": "float32",
        "train_loss": "1.0",
        "test_loss": "",
        "bubble_share": "",
        "wait_share": "",
        "hosts": "n1",
        "cpu_model": "Some CPU",
        "cores_per_node": "8",
        "version.hybridnn": "0.0",
    }
    assert {name: cell[name] for name in expected} == expected


def test_markdown_has_a_row_for_every_point_and_the_unfinished_cells(tmp_path: Path, strong: StudyResults) -> None:
    runs = {"a": ({"width": 8}, {"seconds": [2.0]})}
    text = markdown_text(made_study(tmp_path, runs, missing={"b": {"width": 9}}), {})
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert table[2].startswith("| 1 | 1x1 | 1 | 2 | 1.00 | 1.00 | 0.5 |")
    assert "Single runs. Speed-up against the fewest ranks of the same work (1 rank, 2 s per epoch)." in text
    assert "Not finished: 1 cells (1 never run)\n\n* **never run** b\n" in text
    text = markdown_text(strong, {})
    assert "| 2 | 2x1 | 1 | 8 | 2.5 [2, 3] | 2.29 [0.84, 6.22] | 1.14 | 1.25 |" in text
    assert "Medians of up to 3 runs [75% confidence interval, binomial]. Speed-up against the fewest ranks" in text
    assert ", by round [95% confidence interval, Student's t; in sentences, that of all comparisons]." in text


def test_facts_have_units_in_their_names(strong: StudyResults) -> None:
    facts = point_facts(strong)
    assert facts[1]["seconds_per_epoch"] == {"value": 2.5, "low": 2, "high": 3}
    assert facts[1]["seconds_per_step"]["value"] == 0.25
    assert facts[1]["speed_up"]["value"] == pytest.approx((2 * 5 / 3 * 9 / 2.5) ** (1 / 3))
    assert (facts[1]["speed_up_against"], facts[1]["speed_up_against_ranks"]) == ("8-1-0", 1)
    assert facts[1]["values"] == {"ranks": 2, "width": 8}
    json.dumps(facts)


def test_latex_table_has_the_rules_of_booktabs_and_numbers_at_the_right() -> None:
    rows = [
        {"method": "ddg", "speed-up": "1.5 [1.2, 1.8]", "R²": "-"},
        {"method": "fr_2", "speed-up": "-", "R²": "0.9 ± 0.1"},
    ]
    assert latex_table(rows, ["100 % of it"]).splitlines() == [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & speed-up & R\textsuperscript{2} \\",
        r"\midrule",
        r"ddg & 1.5 [1.2, 1.8] & - \\",
        r"fr\_2 & - & 0.9 $\pm$ 0.1 \\",
        r"\bottomrule",
        r"\end{tabular}}",
        r"\par\smallskip{\footnotesize 100 \% of it\par}",
    ]


def test_characters_that_latex_reads_otherwise_are_escaped() -> None:
    text = latex_table([{"a": "".join(f"a{character}b" for character in "&%$#_{}~^\\")}]).splitlines()[5]
    assert text.count("a\\") == 10
    assert not re.search(r"(?<!\\)[&%$#_~^]", text)


def test_report_is_complete_and_has_its_plots(tmp_path: Path) -> None:
    seconds = {(4, 1): 2.0, (2, 2): 1.0, (1, 4): 3.0, (8, 1): 1.5, (4, 2): 0.5}
    runs = {
        f"{b}x{m}": ({"ranks": b * m, "grid": f"{b}x{m}"}, {"ranks": b * m, "grid": (1, b, m), "seconds": [taken]})
        for (b, m), taken in seconds.items()
    }
    results = made_study(tmp_path / "study", runs)
    names, plots = {"results.csv", "tables.tex", "report.md"}, ("strong_scaling", "speed_up", "efficiency", "grids")
    for kind in ("png", "pdf"):
        files = write_report(results, tmp_path / kind, kind)
        assert {path.name for path in files} == names | {f"{plot}.{kind}" for plot in plots}
    files = write_report(results, tmp_path / "report")
    assert {path.name for path in files} == names | {f"{plot}.svg" for plot in plots}
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(path.name for path in files)
    page = (tmp_path / "report" / "report.md").read_text()
    assert re.findall(r"^!\[.+\.\]\((.+)\)$", page, re.MULTILINE) == [f"{plot}.svg" for plot in plots]
    for fact in ("a <b>bold</b> study", "Some MPI & <more>", "5 of 5 finished", "digits, 1,000 training samples"):
        assert fact in page
    assert re.search(r"^\* date: \d{4}-\d\d-\d\d", page, re.MULTILINE)


def test_single_cell_has_tables_and_no_plots(tmp_path: Path) -> None:
    results = made_study(tmp_path, {"only": ({}, {"seconds": [1.0]})})
    files = [path.name for path in write_report(results, tmp_path / "r")]
    assert files == ["results.csv", "tables.tex", "report.md"]


def test_folders_without_a_finished_cell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not the folder of a study"):
        read_results(tmp_path)
    (tmp_path / "study.json").write_text('{"name": "x"}')
    with pytest.raises(DataError, match="not written by `hybridnn study run`"):
        read_results(tmp_path)
    problem = "none of the 2 cells of the study is finished: 1 interrupted, 1 never run; a: its run left no end"
    with pytest.raises(DataError, match=problem):
        made_study(tmp_path, {"a": ({}, {"ended": False})}, missing={"b": {}})


def test_every_form_of_the_report_has_all_states(tmp_path: Path) -> None:
    place = StudyFolder(tmp_path)
    for name, status in (("b", "failed"), ("c", "timed out"), ("d", "interrupted")):
        (place.cell(name)).mkdir(parents=True)
        place.fail(name, status, f"reason of <{name}>")  # type: ignore[arg-type]
    runs = {"a": ({"seed": 1}, {}), "e": ({"seed": 5}, {"ended": False})}
    results = made_study(tmp_path, runs, missing={name: {"seed": seed} for seed, name in enumerate("bcdf", 6)})
    expected = [
        ("e", "interrupted", "its run left no end"),
        ("b", "failed", "reason of <b>"),
        ("c", "timed out", "reason of <c>"),
        ("d", "interrupted", "reason of <d>"),
        ("f", "never run", ""),
    ]
    assert [(name, state.status, state.reason) for name, state in results.unfinished.items()] == expected
    assert results.failures == 4
    text = markdown_text(results, {})
    assert "Not finished: 5 cells (2 interrupted, 1 failed, 1 timed out, 1 never run)" in text
    for name, status, reason in expected:
        assert f"* **{status}** {name}" + f": {reason}" * bool(reason) + "\n" in text


def test_a_speed_up_above_the_ideal_is_a_warning_in_every_form(tmp_path: Path, strong: StudyResults) -> None:
    results = made_study(tmp_path, runs_by_ranks({1: 12.0, 2: 5.0, 4: 1.0}))  # efficiencies of 1.2 and 3
    (warning,) = warnings_of(results)
    assert warning.startswith("ranks 4: efficiency 300%, more than ranks alone can give")
    assert f"**Warning:** {warning}\n" in markdown_text(results, {})
    assert warning.partition(":")[0] in latex_text(results)
    assert [point["efficiency"]["value"] for point in point_facts(results)] == pytest.approx([1, 1.2, 3])
    assert warnings_of(strong) == []


def test_threads_and_nodes_have_columns_and_mixing_them_is_a_warning(tmp_path: Path) -> None:
    runs = {
        "1": ({"ranks": 1, "repeat": 1}, {"threads": 2, "seconds": [3.0]}),
        "4-1": ({"ranks": 4, "repeat": 1}, {"ranks": 4, "nodes": 1, "seconds": [1.0]}),
        "4-2": ({"ranks": 4, "repeat": 2}, {"ranks": 4, "nodes": 2, "seconds": [2.0]}),
    }
    results = made_study(tmp_path, runs)
    threads, nodes = warnings_of(results)
    assert threads.startswith("the runs differ in BLAS threads per rank (1, 2)")
    assert nodes.startswith("ranks 4: repeated on 1, 2 nodes")
    rows = point_rows(results)
    assert list(rows[0])[:4] == ["ranks", "grid", "threads per rank", "nodes"]
    assert [list(row.values())[:4] for row in rows] == [["1", "1x1", "2", "1"], ["4", "4x1", "1", "1, 2"]]
    assert [(row["threads_per_rank"], row["nodes"]) for row in _cells(results)] == [("2", "1"), ("1", "1"), ("1", "2")]
    facts = point_facts(results)
    assert (facts[1]["threads_per_rank"], facts[1]["nodes"]) == ([1], [1, 2])


def test_ranks_that_share_cores_and_differing_hardware_are_warnings(tmp_path: Path) -> None:
    hosts = {
        4: {"ranks": [4]},
        6: {"names": ["a", "b", "c"], "ranks": [2] * 3},
        2: {"ranks": [2], "processors": ["Old CPU"]},
    }
    runs = {
        str(ranks): ({"ranks": ranks}, {"ranks": ranks, "threads": 3, "hosts": {"cores": [8], **of_ranks}})
        for ranks, of_ranks in hosts.items()
    }
    hardware, shared = sorted(warnings_of(made_study(tmp_path, runs)), reverse=True)[-2:]
    assert shared.startswith("4 ranks of 3 threads share 8 cores of a node")
    assert hardware == "cells of one curve ran with different processors: Some CPU (2 cells); Old CPU (1 cell)"


def _folder(path: Path, factor: float, name: str = "s", missing: int = 0) -> Path:
    """Three repeats on 1, 2 and 4 ranks, each of which takes `factor` times as long."""
    cells = []
    for ranks in (1, 2, 4):
        for repeat, seconds in enumerate((8.0, 9.0, 10.0)):
            cells.append({"id": f"{ranks}-{repeat}", "ranks": ranks, "values": {"ranks": ranks, "repeat": repeat}})
            if ranks != missing:
                hosts = {"processors": [f"CPU of {path.name}"]}
                taken = [factor * seconds / ranks]
                write_run(path / "cells" / f"{ranks}-{repeat}", ranks=ranks, seconds=taken, hosts=hosts)
    about = {"format": 1, "name": name, "description": "", "reduced": False, "cells": cells}
    (path / "study.json").write_text(json.dumps(about))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders of a study; the new one has no cell on two ranks."""
    place = tmp_path_factory.mktemp("folders")
    return [_folder(place / "old", 1), _folder(place / "new", 0.5, missing=2)]


def test_points_of_another_folder_are_compared_with_the_equal_ones_of_the_first(folders: list[Path]) -> None:
    results = read_results(*folders)
    rows = {(row["folder"], row["ranks"]): row for row in point_rows(results)}
    assert list(rows) == [("old", "1"), ("old", "2"), ("old", "4"), ("new", "1"), ("new", "4")]
    assert [rows[place]["times as fast"][:10] for place in rows] == ["-", "-", "-", "2.00 [1.55", "2.00 [1.55"]
    assert rows["new", "1"]["seconds per epoch"] == "4.5 [4, 5]"
    assert point_facts(results)[3]["times_as_fast"]["value"] == pytest.approx(2)
    for text in (markdown_text(results, {}), latex_text(results)):
        assert "Times as fast: time per epoch in the first folder divided by the time in this one." in text
    cells = _cells(results)
    assert len(cells) == 18
    missing = [row["outcome"] for row in cells if row["axis.folder"] == "new" and row["axis.ranks"] == "2"]
    assert missing == ["never run"] * 3
    (alone, *_) = point_rows(read_results(*folders[:1]))
    assert "times as fast" not in alone


def test_each_folder_has_its_own_curve_and_base(folders: list[Path]) -> None:
    results = read_results(*folders)
    assert [line.name for line in strong_lines(results)] == ["folder old", "folder new"]
    speed_ups = {name: found.speed_up.value for name, found in compare_points(results).items()}
    assert speed_ups["new/4-0"] == speed_ups["old/4-0"] == 4
    assert [point["processors"] for point in point_facts(results)][::3] == [["CPU of old"], ["CPU of new"]]
    assert warnings_of(results) == []  # curves of different processors are what is compared


def test_folders_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    folders = [_folder(tmp_path / name / "s", 1) for name in "ab"]
    assert [point.values["folder"] for point in read_results(*folders).points][::3] == list(map(str, folders))


def test_folders_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    first, other = _folder(tmp_path / "a", 1), _folder(tmp_path / "b", 1, name="other")
    with pytest.raises(SettingError, match=rf"FOLDER = '{other}': holds another study \(other\) than {first} does"):
        read_results(first, other)
    with pytest.raises(SettingError, match="must be different folders"):
        read_results(first, first / ".." / "a")
    with pytest.raises(DataError, match="is not the folder of a study"):
        read_results(first, tmp_path / "none")


def test_text_of_a_table_is_no_formula_of_a_spreadsheet() -> None:
    assert write_csv([{"cell": "=1+1", "loss": -0.5, "device": "@cpu"}]) == "cell,loss,device\n'=1+1,-0.5,'@cpu\n"


def _disturbed(folder: Path, compares: str = "times") -> StudyResults:
    """A study of 1, 2 and 4 ranks, of which others took a fifth of the cores on 2 and a twentieth on 4."""
    runs = runs_by_ranks({1: 4.0, 2: 3.0, 4: 1.0})
    for ranks, others in (("2", 0.4), ("4", 0.1)):
        runs[ranks][1]["lines"] = [load_line(others)]
    return read_results(write_study(folder / compares, runs, more={"compares": compares}))


def test_disturbed_cells_are_counted_and_crossed(tmp_path: Path) -> None:
    results = _disturbed(tmp_path)
    (said,) = [text for text in warnings_of(results) if "disturbed" in text]
    assert said.startswith("1 of 3 cells disturbed")
    assert said.endswith("processes of others took more than 10% of the cores in use in 2")
    assert f"**Warning:** {said}\n" in markdown_text(results, {})
    assert [row["disturbance"] for row in _cells(results)] == ["", "0.2", "0.05"]
    assert [facts["disturbed_cells"] for facts in point_facts(results)] == [[], ["2"], []]
    plots = draw_plots(results)
    for name, value in (("strong_scaling", 3.0), ("speed_up", 4 / 3), ("efficiency", 2 / 3)):
        caption, figure = plots[name]
        assert "; crosses: disturbed by other processes" in caption
        (cross,) = [line for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
        assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([2], [pytest.approx(value)])
        assert "disturbed" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_undisturbed_cells_have_no_marks(strong: StudyResults) -> None:
    for caption, figure in draw_plots(strong).values():
        assert "disturbed" not in caption
        assert not [line for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
    assert not [text for text in warnings_of(strong) if "disturbed" in text]
    assert "†" not in markdown_text(strong, {}) + latex_text(strong)


@pytest.mark.parametrize("compares", ["times", "training"])
def test_disturbed_times_are_marked_in_the_tables_of_every_study(tmp_path: Path, compares: str) -> None:
    results = _disturbed(tmp_path, compares)
    times = [[row[name] for name in ("seconds per epoch", "speed-up", "efficiency")] for row in point_rows(results)]
    assert times == [["4", "1.00", "1.00"], ["3 †", "1.33 †", "0.67 †"], ["1", "4.00", "1.00"]]
    assert " †: disturbed by other processes.\n" in markdown_text(results, {})
    assert r"3 $\dagger$ & 1.33 $\dagger$ &" in latex_text(results)


def test_ratios_to_a_disturbed_base_and_one_value_of_every_axis_are_marked(tmp_path: Path) -> None:
    runs = runs_by_ranks({1: 4.0, 2: 3.0})
    runs["1"][1]["lines"] = [load_line(0.4)]
    rows = point_rows(made_study(tmp_path / "base", runs))
    assert [(row["seconds per epoch"], row["speed-up"]) for row in rows] == [("4 †", "1.00 †"), ("3", "1.33 †")]
    alone = made_study(tmp_path / "alone", {"only": runs["1"]})
    assert [row["seconds per epoch"] for row in point_rows(alone)] == ["4 †"]


def test_layouts_without_a_method_have_no_dash_in_names(tmp_path: Path) -> None:
    runs = {
        method: ({"ranks": 2, "grid": grid, "method": method}, {"ranks": 2, "grid": sizes, "accuracy": 0.5})
        for method, grid, sizes in (("-", "2x1", (1, 2, 1)), ("ddg", "2x1x1", (2, 1, 1)))
    }
    results = made_study(tmp_path, runs)
    assert [point_name(results, point) for point in results.points] == ["grid 2x1", "grid 2x1x1, method ddg"]


@pytest.mark.skipif(not (shutil.which("tectonic") or shutil.which("pdflatex")), reason="no tectonic and no pdflatex")
def test_tables_compile_and_are_no_wider_than_a_line(tmp_path: Path, strong: StudyResults) -> None:
    odd = "".join(f"a{character}b" for character in "&%$#_{}~^\\|<>±×≤≥µ²\u2013…†")
    (tmp_path / "wide.tex").write_text(latex_table([{f"column {number}": odd for number in range(12)}], [odd]))
    (tmp_path / "tables.tex").write_text(latex_text(_disturbed(tmp_path)) + latex_text(strong))
    first = (tmp_path / "tables.tex").read_text().splitlines()[0]
    packages = re.fullmatch(r"% needs (\\usepackage\{booktabs,graphicx\}); each table is .*", first)
    lines = [r"\documentclass[twocolumn]{article}", packages[1], r"\begin{document}", r"\noindent\input{tables}"]
    lines += [r"\noindent\input{wide}", r"\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(lines))
    found = shutil.which("tectonic")
    command = [found] if found else ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"]
    ended = subprocess.run([*command, "paper.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "paper.pdf").stat().st_size > 1000
    table = r"Overfull \\hbox \(\d{3,}[\d.]*pt"  # a table is wider by hundreds of points, a word of a note by a few
    assert not re.search(table, ended.stdout + ended.stderr), ended.stdout
