"""Jobs that lose a rank: with ULFM they continue without it, otherwise they end with the reason and resume command."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpi_runner.launch import JobResult, find_mpirun, job_environment, run_mpi
from mpi_runner.slowness import deadline
from reference.command_line import Run, assert_same_weights, records_of

pytestmark = pytest.mark.slow

FAULTS = """
import os, signal, sys
from pathlib import Path
from hybridnn.cli.main import main
from hybridnn.runs import report as run_report
from hybridnn.runs.hooks import CheckpointHook

run_report.draw_learning_curve = lambda *_: None  # would take a third of the time

deaths, signals, errors = {deaths}, {signals}, {errors}
rank = next(int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
original = CheckpointHook.__call__

def with_faults(self, progress):
    if deaths.get(rank) == progress.step:
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if signals.get(rank) == progress.step:
        os.kill(os.getpid(), signal.SIGUSR1)
    if errors.get(rank) == progress.step:
        raise RuntimeError("an error of the test")
    return original(self, progress)

CheckpointHook.__call__ = with_faults
main(sys.argv[1:])
"""
"""A program whose ranks kill themselves, send themselves a signal or fail at given steps."""

TRAIN = ("train", "--data", "synthetic", "--hidden", "9,8", "--epochs", "3", "--batch-size", "25", "-q", "--out", "run")
SMALL = ("data.synthetic.samples=200", "data.synthetic.test_samples=20", "output.log_every=5", "training.dtype=float64")
OPTIONS = (*TRAIN, *(part for setting in SMALL for part in ("--set", setting)))
RESUME_ADVICE = "The newest checkpoint is step-00000008; go on with: hybridnn train --resume run\n"
EPOCHS, LAST_OF_EPOCH, LOGGED = 3, 8, [5, 10, 15, 20]


@pytest.fixture(scope="module")
def ulfm() -> tuple[str, ...]:
    """Return the options of mpirun with which a job survives the loss of a rank."""
    options = ("--with-ft", "ulfm")
    tried = subprocess.run([find_mpirun(), *options, "-n", "1", "true"], env=job_environment(), capture_output=True)
    if tried.returncode:
        pytest.skip("this mpirun has no --with-ft ulfm")
    return options


def run_with_faults(
    folder: Path,
    ranks: int,
    *options: str,
    launcher: tuple[str, ...] = (),
    deaths: dict[int, int],
    signals: dict[int, int] | None = None,
    errors: dict[int, int] | None = None,
) -> JobResult:
    program = FAULTS.format(deaths=deaths, signals=signals or {}, errors=errors or {})
    return run_mpi(ranks, [*launcher, sys.executable, "-c", program, *OPTIONS, *options], timeout=120, cwd=folder)


def assert_trained_to_the_end(run_hybridnn: Run, folder: Path) -> None:
    """Compare with one process, and check that the history has every logged step and every epoch once and in order."""
    assert run_hybridnn(*OPTIONS, "--out", "whole")[0] == 0
    assert_same_weights(folder / "run", folder / "whole", 1e-10)
    lines = records_of(folder / "run")
    assert [line["step"] for line in lines if line["kind"] == "step"] == LOGGED
    for kind in ("measured", "epoch"):
        assert [line["epoch"] for line in lines if line["kind"] == kind] == list(range(1, EPOCHS + 1))
    assert lines[-1]["kind"] == "end"


@pytest.mark.parametrize(
    ("deaths", "message"),
    [({0: LAST_OF_EPOCH}, "rank 0 was lost; 2 go on"), ({0: 3, 2: 18}, "ranks 0, 2 were lost; ")],
    ids=["first-rank-between-epochs", "one-after-the-other"],
)
def test_the_surviving_ranks_continue(
    ulfm: tuple[str, ...], run_hybridnn: Run, tmp_path: Path, deaths: dict[int, int], message: str
) -> None:
    every = ("--set", "training.checkpoint_every=2", "--set", "training.checkpoint_async=false")
    result = run_with_faults(tmp_path, 3, *every, launcher=ulfm, deaths=deaths)
    assert (result.timed_out, result.returncode) == (False, 0), result.stderr
    assert message in result.stderr
    assert result.stdout.count("folder") == 1  # the summary of the run, from the first surviving rank
    assert_trained_to_the_end(run_hybridnn, tmp_path)
    if LAST_OF_EPOCH not in deaths.values():
        # No step is done twice: the survivors have completed the step of the lost rank, or the one before.
        resumed = [record["step"] for record in records_of(tmp_path / "run", "resumed")]
        for step, death in zip(resumed, deaths.values(), strict=True):
            assert step in (death - 1, death)


def test_without_recovery_the_job_ends_with_the_reason_and_the_command(run_hybridnn: Run, tmp_path: Path) -> None:
    every = ("--set", "training.checkpoint_every=4", "--set", "training.checkpoint_async=false")
    result = run_with_faults(tmp_path, 3, *every, deaths={0: 11})
    assert_ended(tmp_path, result)
    assert "=== rank 0 (process " in result.stderr
    assert re.search("is gone: killed( by signal 9|, or ended without a word); the job ends ===", result.stderr)
    assert result.stderr.count(RESUME_ADVICE) == 1
    assert run_hybridnn("train", "--resume", "run", "-q", "--in-process", "2")[::2] == (0, "")
    assert_trained_to_the_end(run_hybridnn, tmp_path)


def test_only_a_grid_of_the_batch_axis_recovers(ulfm: tuple[str, ...], tmp_path: Path) -> None:
    every = ("--set", "training.checkpoint_every=4", "--set", "training.checkpoint_async=false")
    result = run_with_faults(tmp_path, 3, *every, "--pipeline", "3", launcher=ulfm, deaths={1: 11})
    assert_ended(tmp_path, result)
    reason = "Error: rank 1 was lost, and to go on without takes a grid of the batch axis alone, on one node. "
    assert result.stderr.count(reason + RESUME_ADVICE) == 1, result.stderr


def assert_ended(folder: Path, result: JobResult) -> None:
    assert (result.timed_out, result.returncode != 0) == (False, True)
    assert time.time() - (folder / "died").stat().st_mtime < deadline(10)


def test_a_signal_after_a_loss_still_stops_the_run(ulfm: tuple[str, ...], tmp_path: Path) -> None:
    result = run_with_faults(tmp_path, 3, launcher=ulfm, deaths={0: 6}, signals={2: 10})
    assert (result.timed_out, result.returncode) == (False, 75), result.stderr
    assert result.stderr.count("Error: stopped by SIGUSR1 after step ") == 1
    assert result.stderr.count("go on with: hybridnn train --resume run") == 1


def test_an_error_of_the_last_rank_is_no_success(ulfm: tuple[str, ...], tmp_path: Path) -> None:
    result = run_with_faults(tmp_path, 2, launcher=ulfm, deaths={0: 6}, errors={1: 10})
    assert (result.timed_out, result.returncode != 0) == (False, True)
    assert result.stderr.count("RuntimeError: an error of the test") == 1
    assert not (tmp_path / "run" / "weights.npz").exists()
