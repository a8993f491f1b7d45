"""Tests that pass, are skipped or are expected to fail, which only ``tests/test_mpi_runner.py`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi4py import MPI


@pytest.mark.mpi(ranks=[2, 3])
def test_ranks(comm: MPI.Intracomm, mpi_ranks: int) -> None:
    assert comm.size == mpi_ranks
    assert comm.allreduce(1) == mpi_ranks


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", ["plain", "with space"])
def test_shared_folder(comm: MPI.Intracomm, mpi_tmp_path: Path, name: str) -> None:
    (mpi_tmp_path / f"{name}{comm.rank}").touch()
    comm.Barrier()
    assert len(list(mpi_tmp_path.iterdir())) == 3


@pytest.mark.mpi(ranks=[2])
@pytest.mark.skip(reason="the reason of the skip")
def test_skipped() -> None:
    raise AssertionError


@pytest.mark.mpi(ranks=[2])
@pytest.mark.xfail(reason="known")
def test_expected_failure() -> None:
    raise AssertionError


def test_serial() -> None:
    assert MPI.COMM_WORLD.size == 1
