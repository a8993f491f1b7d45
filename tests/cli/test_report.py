"""`hybridnn report`: one run, tables and curves of several, stalls, the JSON with the same figures, and wrong input."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hybridnn.diagnostics.rank_state import JobState, RankState
from hybridnn.drawing.figures import COLUMN
from hybridnn.drawing.learning_curve import RunCurves, compared_curves
from reference.command_line import Run, error_line, output_of, records_of
from reference.finished_runs import load_line, measured_line, prediction_line, write_run
from reference.pictures import least_points
from reference.stalls import collective, progress, rank_state

SMALL = ("--hidden", "6", "--batch-size", "200", "--set", "training.dtype=float64")
PARTS = ("--set", "data.validation_fraction=0.2")
MEASURED = measured_line(1, 0.2, instructions={"forward": 0.04}, communication=0.09, waiting=0.03)


def _rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def test_one_run_shows_measured_beside_predicted(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks=2, seconds=[2.0], lines=[prediction_line(0.25), MEASURED])
    out = output_of(run_hybridnn("report", "run"))
    rows = _rows(out)
    assert ["whole step", "200", "250", "+25%"] in rows
    assert ["forward", "40", "50", "+25%"] in rows
    assert ["update", "-", "25", "-"] in rows
    assert ["bytes per step", "500", "4,000"] in rows
    assert "compute 20%, overhead 20%, communicate 45%, bubble 0%, wait 15%" in out
    assert "limited by: communicate, 45% of the step" in out
    assert "predicted for laptop, ms per step: computing 150, communication 50" in out
    assert "2 x 1 (batch x model)" in out
    write_run(tmp_path / "plain", seconds=[2.0])
    code, out, _ = run_hybridnn("report", "plain")
    assert (code, "predicted for" in out) == (0, False)
    assert ["whole step", "200", "-", "-"] in _rows(out)


def test_several_runs_make_a_scaling_table(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "four", ranks=4, grid=(1, 2, 2), seconds=[1.0], lines=[prediction_line(0.05)])
    write_run(tmp_path / "one", seconds=[3.0], lines=[prediction_line(0.2)], communication_share=0.0)
    write_run(tmp_path / "two", ranks=2, seconds=[2.0])
    out = output_of(run_hybridnn("report", "four", "one", "two"))
    assert "64-64-64-10 on digits (1,000 training samples); speed-up against 1 rank, one\n" in out
    rows = _rows(out)
    assert ["1", "1x1", "-", "100", "3", "1.00", "100%", "1.00", "-33%", "0%", "-", "-"] in rows
    assert ["2", "2x1", "-", "100", "2", "1.50", "75%", "-", "-", "25%", "-", "-"] in rows
    assert ["4", "2x2", "-", "100", "1", "3.00", "75%", "4.00", "-50%", "25%", "-", "-"] in rows
    assert "2 ranks, 2x1: communicate and wait, 25% of the step" in out


def test_repeats_are_one_row_with_intervals(run_hybridnn: Run, tmp_path: Path) -> None:
    for seed, seconds in enumerate((4.0, 6.0, 5.0)):
        write_run(tmp_path / f"one-{seed}", seconds=[seconds], settings={"training": {"seed": seed}})
        write_run(tmp_path / f"two-{seed}", ranks=2, seconds=[2.0], settings={"training": {"seed": seed}})
    folders = [f"{name}-{seed}" for name in ("one", "two") for seed in range(3)]
    rows = _rows(run_hybridnn("report", *folders)[1])
    assert [row[:7] for row in rows if row[0] == "2"] == [
        ["2", "2x1", "-", "100", "2 [2, 2]", "2.47 [1.49, 4.08]", "123% [74%, 204%]"]
    ]
    (group,) = json.loads(run_hybridnn("report", *folders, "--format", "json")[1])["groups"]
    intervals = [run["speed_up_interval"] for run in group["runs"]]
    assert intervals == [[None, None]] * 3 + [pytest.approx([1.49, 4.08], abs=0.005)] * 3


def test_json_has_the_same_figures_with_units(run_hybridnn: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "one", seconds=[3.0], lines=[prediction_line(0.2), MEASURED])
    write_run(tmp_path / "two", ranks=2, seconds=[2.0])
    out = run_hybridnn("report", "one", "--format", "json")[1]
    facts = json.loads(out)
    assert (facts["seconds_per_step"], facts["predicted_seconds_per_step"]) == (0.3, 0.2)
    assert facts["bytes_per_step"] == 500
    forward = facts["instructions"][0]
    assert (forward["kind"], forward["seconds_per_step"]) == ("forward", 0.04)
    assert forward["predicted_seconds_per_step"] == pytest.approx(0.04)
    assert forward["error"] == pytest.approx(0.0)
    assert facts["prediction"]["machine"] == "laptop"
    (group,) = json.loads(run_hybridnn("report", "one", "two", "--format", "json")[1])["groups"]
    assert (group["base"], group["base_ranks"]) == ("one", 1)
    assert [run["speed_up"] for run in group["runs"]] == [1, 1.5]
    assert [run["efficiency"] for run in group["runs"]] == [1, 0.75]
    assert group["runs"][1]["predicted_speed_up"] is None


def test_doubtful_machine_files_are_named(run_hybridnn: Run, tmp_path: Path) -> None:
    doubt = "the machine file laptop is doubtful, and so are its predictions: noise 85%, more than 30%"
    for name, ranks in (("one", 1), ("two", 2)):
        write_run(tmp_path / name, ranks=ranks, lines=[prediction_line(0.2, doubt=doubt)])
    for folders in (["one"], ["one", "two"]):
        assert run_hybridnn("report", *folders)[1].count(f"warning: {doubt}\n") == 1
    assert json.loads(run_hybridnn("report", "one", "--format", "json")[1])["prediction"]["doubt"] == doubt
    (group,) = json.loads(run_hybridnn("report", "one", "two", "--format", "json")[1])["groups"]
    assert group["warnings"] == [doubt]


def test_a_disturbed_run_is_named(run_hybridnn: Run, tmp_path: Path) -> None:
    for others, is_named in ((0.1, False), (0.5, True)):
        write_run(tmp_path / str(others), ranks=2, lines=[load_line(others)])
        warning = "warning: disturbed: processes of others took 25% of the cores in use\n"
        assert (warning in run_hybridnn("report", str(others))[1]) == is_named


def test_disturbed_runs_are_marked_among_several(run_hybridnn: Run, tmp_path: Path) -> None:
    for ranks, others in ((1, 0.0), (2, 0.5)):
        write_run(tmp_path / str(ranks), ranks=ranks, seconds=[4 / ranks] * 2, lines=[load_line(others)])
    text = run_hybridnn("report", "1", "2")[1]
    assert [line.split()[4:8] for line in text.splitlines() if line.split()[1:2] in (["1x1"], ["2x1"])] == [
        ["4", "1.00", "100%", "-"],
        ["2", "†", "2.00", "†"],
    ]
    assert "\n†: disturbed by other processes.\n" in text
    (group,) = json.loads(run_hybridnn("report", "1", "2", "--format", "json")[1])["groups"]
    assert [run["disturbance"] for run in group["runs"]] == [0, 0.25]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["foreign"], "foreign is not a run folder"),
        (["done", "unfinished"], "unfinished: the run did not end well, or is still running"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(run_hybridnn, tmp_path, arguments, message) -> None:
    (tmp_path / "foreign").mkdir()
    write_run(tmp_path / "done")
    write_run(tmp_path / "unfinished", ended=False)
    assert message in error_line(run_hybridnn("report", *arguments))


def test_runs_that_differ_in_more_than_the_layout_have_tables_of_their_own_or_warnings(run_hybridnn, tmp_path) -> None:
    write_run(tmp_path / "one", seconds=[7.9], threads=2)
    write_run(tmp_path / "two", ranks=2, seconds=[1.0])
    write_run(tmp_path / "small", ranks=2, seconds=[1.0], batch_size=50)
    out = output_of(run_hybridnn("report", "one", "two", "small"))
    network = "64-64-64-10 on digits (1,000 training samples)"
    assert [line for line in out.splitlines() if "speed-up against" in line] == [
        f"{network}, training.batch_size = 100; speed-up against 1 rank, one",
        f"{network}, training.batch_size = 50; speed-up against 2 ranks, small",
    ]
    assert "warning: 2 ranks, 2x1: efficiency 395%, " in out
    assert "warning: the runs differ in BLAS threads per rank (1, 2): " in out
    (group,) = json.loads(run_hybridnn("report", "one", "two", "--format", "json")[1])["groups"]
    assert len(group["warnings"]) == 2
    assert [run["threads_per_rank"] for run in group["runs"]] == [2, 1]


@pytest.fixture
def runs(run_hybridnn: Run, trained_once: Callable[..., Path]) -> Run:
    """Two runs that differ in four settings, and one of them again."""
    shutil.copytree(trained_once(*SMALL, "--epochs", "2"), "a")
    shutil.copytree(trained_once(*SMALL, "--epochs", "3", "--lr", "0.2", "--optimizer", "adam", "--hidden", "6,6"), "b")
    shutil.copytree("a", "again")
    return run_hybridnn


def test_settings_that_differ_and_figures_of_the_histories(runs: Run) -> None:
    text = output_of(runs("report", "a", "b", "--format", "json"))
    first, second = json.loads(text)["runs"]
    assert {"optimizer.name", "optimizer.lr", "training.epochs"} <= set(first["settings"])
    assert (first["settings"]["training.epochs"], second["settings"]["training.epochs"]) == (2, 3)
    assert (first["settings"]["optimizer.name"], second["settings"]["optimizer.name"]) == ("sgd", "adam")
    assert not {name for name in first["settings"] if name.startswith("output.")}
    for name, found in (("a", first), ("b", second)):
        epochs = records_of(name, "epoch")
        expected = {"run": name, "ranks": 1, "epochs": len(epochs), "validation_samples": None}
        expected |= {f"test_{key}": epochs[-1][f"validation_{key}"] for key in ("loss", "accuracy", "r2")}
        expected["train_loss"] = epochs[-1]["train_loss"]
        expected |= {"best": None, "best_epoch": None, "diverged": ""}  # test samples choose nothing
        assert {key: found[key] for key in expected} == expected


def test_the_best_epoch_is_that_of_the_monitor(runs: Run, trained_once: Callable[..., Path]) -> None:
    run = trained_once(*SMALL, "--epochs", "3", "--lr", "0.9", "--set", "training.monitor=validation_loss", *PARTS)
    found = json.loads(runs("report", "a", str(run), "--format", "json")[1])["runs"][1]
    losses = [record["validation_loss"] for record in records_of(run, "epoch")]
    assert (found["best_validation_loss"], found["best_epoch"]) == (min(losses), 1 + losses.index(min(losses)))


def test_text_has_a_column_for_each_run_and_no_empty_rows(runs: Run) -> None:
    text = output_of(runs("report", "a", "b", "again"))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[0] == ["a", "b", "again"]
    assert ["training.epochs", "2", "3", "2"] in lines
    assert ["optimizer.name", "sgd", "adam", "sgd"] in lines
    assert ["model.hidden", "6", "6,", "6", "6"] in lines
    assert "r2" not in text
    assert "diverged" not in text
    found = json.loads(runs("report", "a", "again", "--format", "json")[1])["runs"]
    assert [item["settings"] for item in found] == [{}, {}]
    assert "absent is not a run folder" in error_line(runs("report", "a", "absent"))


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures of the plots of a test."""
    found: list[Figure] = []

    def draw(curves: Sequence[RunCurves]) -> Figure:
        found.append(compared_curves(curves))
        return found[-1]

    monkeypatch.setattr("hybridnn.drawing.learning_curve.compared_curves", draw)
    return found


def _legend(figure: Figure) -> str:
    (legend,) = figure.legends
    return " ".join(" ".join(text.get_text().split()) for text in legend.get_texts())


def test_a_plot_has_the_curves_of_all_runs(runs: Run, plotted: list[Figure]) -> None:
    text = output_of(runs("report", "a", "b", "--plot", "curves.svg"))
    assert text == runs("report", "a", "b")[1]
    (figure,) = plotted
    assert [axes.get_title() for axes in figure.axes] == ["Test loss, mean per sample", "Test accuracy"]
    legend = _legend(figure)
    assert re.search(r"a: .*optimizer\.name sgd.* b: .*optimizer\.name adam", legend)
    assert "momentum" not in legend, "a setting of one optimizer alone"
    assert re.search(r"training\.epochs 2.*training\.epochs 3", legend)
    for axes in figure.axes:
        assert len({line.get_color() for line in axes.get_lines()}) == 2
        assert [line.get_xdata().tolist() for line in axes.get_lines()] == [[1, 2], [1, 2, 3]]
    assert figure.get_figwidth() == COLUMN
    assert least_points(figure) >= 6


def test_curves_of_a_plot_differ_in_their_dashes(runs: Run, plotted: list[Figure]) -> None:
    shutil.copytree("a", "third")
    assert runs("report", "a", "again", "third", "b", "--plot", "curves.svg")[0] == 0
    for axes in plotted[0].axes:
        lines = axes.get_lines()
        assert [line.is_dashed() for line in lines] == [False, True, True, True]
        values = [line.get_ydata().tolist() for line in lines]
        assert values[0] == values[1] == values[2] != values[3]


def test_files_of_a_plot(runs: Run) -> None:
    for name, begin in (("curves.png", b"\x89PNG"), ("curves.pdf", b"%PDF")):
        assert runs("report", "a", "again", "--plot", name)[0] == 0
        assert Path(name).read_bytes().startswith(begin)
    assert error_line(runs("report", "a", "--plot", "x.svg")).startswith(
        "Error: --plot = 'x.svg': needs two run folders"
    )
    assert "a name that ends with .png, .svg, .pdf" in error_line(runs("report", "a", "b", "--plot", "x.jpg"))
    assert "there is no folder none" in error_line(runs("report", "a", "b", "--plot", "none/x.svg"))


def test_runs_that_diverged_are_named(run_hybridnn, trained_once, plotted) -> None:
    good = str(trained_once(*SMALL, "--epochs", "2"))
    diverging = ("train", *SMALL, "--batch-size", "20", "--epochs", "3", "--lr", "1e30", "--out", "bad")
    assert run_hybridnn(*diverging)[0] == 1
    text = run_hybridnn("report", "bad")[1]
    assert "diverged in epoch 1: the loss became" in text
    assert "no times: diverged in its first epoch" in text
    code, text, err = run_hybridnn("report", good, "bad", "--plot", "curves.svg")
    assert (code, err, "nan" in text) == (0, "", False)
    assert "1 rank, 1x1: diverged in its first epoch; diverged at step" in text
    assert "diverged in epoch 1" in _legend(plotted[0])
    found = json.loads(run_hybridnn("report", good, "bad", "--format", "json")[1])["runs"]
    assert [item["diverged"] for item in found] == ["", "epoch 1"]
    assert (found[1]["train_loss"], found[1]["seconds_per_epoch"]) == (None, None)
    shutil.copytree("bad", "worse")
    error = error_line(run_hybridnn("report", "bad", "worse", "--plot", "none.svg"))
    assert "none of the runs has an epoch with an evaluation" in error
    assert not Path("none.svg").exists()


RANKS = tuple(range(4))


def waiting(rank: int) -> RankState:
    sums = progress("world", RANKS, "allreduce (sum) of 800 bytes float64", entered=57)
    return rank_state(rank, 4, collective("allreduce", "world", RANKS, 57), sums)


def write_stall(folder: Path, *states: RankState, unresponsive: str | None = None) -> Path:
    """Write the states, and the record of the job where the ranks that do not answer are given."""
    stall = folder / "stall"
    stall.mkdir(parents=True)
    for state in states:
        (stall / f"rank-{state.rank}.json").write_text(json.dumps(asdict(state)))
    if unresponsive is not None:
        job = JobState(4, 60.0, ("a", "b", "c", "host n9, process 99"), unresponsive)
        (stall / "job.json").write_text(json.dumps(asdict(job)))
    return folder


@pytest.fixture
def stalled_run(tmp_path: Path) -> Path:
    return write_stall(
        tmp_path / "run",
        waiting(0),
        waiting(1),
        rank_state(2, 4, None, progress("world", RANKS, entered=56), idle_seconds=7.25),
        waiting(3),
        unresponsive="",
    )


def test_report_and_json_have_the_findings_and_all_states(run_hybridnn: Run, stalled_run: Path) -> None:
    out = output_of(run_hybridnn("report", str(stalled_run)))
    call = "allreduce 57 of group world (ranks 0-3), 800 bytes float64"
    assert out.splitlines()[:6] == [
        "=== the job stood still: no rank finished anything for 60 s; the job was ended ===",
        "* rank 2 (host n1, process 4002) did not arrive: outside of communication, at slow.py:12 in on_step; "
        "ranks 0, 1, 3 wait in allreduce 57 of group world (ranks 0-3)",
        "",
        f"ranks    {'waits for':{len(call)}}  since  finished last  at",
        f"0, 1, 3  {call}  60 s   forward 3      hybridnn/training/engine.py:204 in _check",
        f"2        {'nothing: outside of communication':{len(call)}}  7.2 s  forward 3      slow.py:12 in on_step",
    ]
    assert f"{stalled_run}/stall/rank-*.json" in out
    facts = json.loads(run_hybridnn("report", str(stalled_run), "--format", "json")[1])
    facts = facts["stall"]
    (finding,) = facts["findings"]
    assert (finding["kind"], finding["ranks"]) == ("outside", [2])
    assert [state["rank"] for state in facts["states"]] == [0, 1, 2, 3]
    assert (facts["states"][0]["call"]["number"], facts["job"]["limit"]) == (57, 60.0)


def test_a_rank_without_a_file_or_listed_as_unresponsive_gave_no_sign(run_hybridnn: Run, tmp_path: Path) -> None:
    """The state of a rank that was stopped after it had answered is ignored."""
    missing = write_stall(tmp_path / "missing", *map(waiting, range(3)))
    listed = write_stall(tmp_path / "listed", *map(waiting, RANKS), unresponsive="3")
    for folder, rank in ((missing, "rank 3"), (listed, "rank 3 (host n9, process 99)")):
        code, out, _ = run_hybridnn("report", str(folder))
        assert (code, f"* {rank} gave no sign: " in out) == (0, True)


def test_a_run_that_finished_after_a_stall_has_the_figures_too(run_hybridnn: Run, stalled_run: Path) -> None:
    write_run(stalled_run)
    out = run_hybridnn("report", str(stalled_run))[1]
    assert out.startswith("=== the job stood still")
    assert "limited by: " in out
