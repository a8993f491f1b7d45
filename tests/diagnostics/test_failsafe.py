"""Fail-safe: an exception on one rank ends the job with its traceback; without MPI nothing changes."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from hybridnn.diagnostics import failsafe
from hybridnn.diagnostics.failsafe import LEFT_TAG, running_world, send_departure
from mpi_runner.launch import run_mpi

FAILS_IN_STEP_3 = """
import numpy as np
from hybridnn import MLP, Callback, Trainer
x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64) % 3
trainer = Trainer(MLP([4, 8, 3]), batch_size=16, log_every=1)
class Fails(Callback):
    def on_train_batch_end(self, trainer, record):
        if record.step == 3 and trainer.grid.rank == 1:
            raise ValueError("a bug in step 3")
trainer.fit(x, y, epochs=5, callbacks=[Fails()])
print("unreachable")
"""


def test_an_exception_in_the_middle_of_training_ends_the_job() -> None:
    result = run_mpi(2, FAILS_IN_STEP_3, timeout=30)
    assert not result.timed_out
    assert result.returncode != 0
    assert "unreachable" not in result.stdout
    assert "=== rank 1 of 2 failed; ending the job ===" in result.stderr
    assert result.stderr.count("Traceback") == 1
    assert "ValueError: a bug in step 3" in result.stderr


def broken_part() -> None:
    raise RuntimeError("the disk of rank 2 is gone")


def call_hook(error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)


def run_thread(target: Callable[[], object]) -> None:
    thread = threading.Thread(target=target, name="writer")
    thread.start()
    thread.join()


@pytest.fixture
def others_seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that reached the hooks of the program, after which those of the package were installed."""
    seen: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: seen.append(kind.__name__))
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type.__name__))
    for owner, name in ((sys, "exit"), (os, "_exit")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # restored afterwards
    monkeypatch.delenv("HYBRIDNN_NO_ABORT", raising=False)
    failsafe.install()
    return seen


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which rank 2 of four has ended the job."""
    codes: list[int] = []
    world = SimpleNamespace(Get_rank=lambda: 2, Get_size=lambda: 4, Abort=codes.append)
    monkeypatch.setattr(failsafe, "running_world", lambda: world)
    monkeypatch.setattr(failsafe, "FORWARDING_SECONDS", 0.0)
    monkeypatch.setattr(failsafe, "_start_last_resort", lambda: None)
    monkeypatch.setattr(failsafe, "exit_now", lambda code: None)
    return codes


@pytest.mark.parametrize(
    ("fail", "header", "name"),
    [
        (lambda: call_hook(ValueError("lost")), "=== rank 2 of 4 failed; ending the job ===", "ValueError: lost"),
        (lambda: call_hook(KeyboardInterrupt()), "=== rank 2 of 4 failed; ending the job ===", "KeyboardInterrupt"),
        (lambda: run_thread(broken_part), "=== rank 2 of 4 failed in thread writer; ending", "in broken_part"),
    ],
    ids=["an exception", "an interrupt", "an exception in a thread"],
)
def test_an_error_of_any_thread_ends_the_job(
    others_seen: list[str],
    aborts: list[int],
    capfd: pytest.CaptureFixture[str],
    fail: Callable[[], None],
    header: str,
    name: str,
) -> None:
    fail()
    printed = capfd.readouterr().err
    assert header in printed
    assert name in printed
    assert printed.count("Traceback") == 1
    assert others_seen == [name.partition(":")[0].replace("in broken_part", "RuntimeError")]
    assert aborts == [1]


def test_a_thread_that_exits_ends_no_job(others_seen: list[str], aborts: list[int]) -> None:
    run_thread(lambda: sys.exit(3))
    assert aborts == []


def test_one_rank_keeps_pythons_own_behaviour(others_seen: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    call_hook(KeyError("mine"))
    run_thread(broken_part)
    assert others_seen == ["KeyError", "RuntimeError"]
    assert capfd.readouterr().err == ""


def test_the_hooks_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setenv("HYBRIDNN_NO_ABORT", "1")
    failsafe.install()
    assert sys.excepthook is sys.__excepthook__


MISSING = """
from mpi4py import MPI
from hybridnn import MLP, Trainer
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank != 1:
    Trainer(MLP([4, 3]), stall_seconds=2)
MPI.COMM_WORLD.Barrier()
"""

LATE = """
import time
from mpi4py import MPI
from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.diagnostics.failsafe import WAITING_TAG
if MPI.COMM_WORLD.rank == 1:
    while not MPI.COMM_WORLD.Iprobe(0, WAITING_TAG):  # after half of the limit
        time.sleep(0.01)
ProcessGrid(stall_seconds=24)
Trainer(MLP([4, 3])).evaluate([[1.0] * 4], [1])
print(any(MPI.COMM_WORLD.Iprobe(rank, MPI.ANY_TAG) for rank in range(3)))
"""

WORKERS = """
def train(number):
    from mpi4py import MPI
    from hybridnn import MLP, ProcessGrid, Trainer
    grid = ProcessGrid(MPI.COMM_SELF) if number < 0 else None
    return Trainer(MLP([4, 3]), grid=grid, stall_seconds=2).grid.size

if __name__ == "__main__":
    from mpi4py.futures import MPIPoolExecutor
    with MPIPoolExecutor() as executor:
        print(list(executor.map(train, [-1, -2])), flush=True)
        list(executor.map(train, [1, 2]))
"""


def test_a_grid_that_one_rank_does_not_make_ends_the_job() -> None:
    result = run_mpi(3, MISSING, timeout=30)
    assert not result.timed_out
    assert result.returncode != 0
    assert "the job cannot go on: ranks 0, 2 waited 2 s for rank 1; the job was ended" in result.stderr
    assert "takes ProcessGrid(MPI.COMM_SELF)" in result.stderr


@pytest.mark.slow
def test_a_rank_that_is_late_delays_the_grid_and_leaves_no_message() -> None:
    result = run_mpi(3, LATE, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("False") == 3, result.stdout


@pytest.mark.slow
def test_a_worker_of_a_pool_has_a_grid_of_its_own_or_is_ended(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    result = run_mpi(3, [sys.executable, "-m", "mpi4py.futures", "workers.py"], timeout=60, cwd=tmp_path)
    assert not result.timed_out
    assert result.returncode != 0
    assert result.stdout.startswith("[1, 1]")
    assert re.search(r"ranks? [12].* waited 2 s for ranks? 0", result.stderr)


@pytest.mark.mpi(ranks=[3])
def test_ranks_that_exit_together_receive_all_messages(comm: MPI.Intracomm) -> None:
    """MPICH kills a job that ends with unreceived messages."""
    world = running_world()
    comm.Barrier()
    send_departure()
    comm.Barrier()
    assert not any(world.Iprobe(rank, LEFT_TAG) for rank in range(3))
