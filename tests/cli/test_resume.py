"""`hybridnn train --resume`, and runs that are stopped by signals."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn.checkpoints.writing import PendingCheckpoint
from hybridnn.cli.train_view import TrainView
from hybridnn.config.settings import with_stages
from hybridnn.runs.folder import RunFolder
from hybridnn.runs.lock import FolderLock
from hybridnn.runs.resume import settings_of_run
from hybridnn.training.records import StepRecord
from reference.command_line import Run

TRAIN = ("train", "--data", "synthetic", "--hidden", "9", "--epochs", "3", "--batch-size", "25", "-q")
SMALL = (
    "--set",
    "data.synthetic.samples=200",
    "--set",
    "data.synthetic.test_samples=20",
    "--set",
    "output.log_every=1",
)
STEPS_PER_EPOCH, STEPS = 8, 24
SPEEDS = (
    "samples_per_second",
    "compute_seconds",
    "communication_seconds",
    "waiting_seconds",
    "seconds_per_step",
    "instructions",
)


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Send a signal to this process when a step has been logged, once."""
    original = TrainView.on_step

    def arm(step: int, number: int) -> None:
        sent: list[int] = []

        def on_step(view: TrainView, record: StepRecord) -> None:
            original(view, record)
            if record.step == step and not sent:
                sent.append(number)
                os.kill(os.getpid(), number)

        monkeypatch.setattr(TrainView, "on_step", on_step)
        monkeypatch.setattr("hybridnn.runs.hooks.AGREEMENT_SECONDS", 0.0)  # after every step

    return arm


@pytest.fixture(autouse=True)
def _foreground() -> Iterator[None]:
    """Restore Python's own handler of SIGINT, which a process that a script starts in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def records(folder: str) -> list[dict[str, Any]]:
    """Step and epoch records of a run, without measured times."""
    lines = [json.loads(line) for line in (Path(folder) / "history.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in SPEEDS}
        for line in lines
        if line["kind"] in ("step", "epoch")
    ]


def assert_same_run(folder: str, other: str) -> None:
    assert records(folder) == records(other)
    with np.load(Path(folder) / "weights.npz") as found, np.load(Path(other) / "weights.npz") as expected:
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [3, STEPS_PER_EPOCH, STEPS - 1])
def test_a_signal_stops_the_run_with_a_checkpoint_that_can_be_resumed(
    run_hybridnn: Run, signal_at: Callable[[int, int], None], step: int, number: signal.Signals, exit_code: int
) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "whole")[0] == 0
    signal_at(step, number)
    before = signal.getsignal(number)
    code, _, err = run_hybridnn(*TRAIN, *SMALL, "--out", "run")
    assert code == exit_code
    assert err.endswith(
        f"stopped by {number.name} after step {step}; wrote run/checkpoints/step-{step:08d}; "
        "go on with: hybridnn train --resume run\n"
    )
    assert not Path("run/weights.npz").exists()
    assert signal.getsignal(number) == before
    Path("run").rename("moved")
    code, out, _ = run_hybridnn("train", "--resume", "moved", "-q")
    assert code == 0
    assert re.search(rf"^steps +{STEPS}, the last {STEPS - step} in ", out, re.MULTILINE)
    assert_same_run("moved", "whole")


def test_a_crashed_run_resumes_from_the_newest_valid_checkpoint(
    run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "whole")[0] == 0
    often = (
        "--set",
        "training.checkpoint_every=5",
        "--set",
        "training.checkpoint_async=false",
        "--set",
        "training.keep=2",
    )
    with monkeypatch.context() as broken:

        def on_epoch(view: TrainView, record: Any) -> None:
            if record.epoch == 2:
                raise RuntimeError("power failure")

        broken.setattr(TrainView, "on_epoch", on_epoch)
        with pytest.raises(RuntimeError, match="power"):
            run_hybridnn(*TRAIN, *SMALL, *often, "--out", "run")
    # The record of the epoch is in the history already, and must not be repeated.
    assert records("run")[-1]["epoch"] == 2
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000010", "step-00000015"]
    weights = Path("run/checkpoints/step-00000015/layers.0.weight.npy")
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, err = run_hybridnn("train", "--resume", "run", "-q")
    assert code == 0
    assert "damaged, passed over: " in err
    assert "layers.0.weight.npy" in err
    assert_same_run("run", "whole")


def test_auto_restarts_a_run_without_checkpoints_that_was_killed_after_its_weights(
    run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = (*TRAIN, *SMALL, "--out", "run", "--resume", "auto")
    with monkeypatch.context() as broken:

        def end(folder: RunFolder, summary: Any) -> None:
            raise RuntimeError("power failure")

        broken.setattr(RunFolder, "end", end)
        with pytest.raises(RuntimeError, match="power"):
            run_hybridnn(*auto)
    assert Path("run/weights.npz").exists()
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "whole")[0] == 0
    assert run_hybridnn(*auto)[0] == 0
    assert_same_run("run", "whole")


def test_auto_starts_resumes_and_leaves_a_finished_run(
    run_hybridnn: Run, signal_at: Callable[[int, int], None]
) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "whole")[0] == 0
    auto = (*TRAIN, *SMALL, "--out", "run", "--resume", "auto")
    signal_at(4, signal.SIGUSR1)
    assert run_hybridnn(*auto)[0] == 75
    assert run_hybridnn(*auto)[0] == 0
    assert_same_run("run", "whole")
    before = Path("run/weights.npz").stat().st_mtime_ns
    code, out, _ = run_hybridnn(*auto)
    assert (code, out) == (0, "run: the run has ended, nothing is left to do\n")
    assert Path("run/weights.npz").stat().st_mtime_ns == before
    # More epochs than the run had: resumed from its newest checkpoint.
    assert run_hybridnn(*TRAIN, *SMALL, "--epochs", "5", "--out", "longer")[0] == 0
    assert run_hybridnn("train", "--resume", "run", "--epochs", "5", "-q")[0] == 0
    assert_same_run("run", "longer")


FLOAT64 = ("--set", "training.dtype=float64")
OPTIMIZERS = (("--optimizer", "sgd", "--set", "optimizer.momentum=0.9"), ("--optimizer", "adam"))


def assert_close_weights(folder: str, other: str) -> None:
    with np.load(Path(folder) / "weights.npz") as found, np.load(Path(other) / "weights.npz") as expected:
        for name in expected.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_finished_run_is_trained_further(run_hybridnn: Run, optimizer: tuple[str, ...]) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, *FLOAT64, *optimizer, "--epochs", "40", "--out", "whole")[0] == 0
    assert run_hybridnn(*TRAIN, *SMALL, *FLOAT64, *optimizer, "--epochs", "20", "--out", "run")[0] == 0
    assert os.listdir("run/checkpoints") == ["step-00000160"]
    code, out, _ = run_hybridnn("train", "--resume", "run", "--epochs", "40")
    assert code == 0
    assert "goes on from step-00000160: step 160, in epoch 21 after 0 minibatches" in out
    assert_close_weights("run", "whole")
    assert records("run") == records("whole")
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000160", "step-00000320"]
    assert run_hybridnn("report", "run")[0] == 0
    assert "run/weights.npz, step 320" in run_hybridnn("evaluate", "run")[1]


def test_a_finished_run_is_trained_further_on_a_grid(run_hybridnn: Run) -> None:
    few = ("--set", "data.synthetic.samples=50", "--set", "data.synthetic.test_samples=20")
    two, grid = ("--in-process", "2"), ("--pipeline", "2", "--method", "gpipe")
    options = (*TRAIN, *two, *few, *FLOAT64, "--set", "training.keep_best=false")
    for number, optimizer in enumerate(OPTIMIZERS):
        whole, parts = f"whole-{number}", f"run-{number}"
        assert run_hybridnn(*options, *optimizer, *grid, "--epochs", "40", "--out", whole)[0] == 0
        assert run_hybridnn(*options, *optimizer, "--epochs", "20", "--out", parts)[0] == 0
        assert run_hybridnn("train", "--resume", parts, "-q", *two, *grid, "--epochs", "40")[0] == 0
        assert_close_weights(parts, whole)


def test_a_finished_run_without_more_epochs_is_unchanged(run_hybridnn: Run) -> None:
    every = ("--set", "training.checkpoint_every=5", "--set", "training.keep=2")
    assert run_hybridnn(*TRAIN, *SMALL, *every, "--out", "run")[0] == 0
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000020", "step-00000024"]
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for options in (("--resume", "run"), ("--resume", "auto", "--out", "run", *SMALL, *TRAIN[1:], *every)):
        code, out, _ = run_hybridnn("train", *options)
        assert (code, out) == (0, "run: the run has ended, nothing is left to do\n")
        assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_more_epochs_are_refused_if_the_learning_rate_depends_on_them(run_hybridnn: Run) -> None:
    cosine = ("--set", "schedule.name=cosine")
    assert run_hybridnn(*TRAIN, *SMALL, *cosine, "--out", "run")[0] == 0
    code, _, err = run_hybridnn("train", "--resume", "run", "--epochs", "6", "-q")
    assert code == 2
    assert err == "Error: training.epochs = 6: the run to resume has 3; --force trains on with the new value\n"
    assert run_hybridnn("train", "--resume", "run", "--epochs", "6", "-q", "--force")[0] == 0


def test_a_run_that_fails_leaves_no_empty_checkpoint_folder(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--lr", "1e9", "--out", "run")[0] == 1
    assert not Path("run/checkpoints").exists()


def test_a_disk_without_room_for_the_last_checkpoint_keeps_the_results(
    run_hybridnn: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pending: PendingCheckpoint) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PendingCheckpoint, "require_space", full)
    code, _, err = run_hybridnn(*TRAIN, *SMALL, "--out", "run")
    assert code == 0
    assert err == (
        "Warning: checkpoint run/checkpoints/step-00000024 cannot be written: No space left on device; "
        "the run has ended well, but cannot be trained on\n"
    )
    assert not Path("run/checkpoints").exists()
    assert "run/weights.npz, step 24" in run_hybridnn("evaluate", "run")[1]


@pytest.fixture
def stopped(run_hybridnn: Run, signal_at: Callable[[int, int], None]) -> str:
    """A run that was stopped in its first epoch."""
    signal_at(2, signal.SIGUSR1)
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "run")[0] == 75
    return "run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "7"], "training.seed = 7: the run to resume has 0; --force trains on with the new value"),
        (["--hidden", "10"], "model.hidden = (10,): the run to resume has (9,); start a new run for another"),
        (
            ["--set", "data.synthetic.noise=0.3"],
            "data.synthetic.noise = 0.3: the run to resume has 0.1; --force trains",
        ),
        (["--lr", "0.5"], "optimizer.lr = 0.5: the run to resume has 0.005; --force trains on with the new value"),
        (["--batch-size", "20"], "training.batch_size = 20: the run to resume has 25; start a new run"),
        (["--out", "elsewhere"], "output.folder = 'elsewhere': a run goes on in its own folder, run"),
        (["--hidden", "10", "--force"], "model.hidden = (10,): the run to resume has (9,); start a new run"),
    ],
)
def test_settings_that_change_the_training_are_refused_with_both_values(
    stopped: str, run_hybridnn: Run, options: list[str], message: str
) -> None:
    history = Path(stopped, "history.jsonl").read_text()
    code, _, err = run_hybridnn("train", "--resume", stopped, "-q", *options)
    assert code == 2
    assert err.startswith(f"Error: {message}")
    assert err.count("\n") == 1
    assert Path(stopped, "history.jsonl").read_text() == history


def test_force_trains_on_with_another_rate(stopped: str, run_hybridnn: Run) -> None:
    assert run_hybridnn("train", "--resume", stopped, "-q", "--lr", "0.006", "--force")[0] == 0
    assert [record["learning_rate"] for record in records(stopped) if record["kind"] == "step"][-1] == 0.006


def test_folders_that_cannot_be_used(stopped: str, run_hybridnn: Run) -> None:
    code, _, err = run_hybridnn(*TRAIN, *SMALL, "--out", stopped)
    assert code == 2
    assert "holds checkpoints of a run that did not end; go on with --resume run" in err
    lock = FolderLock.take(Path(stopped))
    code, _, err = run_hybridnn("train", "--resume", stopped, "-q")
    assert code == 2
    assert f"is in use by another live job, process {os.getpid()} on " in err
    lock.release()
    assert not Path(stopped, ".lock").exists()
    code, _, err = run_hybridnn("train", "--resume", "nowhere")
    assert (code, err) == (2, "Error: --resume = 'nowhere': is not a run folder\n")
    code, _, err = run_hybridnn(*TRAIN, "--resume", "auto")
    assert (code, err.startswith("Error: --resume = 'auto': needs output.folder (--out)")) == (2, True)
    manifest = next(Path(stopped, "checkpoints").iterdir()) / "manifest.json"
    manifest.write_text("{}")
    code, _, err = run_hybridnn("train", "--resume", stopped, "-q")
    assert code == 2
    assert err.startswith("Error: run: no checkpoint to go on from: run/checkpoints/step-")
    assert run_hybridnn("train", "--resume", stopped, "-q")[0] == 2  # the folder was released


def test_fewer_epochs_than_are_done_change_nothing(run_hybridnn: Run, signal_at: Callable[[int, int], None]) -> None:
    signal_at(20, signal.SIGUSR1)
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "run")[0] == 75
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    code, _, err = run_hybridnn("train", "--resume", "run", "-q", "--epochs", "1")
    assert (code, err) == (2, "Error: training.epochs = 1: the run has already done 2\n")
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_finished_run_with_other_settings_is_refused(run_hybridnn: Run) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "run")[0] == 0
    code, _, err = run_hybridnn("train", "--resume", "run", "-q", "--lr", "0.1")
    assert code == 2
    assert err.startswith("Error: optimizer.lr = 0.1: the run to resume has 0.005; --force")
    assert run_hybridnn("train", "--resume", "run", "-q", "--lr", "0.1", "--force")[0] == 0


def test_a_damaged_end_of_the_history_is_reported_and_left_out(stopped: str, run_hybridnn: Run) -> None:
    history = Path(stopped, "history.jsonl")
    with history.open("ab") as file:
        file.write(b"\xff\xfe\x00\n" + history.read_bytes().splitlines(keepends=True)[-1])
    lines = len(history.read_bytes().splitlines())
    code, _, err = run_hybridnn("train", "--resume", stopped, "-q")
    assert code == 0
    assert f"damaged, passed over: run/history.jsonl, line {lines - 1}: not a record of a run: " in err
    assert [record["epoch"] for record in records(stopped) if record["kind"] == "epoch"] == [1, 2, 3]


@pytest.fixture
def own_file() -> Callable[[str, int], str]:
    """Write samples that depend on `seed`, and return the name of the file."""

    def write(name: str, seed: int) -> str:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(200, 4))
        np.savez(name, x_train=x, y_train=rng.normal(size=(200, 1)), x_test=x[:20], y_test=np.zeros((20, 1)))
        return name

    return write


def test_a_data_file_may_be_moved_and_other_data_are_refused(
    run_hybridnn: Run, signal_at: Callable[[int, int], None], own_file: Callable[[str, int], str]
) -> None:
    plain = ("train", "--hidden", "9", "--epochs", "3", "--batch-size", "25", "-q")
    own = (*plain, "--file", own_file("data.npz", 0), "--set", "output.log_every=1")
    assert run_hybridnn(*own, "--out", "whole")[0] == 0
    signal_at(5, signal.SIGUSR1)
    assert run_hybridnn(*own, "--out", "run")[0] == 75
    own_file("data.npz", 1)
    code, _, err = run_hybridnn("train", "--resume", "run", "-q")
    assert code == 2
    assert err.count("a file: 200 + 20 samples, 4 features, 1 outputs, regression, SHA-256 ") == 2
    assert err.endswith("; --force trains on with the new data\n")
    own_file("moved.npz", 0)
    assert run_hybridnn("train", "--resume", "run", "-q", "--file", "moved.npz")[0] == 0
    assert_same_run("run", "whole")


def test_an_interrupted_extension_is_evaluated_at_its_checkpoint(
    run_hybridnn: Run, signal_at: Callable[[int, int], None]
) -> None:
    every = ("--set", "training.checkpoint_every=10")
    assert run_hybridnn(*TRAIN, *SMALL, *every, "--out", "run")[0] == 0
    assert "run/weights.npz, step 24" in run_hybridnn("evaluate", "run")[1]
    signal_at(30, signal.SIGUSR1)
    assert run_hybridnn("train", "--resume", "run", "--epochs", "5", "-q")[0] == 75
    assert "run/checkpoints/step-00000030" in run_hybridnn("evaluate", "run")[1]


@pytest.mark.parametrize(
    ("method", "ranks", "stages", "kept"),
    [
        ("gpipe", 3, 3, True),
        ("gpipe", 2, 2, True),
        ("gpipe", 1, 1, False),
        ("gpipe", 6, 3, True),
        ("pipedream", 2, 3, True),
    ],
)
def test_stages_that_do_not_fit_the_ranks_are_chosen_again(
    run_hybridnn: Run, method: str, ranks: int, stages: int, kept: bool
) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--epochs", "1", "--out", "run")[0] == 0
    config = Path("run/config.toml")
    text = config.read_text()
    replaced = [
        line for line in text.splitlines(keepends=True) if line.split(" = ")[0] in ("batch", "pipeline", "method")
    ]
    text = text.replace("[parallel]\n", f'[parallel]\nmethod = "{method}"\npipeline = 3\n')
    config.write_text("".join(line for line in text.splitlines(keepends=True) if line not in replaced))
    settings = settings_of_run(Path("run"), [], ranks)
    assert ("method" in settings.parallel.model_fields_set) == kept
    assert with_stages(settings.parallel, ranks).pipeline == stages


@pytest.mark.parametrize("command", [("train", "--resume", "run"), ("evaluate", "run")])
def test_truncated_settings_are_refused(run_hybridnn: Run, command: tuple[str, ...]) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "run")[0] == 0
    lines = Path("run/config.toml").read_text().splitlines(keepends=True)
    for kept in range(1, len(lines), 7):
        Path("run/config.toml").write_text("".join(lines[:kept]))
        code, _, err = run_hybridnn(*command)
        assert (code, err.count("\n")) == (2, 1)
        assert "run/config.toml: is cut off" in err
    Path("run/config.toml").write_text("".join(lines))
    assert run_hybridnn(*command)[0] == 0


@pytest.mark.parametrize("content", ["", "[" * 10_000 + "\n"])
def test_a_finished_run_without_epoch_records_cannot_be_resumed_but_exported(run_hybridnn: Run, content: str) -> None:
    assert run_hybridnn(*TRAIN, *SMALL, "--out", "run")[0] == 0
    history = Path("run/history.jsonl")
    whole = history.read_text()
    history.write_text(whole.splitlines(keepends=True)[0] + content)
    code, _, err = run_hybridnn("train", "--resume", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "run/history.jsonl" in err
    assert "nothing is left to train" in err
    assert run_hybridnn("export", "run", "weights.npz")[0] == 0
    history.write_text(whole)
    assert run_hybridnn("train", "--resume", "run", "--epochs", "4", "-q")[0] == 0
