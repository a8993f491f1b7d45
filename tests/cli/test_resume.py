"""`hybridnn train --resume`, and runs that are stopped by signals."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.checkpoints.writing import CheckpointWriter, PendingCheckpoint
from hybridnn.cli.train_view import TrainView
from hybridnn.config.settings import with_stages
from hybridnn.runs.folder import FolderLock, RunFolder
from hybridnn.runs.resume import settings_of_run
from reference.command_line import Run, SignalAt, assert_same_weights, error_line, output_of, records_of

SAMPLES = ("--data", "synthetic", "--set", "data.rows=200", "--set", "data.synthetic.test_samples=20")
SMALL = (*SAMPLES, "--hidden", "9", "--epochs", "3", "--batch-size", "25", "--set", "output.log_every=1")
TRAIN = ("train", *SMALL, "-q", "--out", "run")
RESUME = ("train", "--resume", "run", "-q")
STEPS_PER_EPOCH, STEPS = 8, 24
SPEEDS = {"samples_per_second", "compute_seconds", "communication_seconds", "waiting_seconds", "seconds_per_step"}
DONE = (0, "run: the run has ended, nothing is left to do\n", "")

Trained = Callable[..., Path]


@pytest.fixture
def whole(trained_once: Trained) -> Path:
    """A run of all epochs without interruption."""
    return trained_once(*SMALL)


@pytest.fixture
def finished(whole: Path, run_hybridnn: Run) -> Path:
    """A copy of that run in the working folder."""
    return Path(shutil.copytree(whole, "run"))


def records(folder: Path | str) -> list[dict[str, Any]]:
    """Step and epoch records of a run, without measured times."""
    return [
        {key: value for key, value in line.items() if key not in SPEEDS | {"instructions"}}
        for line in records_of(folder)
        if line["kind"] in ("step", "epoch")
    ]


def assert_same_run(folder: Path | str, other: Path | str) -> None:
    assert records(folder) == records(other)
    assert_same_weights(folder, other)


def files() -> dict[Path, bytes]:
    """Contents of all files of the run."""
    return {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("number", "exit_code", "step"),
    [(signal.SIGUSR1, 75, 3), (signal.SIGTERM, 75, STEPS - 1), (signal.SIGINT, 130, STEPS_PER_EPOCH)],
)
def test_a_signal_stops_the_run_with_a_checkpoint_that_can_be_resumed(
    run_hybridnn, signal_at, whole, step, number, exit_code
) -> None:
    signal_at(step, number)
    before = signal.getsignal(number)
    code, _, err = run_hybridnn(*TRAIN)
    assert code == exit_code
    assert err.endswith(
        f"stopped by {number.name} after step {step}; wrote run/checkpoints/step-{step:08d}; "
        "continue with: hybridnn train --resume run\n"
    )
    assert not Path("run/weights.npz").exists()
    assert signal.getsignal(number) == before
    Path("run").rename("moved")
    out = output_of(run_hybridnn("train", "--resume", "moved", "-q"))
    assert re.search(rf"^steps +{STEPS}, the last {STEPS - step} in ", out, re.MULTILINE)
    assert_same_run("moved", whole)


def fail(*arguments: object) -> None:
    raise RuntimeError("power failure")


def test_a_crashed_run_resumes_from_the_newest_valid_checkpoint(run_hybridnn, whole, monkeypatch) -> None:
    often = ("training.checkpoint_every=5", "training.keep=2")
    with monkeypatch.context() as broken:
        broken.setattr(TrainView, "on_epoch_end", lambda view, trainer, record: record.epoch == 2 and fail())
        broken.setattr(CheckpointWriter, "begin", CheckpointWriter.write)  # on disk before the next step
        with pytest.raises(RuntimeError, match="power"):
            run_hybridnn(*TRAIN, *(word for setting in often for word in ("--set", setting)))
    # The record of the epoch is in the history already, and must not be repeated.
    assert records("run")[-1]["epoch"] == 2
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000010", "step-00000015"]
    weights = Path("run/checkpoints/step-00000015/layers.0.weight.npy")
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, err = run_hybridnn(*RESUME)
    assert code == 0
    assert "damaged, skipped: " in err
    assert "layers.0.weight.npy" in err
    assert_same_run("run", whole)


def test_the_history_is_on_disk_before_a_checkpoint_and_at_the_end(run_hybridnn, monkeypatch) -> None:
    """And so are the names of the other files before the last line."""
    synced: list[tuple[str, str]] = []

    def sync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        last = records_of("run")[-1] if name in ("history.jsonl", "run") else {}
        synced.append((name, f"{last.get('kind')} {last.get('step')}"))

    monkeypatch.setattr("os.fsync", sync)
    monkeypatch.setattr(CheckpointWriter, "begin", CheckpointWriter.write)  # on disk before the next step
    assert run_hybridnn(*TRAIN, "--set", "training.checkpoint_every=10")[0] == 0
    history = [last for name, last in synced if name == "history.jsonl"]
    assert (history[:2], len(history)) == (["step 10", "step 20"], 4)
    assert synced.index(("history.jsonl", "step 10")) < synced.index((".step-00000010.partial", "None None"))
    assert [name for name, _ in synced[-2:]] == ["run", "history.jsonl"]
    assert synced[-2][1] != history[-1] == "end None"


def test_auto_restarts_a_run_without_checkpoints_that_was_killed_after_its_weights(
    run_hybridnn, whole, monkeypatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "end", fail)
        with pytest.raises(RuntimeError, match="power"):
            run_hybridnn(*TRAIN, "--resume", "auto")
    assert Path("run/weights.npz").exists()
    assert run_hybridnn(*TRAIN, "--resume", "auto")[0] == 0
    assert_same_run("run", whole)


def test_auto_starts_resumes_and_leaves_a_finished_run(run_hybridnn, signal_at, whole, trained_once) -> None:
    signal_at(4, signal.SIGUSR1)
    every = ("--set", "training.checkpoint_every=5", "--set", "training.keep=2")
    assert run_hybridnn(*TRAIN, *every, "--resume", "auto")[0] == 75
    assert run_hybridnn(*TRAIN, *every, "--resume", "auto")[0] == 0
    assert_same_run("run", whole)
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000020", "step-00000024"]
    before = files()
    for again in ((*TRAIN, *every, "--resume", "auto"), RESUME):
        assert run_hybridnn(*again) == DONE
        assert files() == before
    # More epochs than the run had: resumed from its newest checkpoint.
    assert run_hybridnn(*RESUME, "--epochs", "5")[0] == 0
    assert_same_run("run", trained_once(*SMALL, "--epochs", "5"))


@pytest.mark.parametrize("optimizer", [("sgd", "--set", "optimizer.momentum=0.9"), ("adam",)])
@pytest.mark.parametrize("grid", [(), ("--in-process", "2", "--pipeline", "2", "--method", "gpipe")])
def test_a_finished_run_is_trained_further_on_any_grid(run_hybridnn, trained_once, optimizer, grid) -> None:
    options = (*SMALL, "--set", "training.dtype=float64", "--optimizer", *optimizer, "--epochs")
    shutil.copytree(trained_once(*options, "5"), "run")
    assert os.listdir("run/checkpoints") == ["step-00000040"]
    out = output_of(run_hybridnn("train", "--resume", "run", "--epochs", "12", *grid))
    assert "continues from step-00000040: step 40, in epoch 6 after 0 minibatches" in out
    assert_same_weights("run", trained_once(*options, "12"), 1e-10)
    if not grid:
        assert records("run") == records(trained_once(*options, "12"))
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000040", "step-00000096"]
    assert run_hybridnn("report", "run")[0] == 0
    assert "run/weights.npz, step 96" in run_hybridnn("evaluate", "run")[1]


def test_a_run_that_fails_leaves_no_empty_checkpoint_folder(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, "--lr", "1e9")[0] == 1
    assert not Path("run/checkpoints").exists()


def test_a_disk_without_room_for_the_last_checkpoint_keeps_the_results(run_hybridnn, monkeypatch) -> None:
    def full(pending: PendingCheckpoint) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PendingCheckpoint, "require_space", full)
    code, _, err = run_hybridnn(*TRAIN)
    assert code == 0
    assert err == (
        "Warning: checkpoint run/checkpoints/step-00000024 cannot be written: No space left on device; "
        "the run has ended well, but cannot be trained on\n"
    )
    assert not Path("run/checkpoints").exists()
    assert "run/weights.npz, step 24" in run_hybridnn("evaluate", "run")[1]


@pytest.fixture
def stopped(run_hybridnn: Run, signal_at: SignalAt) -> Path:
    """A run that was stopped in its first epoch."""
    signal_at(2, signal.SIGUSR1)
    assert run_hybridnn(*TRAIN)[0] == 75
    return Path("run")


def test_settings_that_change_the_training_are_refused_with_both_values(stopped: Path, run_hybridnn: Run) -> None:
    before = files()
    for options, message in (
        (["--seed", "7"], "training.seed = 7: the run to resume has 0; --force trains on with the new value"),
        (["--hidden", "10"], "model.hidden = [10]: the run to resume has [9]; start a new run for another"),
        (["--hidden", "10", "--force"], "model.hidden = [10]: "),
        (["--set", "data.synthetic.inputs=3"], "data.synthetic.inputs = 3: the run to resume has 16; --force"),
        (["--lr", "0.5"], "optimizer.lr = 0.5: the run to resume has 0.005; --force"),
        (["--batch-size", "20"], "training.batch_size = 20: the run to resume has 25; start a new run"),
        (["--out", "elsewhere"], "output.folder = 'elsewhere': "),
    ):
        assert error_line(run_hybridnn(*RESUME, *options)).startswith(f"Error: {message}")
        assert files() == before
    assert run_hybridnn(*RESUME, "--lr", "0.006", "--force")[0] == 0
    assert [record["learning_rate"] for record in records(stopped) if record["kind"] == "step"][-1] == 0.006
    assert error_line(run_hybridnn(*RESUME, "--lr", "0.1")).startswith("Error: optimizer.lr = 0.1: ")


def test_a_settings_file_that_was_edited_is_compared_with_the_checkpoint(stopped: Path, run_hybridnn: Run) -> None:
    config = stopped / "config.toml"
    written = config.read_text()
    for line, edited, setting in (
        ("lr = 0.005", "lr = 0.05", "optimizer.lr = 0.05"),
        ("momentum = 0.9", "momentum = 0.5", "optimizer.momentum = 0.5"),
        ("seed = 0", "seed = 3", "training.seed = 3"),
        ("batch_size = 25", "batch_size = 20", "training.batch_size = 20"),
        ("shuffle = true", "shuffle = false", "training.shuffle = False"),
        ("standardize = true", "standardize = false", "data.standardize = False"),
    ):
        start, section, rest = written.partition(f"[{setting.partition('.')[0]}]\n")
        assert f"\n{line}\n" in f"\n{rest}", line
        config.write_text(start + section + rest.replace(line, edited, 1))
        assert error_line(run_hybridnn(*RESUME)).startswith(f"Error: {setting}: the run to resume has "), line
    config.write_text(written.replace("lr = 0.005", "lr = 0.05"))
    assert run_hybridnn(*RESUME, "--force")[0] == 0


def test_more_epochs_are_refused_if_the_learning_rate_depends_on_them(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, "--set", "schedule.name=cosine")[0] == 0
    line = error_line(run_hybridnn(*RESUME, "--epochs", "6"))
    assert line.startswith("Error: training.epochs = 6: the run to resume has 3; --force")
    assert run_hybridnn(*RESUME, "--epochs", "6", "--force")[0] == 0


def test_fewer_epochs_than_are_done_change_nothing(run_hybridnn: Run, signal_at: SignalAt) -> None:
    signal_at(20, signal.SIGUSR1)
    assert run_hybridnn(*TRAIN)[0] == 75
    before = files()
    line = error_line(run_hybridnn(*RESUME, "--epochs", "1"))
    assert line == "Error: training.epochs = 1: the run has already done 2"
    assert files() == before


def test_folders_that_cannot_be_used(stopped: Path, run_hybridnn: Run) -> None:
    expected = "holds checkpoints of a run that did not end; continue with --resume run"
    assert expected in error_line(run_hybridnn(*TRAIN))
    lock = FolderLock.take(stopped)
    assert f"is in use by another live job, process {os.getpid()} on " in error_line(run_hybridnn(*RESUME))
    lock.release()
    assert not Path(stopped, ".lock").exists()
    assert error_line(run_hybridnn("train", "--resume", "nowhere")).startswith("Error: --resume = 'nowhere': ")
    without_folder = run_hybridnn("train", *SMALL, "--resume", "auto")
    assert error_line(without_folder).startswith("Error: --resume = 'auto': needs output.folder (--out)")
    (next(Path(stopped, "checkpoints").iterdir()) / "manifest.json").write_text("{}")
    for _ in range(2):  # the folder is released
        line = error_line(run_hybridnn(*RESUME))
        assert line.startswith("Error: run: no checkpoint to go on from: run/checkpoints/step-")


def test_a_damaged_end_of_the_history_is_reported_and_left_out(stopped: Path, run_hybridnn: Run) -> None:
    history = Path(stopped, "history.jsonl")
    with history.open("ab") as file:
        file.write(b"\xff\xfe\x00\n" + history.read_bytes().splitlines(keepends=True)[-1])
    lines = len(history.read_bytes().splitlines())
    code, _, err = run_hybridnn(*RESUME)
    assert code == 0
    assert f"damaged, skipped: run/history.jsonl, line {lines - 1}: " in err
    assert [record["epoch"] for record in records(stopped) if record["kind"] == "epoch"] == [1, 2, 3]


def test_a_data_file_may_be_moved_and_other_data_are_refused(run_hybridnn: Run, signal_at: SignalAt) -> None:
    def write(name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(200, 4))
        np.savez(name, x_train=x, y_train=rng.normal(size=(200, 1)), x_test=x[:20], y_test=np.zeros((20, 1)))

    write("data.npz", 0)
    own = ("train", *SMALL[len(SAMPLES) :], "--file", "data.npz", "-q")
    assert run_hybridnn(*own, "--out", "whole")[0] == 0
    signal_at(5, signal.SIGUSR1)
    assert run_hybridnn(*own, "--out", "run")[0] == 75
    write("data.npz", 1)
    line = error_line(run_hybridnn(*RESUME))
    assert line.count("a file: 200 + 20 samples, 4 features, 1 outputs, regression, SHA-256 ") == 2
    assert line.endswith("; --force trains on with the new data")
    write("moved.npz", 0)
    assert run_hybridnn(*RESUME, "--file", "moved.npz")[0] == 0
    assert_same_run("run", "whole")


def test_an_interrupted_extension_is_evaluated_at_its_checkpoint(finished, run_hybridnn, signal_at) -> None:
    signal_at(30, signal.SIGUSR1)
    assert run_hybridnn(*RESUME, "--epochs", "5")[0] == 75
    assert "run/checkpoints/step-00000030" in run_hybridnn("evaluate", "run")[1]


@pytest.mark.parametrize(
    ("method", "ranks", "stages", "kept"),
    [("gpipe", 2, 2, True), ("gpipe", 1, 1, False), ("gpipe", 6, 3, True), ("pipedream", 2, 3, True)],
)
def test_stages_that_do_not_fit_the_ranks_are_chosen_again(finished, method, ranks, stages, kept) -> None:
    config = finished / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if line.split(" = ")[0] not in ("batch", "pipeline", "method"))
    config.write_text(text.replace("[parallel]\n", f'[parallel]\nmethod = "{method}"\npipeline = 3\n'))
    settings = settings_of_run(finished, [], ranks)
    assert ("method" in settings.parallel.model_fields_set) == kept
    assert with_stages(settings.parallel, ranks).pipeline == stages


def test_truncated_settings_are_refused(finished: Path, run_hybridnn: Run) -> None:
    lines = (finished / "config.toml").read_text().splitlines(keepends=True)
    for kept in range(1, len(lines), 7):
        (finished / "config.toml").write_text("".join(lines[:kept]))
        for command in (("train", "--resume", "run"), ("evaluate", "run")):
            assert "run/config.toml: is cut off" in error_line(run_hybridnn(*command))


@pytest.mark.parametrize("content", ["", "[" * 10_000 + "\n"])
def test_a_finished_run_without_epoch_records_cannot_be_resumed_but_exported(finished, run_hybridnn, content) -> None:
    history = finished / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole.splitlines(keepends=True)[0] + content)
    line = error_line(run_hybridnn(*RESUME))
    assert "run/history.jsonl" in line
    assert "nothing is left to train" in line
    assert run_hybridnn("export", "run", "weights.npz")[0] == 0
    history.write_text(whole)
    assert run_hybridnn(*RESUME, "--epochs", "4")[0] == 0
