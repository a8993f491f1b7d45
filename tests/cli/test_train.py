"""`hybridnn train`: header, tables, summary, progress bar and JSON."""

import io
import json
import os
import pty
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hybridnn.cli.output import terminal_width
from hybridnn.cli.train_view import MOST_ROWS, TrainView, epoch_table, speed_of
from hybridnn.comm.threads import THREAD_VARIABLES
from hybridnn.diagnostics.hosts import Hosts
from hybridnn.pipeline.execution.chunk_runtime import MemoryBreakdown
from hybridnn.pipeline.layout import Layout
from hybridnn.runs import report as run_report
from hybridnn.runs.records import RunHeader, RunSummary
from hybridnn.runs.report import draw_learning_curve
from hybridnn.runs.run_files import read_epochs, run_status
from hybridnn.training.records import EpochRecord, StepRecord
from mpi_runner.slowness import deadline
from reference.command_line import Run, error_line, output_of, read_terminal
from reference.trained_runs import epoch_record

HEADER = RunHeader(
    ranks=4,
    layout=Layout(((2, 2),), (2,)),
    memory=(MemoryBreakdown(1000, 500, 0, 2000, 3000),),
    nodes=1,
    threads_per_rank=1,
    threads_why="small products",
    data="digits",
    train_samples=1438,
    test_samples=359,
    sizes=(64, 256, 10),
    parameters=19210,
    dtype="float32",
    optimizer="sgd",
    versions={"NumPy": "2.4.0"},
    folder="runs/[odd] name",
)


def _play(view: TrainView, epochs: list[EpochRecord], part: str = "test") -> None:
    trainer: Any = SimpleNamespace(last_epoch=len(epochs), last_step=15 * len(epochs))
    with closing(view):
        view.show_header(HEADER)
        for record in epochs:
            view.on_epoch_begin(trainer, record.epoch)
            view.on_train_batch_end(
                trainer, StepRecord(record.step, record.epoch, record.train_loss, 0.1, 1e4, 0.5, 0.25, 7)
            )
            view.on_epoch_end(trainer, record)
        accuracy = epochs[-1].validation_accuracy
        parts = {"compute": 0.75, "communicate": 0.25}
        summary = RunSummary("runs/[odd] name", epochs, 12.5, "test accuracy", accuracy, 30, evaluated=part)
        view.show_summary(replace(summary, shares=parts))


def test_text_shows_header_epochs_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    _play(TrainView(), [epoch_record(1, 0.75), epoch_record(2, 0.625)])
    text = capsys.readouterr().out
    header, _, rest = text.partition("\n\n")
    for fact in (
        "4 on 1 node, 1 thread per rank (small products)",
        "2 x 2 (batch x model)",
        "64-256-10, 19,210 parameters, float32",
    ):
        assert fact in header
    assert "runs/[odd] name" in header
    rows = [line.split() for line in rest.splitlines() if line.startswith("     ")]
    assert rows[0] == ["train", "test", "test", "samples", "compute", "comm."]
    epochs = [row[:4] for row in rows if row[0] in ("1", "2")]
    assert epochs == [["1", "1.0000", "1.1000", "0.7500"], ["2", "0.5000", "0.5500", "0.6250"]]
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "test accuracy  0.6250\n" in rest
    assert "best" not in rest, "test samples choose nothing"
    assert "time           compute 75%, communicate 25%\n" in rest
    assert "3.0 MB by all ranks" in rest
    assert "\x1b" not in text


def test_a_faster_layout_stands_in_the_header_of_parallel_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    advised = replace(HEADER, layout_advice="predicted 0.6 times as fast as 1 rank (hybridnn plan)", in_process=False)
    for header, quiet, shown in (
        (advised, False, True),
        (advised, True, False),
        (replace(advised, in_process=True), False, False),
        (replace(advised, layout_advice=""), False, False),
    ):
        TrainView(quiet=quiet).show_header(header)
        assert ("layout " in capsys.readouterr().out) == shown


def test_layout_auto_is_the_setting(run_hybridnn: Run) -> None:
    assert "parallel.auto" in run_hybridnn("train", "--help")[1]
    assert error_line(run_hybridnn("train", "--layout", "fast")).startswith("Error: --layout = 'fast': auto;")


def test_idle_time_of_a_pipeline_is_its_bubble_and_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    times = ((1.0, 3.0, 2.5), (1.0, 5.0, 4.0))
    names = ("compute_seconds", "communication_seconds", "waiting_seconds")
    epochs = [epoch_record(number, **dict(zip(names, taken, strict=True))) for number, taken in enumerate(times, 1)]
    summary = RunSummary("run", epochs, 12.5, "test accuracy", 0.5, 30)
    two_stages = replace(HEADER, layout=Layout.uniform([(1, 1)] * 2, 2), memory=HEADER.memory * 2)
    texts = []
    for header in (two_stages, HEADER):
        view = TrainView(quiet=True)
        view.show_header(header)
        view.show_summary(summary)
        texts.append(capsys.readouterr().out)
    rows = [line.split() for line in texts[0].splitlines() if line.startswith("     ")]
    # One minibatch on two stages: half of the time is the bubble of the schedule.
    assert [row[5:9] for row in rows if row[0] in "12"] == [
        ["1.000", "0.500", "2.000", "0.500"],
        ["1.000", "1.000", "3.000", "1.000"],
    ]
    assert "bubble" not in texts[1]
    TrainView(as_json=True).show_summary(summary)
    assert json.loads(capsys.readouterr().out)["waiting_seconds"] == 6.5


HOSTS = Hosts(("n1",), (4,), ("CPU",), (2,), "none", "mpirun", "blas")
CROWDED = "cores 4 ranks of 1 thread share 2 cores of a node and take turns: their times are no scaling"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"device": "gpu", "device_why": "Imaginary, GPU 0 of 1"}, "device gpu (Imaginary, GPU 0 of 1)"),
        ({"transport": "nccl", "transport_why": "one each"}, "transport nccl (one each)"),
        ({"device_why": "CuPy is not installed; install it"}, "device cpu (CuPy is not installed)"),
        ({"hosts": HOSTS}, CROWDED),
        ({"hosts": replace(HOSTS, cores=(4,))}, None),
        ({"hosts": HOSTS, "in_process": True}, None),
    ],
)
def test_header_has_lines_where_there_is_something_to_say(capsys, changes, line) -> None:
    TrainView().show_header(replace(HEADER, **changes))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert line is None or line in lines
    assert any(shown.startswith("cores") for shown in lines) == (line == CROWDED)


def test_quiet_shows_only_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    _play(TrainView(quiet=True), [epoch_record(1), epoch_record(2)])
    text = capsys.readouterr().out
    assert "grid" not in text
    assert "train loss 1 " not in text
    assert "test accuracy  0.5000\n" in text


def test_json_is_one_object_with_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    _play(TrainView(as_json=True), [epoch_record(1, 0.75), epoch_record(2, 0.625, train_loss=float("nan"))])
    result = json.loads(capsys.readouterr().out)
    assert result["header"]["sizes"] == [64, 256, 10]
    assert [epoch["train_loss"] for epoch in result["epochs"]] == [1.0, None]
    assert (result["metric"], result["best_metric"], result["best_epoch"]) == (0.625, None, None)
    assert (result["compute_seconds"], result["communication_seconds"]) == (6.0, 2.0)
    assert (result["samples_per_second"], result["bytes_sent"]) == (1000.0, 3_000_000)
    assert result["folder"] == "runs/[odd] name"
    _play(TrainView(as_json=True), [epoch_record(1, 0.75), epoch_record(2, 0.625)], "validation")
    result = json.loads(capsys.readouterr().out)
    assert (result["best_metric"], result["best_epoch"]) == (0.75, 1)
    _play(TrainView(as_json=True), [epoch_record(1, None)], "validation")  # without a metric
    result = json.loads(capsys.readouterr().out)
    assert (result["best_metric"], result["best_epoch"]) == (None, None)


def test_totals_weight_the_speed_of_an_epoch_by_its_time() -> None:
    slow = epoch_record(1, samples_per_second=100.0, compute_seconds=9.0, communication_seconds=1.0)
    fast = epoch_record(2, samples_per_second=1000.0, compute_seconds=1.0, communication_seconds=0.0)
    assert speed_of([slow, fast]).samples_per_second == pytest.approx(2000 / 11)


def test_table_of_a_long_run_stays_short_and_shows_best_and_last() -> None:
    epochs = [epoch_record(epoch, 0.9 if epoch == 77 else 0.5) for epoch in range(1, 502)]
    shown = list(epoch_table(epochs, "validation", best=epochs[76]).columns[0].cells)
    assert len(shown) <= MOST_ROWS + 3
    assert {"1", "77", "501"} <= set(shown)


def test_progress_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_width(io.StringIO()) is None
    controller, terminal = pty.openpty()
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(read_terminal, controller)
        with os.fdopen(terminal, "w") as stream:
            assert terminal_width(stream) == 80
            monkeypatch.setattr(sys, "stdout", stream)
            _play(TrainView(), [epoch_record(1), epoch_record(2)])
            monkeypatch.undo()
        text = shown.result(timeout=deadline(30))
    os.close(controller)
    assert "\x1b[?25l" in text  # the cursor is hidden ...
    assert "\x1b[?25h" in text  # ... and shown again
    assert "epoch 2/2" in text
    assert "30/30" in text


def test_one_rank_trains_and_leaves_a_finished_folder(run_hybridnn, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(run_report, "draw_learning_curve", draw_learning_curve)  # not the fixture's substitute
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    options = ["--epochs", "2", "--hidden", "16", "--out", "here", "--format", "json"]
    result = json.loads(output_of(run_hybridnn("train", *options)))
    folder = tmp_path / "here"
    assert (result["header"]["sizes"], result["folder"]) == ([64, 16, 10], "here")
    assert (result["header"]["threads_per_rank"], result["header"]["threads_why"]) == (1, "small products")
    assert run_status(folder) == "finished"
    accuracies = [record.validation_accuracy for record in read_epochs(folder)[0]]
    assert accuracies == [epoch["validation_accuracy"] for epoch in result["epochs"]]
    assert {"config.toml", "weights.npz"} <= set(os.listdir(folder))
    assert (folder / "learning_curve.svg").read_text().startswith("<svg ")
    assert "already holds a finished run" in error_line(run_hybridnn("train", "--out", "here"))
