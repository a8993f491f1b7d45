"""User scripts whose ranks diverge: every job ends, and names the rank and the line of the script."""

import re
import sys
import threading
from pathlib import Path

import pytest

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.diagnostics.stall_files import read_stall
from mpi_runner.launch import JobResult, run_mpi

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
import numpy as np
from hybridnn import MLP, Callback, ProcessGrid, Trainer

def main():
    x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64) % 3
    grid = ProcessGrid()
    odd = grid.rank == 1
    trainer = Trainer(MLP([4, 8, 3]), grid=grid, batch_size=16, log_every=1, stall_seconds={seconds})
    epochs = 3
    class InStep(Callback):
        def on_train_batch_end(self, trainer, record):
            if record.step == 5 and odd:
                {in_step}
    {between}
    trainer.fit(x, y, epochs=epochs, callbacks=[InStep()])
    {after}
    print("rank", grid.rank, "is done")

main()
"""

FOR_EVER = 10_000
"""Seconds of a watch that is not to be waited for."""

LIMIT = 110


def job(
    folder: Path,
    *,
    in_step: str = "pass",
    between: str = "pass",
    after: str = "pass",
    seconds: float = FOR_EVER,
) -> JobResult:
    (folder / "tmp").mkdir()
    text = SCRIPT.format(in_step=in_step, between=between, after=after, seconds=seconds)
    (folder / "script.py").write_text(text)
    result = run_mpi(3, [sys.executable, "script.py"], timeout=LIMIT, cwd=folder, env={"TMPDIR": str(folder / "tmp")})
    assert not result.timed_out
    return result


def account_of(result: JobResult) -> str:
    assert result.returncode != 0  # not always 1: the launcher of Open MPI 5.0 may crash where one rank ends MPI
    assert result.stderr.count("=== the job ") == 1
    return result.stderr


def line_of(folder: Path, text: str) -> int:
    return next(number for number, line in enumerate((folder / "script.py").read_text().split("\n"), 1) if text in line)


@pytest.mark.parametrize("code", [0, 3])
def test_exit_in_the_middle_of_training(tmp_path: Path, code: int) -> None:
    account = account_of(job(tmp_path, in_step=f"sys.exit({code})"))
    assert "=== the job cannot go on: rank 1 left it, and others wait; the job was ended ===" in account
    left = rf"\* rank 1 \(host \S+, process \d+\) left the job: its script ended with exit code {code}, by sys.exit "
    left += rf"at script\.py:{line_of(tmp_path, 'sys.exit')} in on_train_batch_end; ranks 0, 2 wait in "
    assert re.search(left, account)
    assert f" at script.py:{line_of(tmp_path, 'trainer.fit')} in main" in account


def test_fewer_epochs_on_one_rank(tmp_path: Path) -> None:
    """The rank leaves `main`, and with it its trainer, and the script."""
    result = job(tmp_path, after="odd or trainer.fit(x, y, epochs=1)")
    account = account_of(result)
    assert result.stdout.split("\n")[0] == "rank 1 is done"
    assert re.search(r"\* rank 1 \(.*\) left the job: .*; ranks 0, 2 wait in ", account)
    assert f" at script.py:{line_of(tmp_path, 'odd or trainer.fit')} in main" in account


def test_evaluate_on_all_ranks_but_one_that_goes_on(tmp_path: Path) -> None:
    account = account_of(job(tmp_path, after="time.sleep(10_000) if odd else trainer.evaluate(x, y)", seconds=3))
    line = line_of(tmp_path, "trainer.evaluate")
    assert "=== the job stood still: no rank finished anything for 3 s; the job was ended ===" in account
    assert f"did not arrive: outside of communication, at script.py:{line} in main; ranks 0, 2 wait in " in account
    assert f" at script.py:{line} in main\n" in account
    assert 'with trainer.busy("plotting")' in account
    assert "stall_seconds" in account


def test_an_endless_loop_where_nothing_can_be_printed(tmp_path: Path) -> None:
    """All standard streams are closed: the account is in the files, which stay after a stall."""
    closes = "sys.stdout.close(); sys.stderr = None; os.close(1); os.close(2)"
    result = job(tmp_path, between=closes, in_step="while True: pass", seconds=3)
    assert result.returncode != 0
    (folder,) = (tmp_path / "tmp").glob("hybridnn-stall-*")
    record = read_stall(folder)
    (finding,) = record.findings
    assert (finding.kind, finding.ranks) == ("outside", (1,))
    assert f"at script.py:{line_of(tmp_path, 'while True')} in on_train_batch_end" in finding.text


def test_an_exception_where_nothing_can_be_printed(tmp_path: Path) -> None:
    result = job(tmp_path, between="sys.stdout = None; os.close(1); os.close(2)", in_step="raise RuntimeError('lost')")
    assert result.returncode != 0
    assert "is done" not in result.stdout


def test_what_is_meant_to_take_long_is_no_stall_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """One rank announces its work, and the ranks end their scripts one after another."""
    announced = "\n    if odd:\n        with trainer.busy('plotting'): time.sleep(9)"
    result = job(tmp_path, between=announced, after="trainer.evaluate(x, y); time.sleep(3 * grid.rank)", seconds=5)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("is done") == 3
    assert [entry for entry in (tmp_path / "tmp").iterdir() if entry.name.startswith("hybridnn")] == []


@pytest.mark.mpi(ranks=[1, 2])
def test_trainers_that_nothing_refers_to_leave_no_threads() -> None:
    def watches() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name in ("stall watchdog", "process watchdog")]

    before = len(watches())
    shared = ProcessGrid()
    for number in range(20):
        trainers = [Trainer(MLP([3, 2]), grid=grid) for grid in (shared, shared, None)]
        while len(trainers) > number % 3:
            trainers.pop().free()
        trainers.clear()
    for thread in watches():
        thread.join(5)
    assert len(watches()) <= before


def test_one_process_is_not_watched() -> None:
    trainer = Trainer(MLP([3, 2]), stall_seconds=1)
    assert trainer.grid.stall_watchdog is None
    with trainer.busy("plotting"):
        pass
    trainer.free()


@pytest.mark.parametrize("way", ["sys.exit(3)", "sys.exit(0)"])
def test_exit_before_the_process_grid(tmp_path: Path, way: str) -> None:
    program = f"import sys\nfrom mpi4py import MPI\nimport hybridnn\nif MPI.COMM_WORLD.rank == 1:\n    {way}\n"
    (tmp_path / "script.py").write_text(f"{program}hybridnn.ProcessGrid()\nprint('a grid')\n")
    result = run_mpi(3, [sys.executable, "script.py"], timeout=LIMIT, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode != 0
    assert "a grid" not in result.stdout
    # The call is recorded from the first grid on: hybridnn changes nothing of a program before.
    assert "* rank 1 left the job: its script ended; rank 0" in result.stderr


def test_a_rank_that_leaves_at_once_is_named(tmp_path: Path) -> None:
    result = job(tmp_path, in_step="import os; os._exit(7)")
    assert result.returncode != 0
    line = line_of(tmp_path, "os._exit")
    assert (
        f"=== rank 1 of 3 left the job with exit code 7, by os._exit at script.py:{line} in on_train_batch_end ==="
        in result.stderr
    )


def test_another_rank_prints_where_the_lowest_has_closed_its_streams(tmp_path: Path) -> None:
    closes = "first = grid.rank == 0\n    if first: sys.stdout.close(); sys.stderr = None; os.close(1); os.close(2)"
    account = account_of(
        job(tmp_path, between=closes, after="time.sleep(10_000) if first else trainer.evaluate(x, y)", seconds=3)
    )
    assert re.search(r"\* rank 0 \(host \S+, process \d+\) did not arrive: .*; ranks 1, 2 wait in ", account)
