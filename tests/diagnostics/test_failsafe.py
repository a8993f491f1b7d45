"""Fail-safe: an exception on one rank ends the job with its traceback; without MPI nothing changes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hybridnn.diagnostics.failsafe import LEFT_TAG, _send_departure, running_world
from mpi_runner.launch import run_mpi
from mpi_runner.slowness import deadline

if TYPE_CHECKING:
    from mpi4py import MPI

WAIT_FOR_RANK_2 = """
import numpy as np
import hybridnn
grid = hybridnn.ProcessGrid()
def broken_part():
    raise RuntimeError("the disk of rank 2 is gone")
if grid.rank == 2:
    {failure}
grid.world.allreduce(np.zeros(3))
print("unreachable")
"""


@pytest.mark.parametrize(
    "failure", ["broken_part()", "import threading; t = threading.Thread(target=broken_part); t.start(); t.join()"]
)
def test_an_exception_on_one_of_four_ranks_ends_the_job(failure: str) -> None:
    result = run_mpi(4, WAIT_FOR_RANK_2.format(failure=failure), timeout=60)
    assert not result.timed_out
    assert result.seconds < deadline(10)
    assert result.returncode != 0
    assert "unreachable" not in result.stdout
    assert "=== rank 2 of 4 failed" in result.stderr
    assert 'raise RuntimeError("the disk of rank 2 is gone")' in result.stderr or "in broken_part" in result.stderr
    assert "RuntimeError: the disk of rank 2 is gone" in result.stderr
    assert result.stderr.count("Traceback") == 1


def test_an_exception_in_the_middle_of_training_ends_the_job() -> None:
    program = """
import numpy as np
from hybridnn import MLP, Trainer
x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64) % 3
trainer = Trainer(MLP([4, 8, 3]), batch_size=16, log_every=1)
def fail(record):
    if record.step == 3 and trainer.grid.rank == 1:
        raise ValueError("a bug in step 3")
trainer.fit(x, y, epochs=5, on_step=fail)
"""
    result = run_mpi(3, program, timeout=60)
    assert not result.timed_out
    assert result.seconds < deadline(10)
    assert result.returncode != 0
    assert "=== rank 1 of 3 failed" in result.stderr
    assert "ValueError: a bug in step 3" in result.stderr


def test_an_interrupt_of_one_rank_ends_the_job() -> None:
    result = run_mpi(4, WAIT_FOR_RANK_2.format(failure="raise KeyboardInterrupt"), timeout=60)
    assert not result.timed_out
    assert result.seconds < deadline(10)
    assert result.returncode != 0
    assert "=== rank 2 of 4 failed" in result.stderr
    assert "unreachable" not in result.stdout


def test_one_rank_keeps_pythons_own_behaviour() -> None:
    program = "import hybridnn; hybridnn.ProcessGrid(); raise KeyError('mine')"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=deadline(60), check=False
    )
    assert result.returncode == 1
    assert "KeyError: 'mine'" in result.stderr
    assert "ending the job" not in result.stderr


def test_the_hook_can_be_switched_off() -> None:
    program = "import sys, hybridnn; print(sys.excepthook is sys.__excepthook__)"
    for value, expected in (("1", "True"), ("", "False")):
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={"HYBRIDNN_NO_ABORT": value, "PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            timeout=deadline(60),
            check=True,
        )
        assert result.stdout.strip() == expected


@pytest.mark.mpi(ranks=[3])
def test_ranks_that_exit_together_receive_all_messages(comm: MPI.Intracomm) -> None:
    """MPICH kills a job that ends with unreceived messages."""
    world = running_world()
    comm.Barrier()
    _send_departure()
    comm.Barrier()
    assert not any(world.Iprobe(rank, LEFT_TAG) for rank in range(3))
