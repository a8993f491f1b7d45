"""Tests that pass, after their limits on an idle machine, are skipped or are expected to fail; an MPI test is last."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mpi4py import MPI

from mpi_runner.slowness import deadline


def test_serial() -> None:
    time.sleep(0.5)
    assert MPI.COMM_WORLD.size == 1


@pytest.mark.timeout(timeout=0.3, method="thread")
def test_by_name() -> None:
    time.sleep(0.5)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.skip(reason="the reason of the skip")
def test_skipped() -> None:
    raise AssertionError


@pytest.mark.mpi(ranks=[2])
@pytest.mark.xfail(reason="known")
def test_expected_failure() -> None:
    raise AssertionError


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", ["plain", "with space"])
def test_shared_folder(comm: MPI.Intracomm, mpi_tmp_path: Path, name: str) -> None:
    (mpi_tmp_path / f"{name}{comm.rank}").touch()
    comm.Barrier()
    assert len(list(mpi_tmp_path.iterdir())) == 3


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.timeout(0.3)
def test_ranks(comm: MPI.Intracomm, mpi_ranks: int) -> None:
    time.sleep(0.5)
    assert deadline(0.5) == 500
    assert comm.size == comm.allreduce(1) == mpi_ranks
