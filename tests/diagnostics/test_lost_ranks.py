"""Detection of lost ranks."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta

import numpy as np
import pytest

from hybridnn.comm.mpi import import_mpi
from hybridnn.diagnostics.lost_ranks import SWITCH, SurvivingRanks, tolerates_losses
from hybridnn.errors import EnvironmentProblem
from hybridnn.parallel.grid import ProcessGrid
from mpi_runner.launch import run_mpi
from mpi_runner.slowness import deadline


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("0", False), ("1", True), ("true", True)])
def test_only_a_job_started_for_it_tolerates_losses(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    library, version = import_mpi().get_vendor()
    assert tolerates_losses() == (expected and library == "Open MPI" and version[0] >= 5)


def test_losses_are_distinguished_from_other_errors() -> None:
    mpi = import_mpi()
    if mpi.get_vendor()[0] != "Open MPI":
        pytest.skip("MPICH numbers its errors in another way")
    ranks = SurvivingRanks.of_job()
    lost = mpi.Exception(mpi.ERR_REVOKED)
    assert ranks.is_loss(lost)
    assert ranks.is_loss(mpi.Exception(mpi.ERR_PROC_FAILED))
    assert not ranks.is_loss(mpi.Exception(mpi.ERR_TRUNCATE))
    assert not ranks.is_loss(RuntimeError("of our own"))
    explained = EnvironmentProblem("no room in /dev/shm")
    explained.__cause__ = lost
    assert ranks.is_loss(explained)


@pytest.mark.mpi(ranks=[1, 3])
def test_a_stopped_watchdog_leaves_no_threads_and_descriptors(mpi_ranks: int) -> None:
    before, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    grid = ProcessGrid()
    for _ in range(3):
        watch = grid.stall_watchdog
        end = watch.start(grid, 1000) if watch is not None else int
        grid.world.allreduce(np.zeros(1))
        assert threading.active_count() == before + 2 * (mpi_ranks > 1)
        end()
        for thread in threading.enumerate():
            if thread.name in ("stall watchdog", "process watchdog"):
                thread.join(60)
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_start_of_mpi_without_a_dead_rank_times_out() -> None:
    seconds = round(deadline(2))
    program = f"""
import os
from hybridnn.diagnostics import lost_ranks
lost_ranks.START_SECONDS = {seconds}
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), 9)
lost_ranks.start_mpi_with_timeout()
"""
    if import_mpi().get_vendor()[0] != "Open MPI":
        pytest.skip("only Open MPI leaves losses to the ranks")
    options = ("--with-ft", "ulfm")
    result = run_mpi(2, [*options, sys.executable, "-c", program], timeout=60)
    assert (result.timed_out, result.returncode != 0) == (False, True)
    assert f"Timeout ({timedelta(seconds=seconds)})!" in result.stderr
    assert "in start_mpi_with_timeout" in result.stderr
