"""Run folders: what a run writes, full disks, locks, and folders that are not overwritten."""

import errno
import fcntl
import json
import math
import os
import re
import resource
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridnn.config.settings import Settings, to_toml
from hybridnn.drawing.drawing import round_ticks
from hybridnn.drawing.figures import COLORS
from hybridnn.drawing.learning_curve import logarithmic_ticks
from hybridnn.errors import DataError, EnvironmentProblem, HybridnnError, SettingError
from hybridnn.in_process import run_ranks
from hybridnn.runs.folder import FolderInUse, FolderLock, RunFolder
from hybridnn.runs.records import RunSummary
from hybridnn.runs.report import draw_learning_curve
from hybridnn.runs.run_files import read_epochs, read_records, run_status
from hybridnn.training import layout_choice
from hybridnn.training.records import EpochRecord, Progress, StepRecord
from hybridnn.utils import memory
from reference.trained_runs import epoch_record, train

SVG = "{http://www.w3.org/2000/svg}"

SPEED = {
    "samples_per_second": 1e4,
    "compute_seconds": 0.5,
    "communication_seconds": 0.25,
    "bytes_sent": 7,
    "waiting_seconds": 0.125,
}
STEP = StepRecord(step=1, epoch=1, train_loss=2.5, learning_rate=0.1, **SPEED)  # type: ignore[arg-type]  # by name
EPOCH = epoch_record(1)
SUMMARY = RunSummary("folder", [EPOCH], 1.5, "test accuracy", 0.75, 15)


def test_a_record_is_on_disk_at_once(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "digits") as folder:
        folder.append(STEP)
        line = (tmp_path / "history.jsonl").read_text()
    assert json.loads(line) == {"kind": "step", "step": 1, "epoch": 1, "train_loss": 2.5, "learning_rate": 0.1} | SPEED


def test_full_disk_leaves_settings_and_history_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path, "x") as folder:
        folder.write_config(to_toml(Settings()))
        folder.append(STEP)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunFolder.create(tmp_path, "x", "resume") as folder:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentProblem, match="cannot be written: No space left on device"):
            folder.write_config(to_toml(Settings()))
        with pytest.raises(EnvironmentProblem, match="cannot be written: No space left on device"):
            folder.resume(Progress(step=0), "step-00000000")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@contextmanager
def file_limit() -> Iterator[Callable[[], None]]:
    """Yield a function that lets no file grow, as on a full disk; lifted after the block, for the report of pytest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failed_write_of_a_line_is_raised_once_and_the_folder_is_released(tmp_path: Path) -> None:
    def run() -> None:
        with file_limit() as forbid_growth, RunFolder.create(tmp_path, "x") as folder:
            forbid_growth()
            folder.append(STEP)

    with pytest.raises(EnvironmentProblem, match="cannot be written: File too large"):
        run()
    assert not (tmp_path / ".lock").exists()


def test_values_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "x") as folder:
        folder.append(replace(STEP, train_loss=math.nan, learning_rate=math.inf))
        folder.append(epoch_record(1, train_loss=math.nan))
    line, _ = (tmp_path / "history.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["train_loss"], found["learning_rate"]) == (None, None)
    for record, kind in zip(read_records(tmp_path)[0], (StepRecord, EpochRecord), strict=True):
        assert isinstance(record, kind)
        assert math.isnan(record.train_loss)


def test_finished_run_and_weights_are_not_overwritten(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "x") as folder:
        folder.end(SUMMARY)
    before = (tmp_path / "run" / "history.jsonl").read_text()
    with pytest.raises(SettingError, match="already holds a finished run"):
        RunFolder.create(tmp_path / "run", "x")
    assert (tmp_path / "run" / "history.jsonl").read_text() == before
    (tmp_path / "weights.npz").write_bytes(b"precious")
    for mode in ("new", "again"):
        with pytest.raises(SettingError, match=r"already holds a weights\.npz"):
            RunFolder.create(tmp_path, "x", mode)
    assert (tmp_path / "weights.npz").read_bytes() == b"precious"


def test_unfinished_run_is_started_again(tmp_path: Path) -> None:
    """Its weights are replaced only if that is asked for."""
    with RunFolder.create(tmp_path, "x") as folder:
        folder.append(STEP)
    with RunFolder.create(tmp_path, "x") as folder:
        folder.append(EPOCH)
        folder.write_arrays("weights.npz", {"layers.0.bias": np.zeros(2)})
    assert read_records(tmp_path) == ([EPOCH], "")
    with pytest.raises(SettingError, match=r"already holds a weights\.npz"):
        RunFolder.create(tmp_path, "x")
    assert (tmp_path / "weights.npz").exists()
    with RunFolder.create(tmp_path, "x", "again"):
        assert not (tmp_path / "weights.npz").exists()
        assert run_status(tmp_path) == "unfinished"


def test_folders_without_a_name_are_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create(None, "digits") for _ in range(3)]
    for folder in folders:
        folder.close()
    assert len({folder.path for folder in folders}) == 3
    assert all(folder.path.match("runs/digits-????????-??????*") for folder in folders)


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"output\.folder = '.*file/run' cannot be written: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", "x")


def test_a_link_in_a_prepared_folder_does_not_lead_to_a_file_elsewhere(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(outside)
    with pytest.raises(EnvironmentProblem, match=r"output\.folder = '.*run' cannot be written: \.lock is a link"):
        RunFolder.create(folder, "x")
    (folder / ".lock").unlink()
    for name in ("history.jsonl", "learning_curve.svg"):
        (folder / name).symlink_to(outside)
    with RunFolder.create(folder, "x") as run:
        run.append(STEP)
    draw_learning_curve([EPOCH], folder / "learning_curve.svg")
    assert outside.read_text() == "precious"
    assert len(read_records(folder)[0]) == 1


def test_damaged_history_names_the_line(tmp_path: Path) -> None:
    assert run_status(tmp_path) == "absent"
    with pytest.raises(DataError, match=r"history\.jsonl: cannot be read"):
        read_epochs(tmp_path)
    with RunFolder.create(tmp_path, "x") as folder:
        folder.append(STEP)
    history = tmp_path / "history.jsonl"
    complete = history.read_text()
    history.write_text(complete + '{"kind": "step", "st')  # a line that is cut is left out
    assert read_records(tmp_path) == ([STEP], "")
    for line in ("[]", "3", "{}", "not json", '{"kind": "step", "step": 1}'):
        history.write_text(complete + line + "\n")
        records, damage = read_records(tmp_path)
        assert records == [STEP]
        assert "history.jsonl, line 2: not a record" in damage


@pytest.mark.parametrize(
    "epochs",
    [
        [epoch_record(epoch, train_loss=2.0**-epoch) for epoch in range(1, 60)],  # many orders of magnitude
        [epoch_record(epoch, None, validation_r2=0.5) for epoch in range(1, 3)],
        [epoch_record(1, None, train_loss=math.nan, validation_loss=None)],
    ],
    ids=["many epochs", "regression", "one epoch without test data, nothing finite"],
)
def test_learning_curve_is_a_picture(tmp_path: Path, epochs: list[EpochRecord]) -> None:
    draw_learning_curve(epochs, tmp_path / "curve.svg")
    assert "best" not in (tmp_path / "curve.svg").read_text(), "test samples choose nothing"
    svg = ElementTree.parse(tmp_path / "curve.svg").getroot()
    points = [float(text.attrib["font-size"]) * 0.75 for text in svg.iter(f"{SVG}text")]
    assert min(points) >= 6
    for axis in ("width", "height"):
        assert float(svg.attrib[axis]) >= 170
    values = [record.train_loss for record in epochs if math.isfinite(record.train_loss)]
    lines = [line.attrib["points"].split() for line in svg.iter(f"{SVG}polyline") if line.get("stroke") in COLORS]
    assert max(map(len, lines), default=0) == (max(len(values), 2) if values else 0)
    with pytest.raises(EnvironmentProblem, match=r"curve\.svg/below\.svg cannot be written"):
        draw_learning_curve(epochs, tmp_path / "curve.svg" / "below.svg")


def test_learning_curve_of_few_orders_is_linear_and_of_many_logarithmic(tmp_path: Path) -> None:
    places = []
    for last in (2, 19):
        epochs = [epoch_record(n, train_loss=2.0**-n, validation_loss=None) for n in range(1, last + 1)]
        draw_learning_curve(epochs, tmp_path / "curve.svg")
        svg = ElementTree.parse(tmp_path / "curve.svg").getroot()
        # The first coloured line is the legend's; equal factors are equal distances on a logarithmic axis.
        line = (
            [line for line in svg.iter(f"{SVG}polyline") if line.get("stroke") == COLORS[0]][1].attrib["points"].split()
        )
        places.append([float(point.partition(",")[2]) for point in line])
    steps = np.diff(places[1])
    np.testing.assert_allclose(steps, steps[0], atol=2e-3)
    svg_texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"1e-05", "0.001", "0.1"} & set(svg_texts)


def test_ticks_of_a_plot_are_few_and_round() -> None:
    assert round_ticks(0.03, 0.97, 6) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert round_ticks(-1.2, 1.3, 6) == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert round_ticks(1, 2, 6, whole=True) == [1, 2]
    assert round_ticks(1, 60, 6, whole=True) == [10, 20, 30, 40, 50, 60]
    assert logarithmic_ticks(-1.1, 0.2) == pytest.approx([0.1, 0.2, 0.5, 1])
    assert logarithmic_ticks(-3.1, 0.2) == pytest.approx([1e-3, 1e-2, 0.1, 1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_beyond_the_memory_writes_no_folder(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies that checkpoints are written from count too: those of 6 MB of weights, and of their velocity."""
    monkeypatch.setattr(layout_choice, "LEAST_CHECKED", 0)
    needed = []
    for checkpoint_every in (None, 10):
        free = iter([1e12] * ranks + [0.0] * ranks)  # the parameters fit, the rest does not
        monkeypatch.setattr(memory, "available_memory", lambda free=free: next(free))

        def run(comm: object, every: int | None = checkpoint_every) -> None:
            training = {"epochs": 1, "clip_norm": 1.0, "checkpoint_every": every}
            train(tmp_path / "run", model={"hidden": [20_000]}, training=training)

        with pytest.raises(HybridnnError, match="do not fit this rank's memory") as raised:
            run_ranks(ranks, run)
        assert not (tmp_path / "run").exists()
        found = re.search(r"([0-9.]+) MB are needed and 0 B are free on its node", str(raised.value))
        needed.append(float(found[1]))
    assert needed[1] - needed[0] == pytest.approx(2 * 4e-6 * (65 * 20_000 + 20_001 * 10), abs=1.1)


def test_examining_a_lock_does_not_take_it(tmp_path: Path) -> None:
    assert FolderLock.holder(tmp_path) is None
    with FolderLock.take(tmp_path) as lock:
        assert FolderLock.holder(tmp_path) is not None
        with pytest.raises(FolderInUse) as busy:
            FolderLock.take(tmp_path)
        assert busy.value.holder.startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / ".lock").exists()
    lock.release()  # a second time does nothing


def test_lock_is_taken_while_a_reader_examines_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()
    reader = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    waits: list[float] = []

    def reader_leaves(seconds: float) -> None:
        waits.append(seconds)
        if seconds:
            os.close(reader)

    monkeypatch.setattr(time, "sleep", reader_leaves)
    FolderLock.take(tmp_path).release()
    assert len([seconds for seconds in waits if seconds]) == 1
