"""A test that stays for as long as it may; run by ``tests/test_mpi_runner.py`` alone."""

from __future__ import annotations

import pytest
from mpi4py import MPI


@pytest.mark.mpi(ranks=[2])
@pytest.mark.timeout(600)
def test_stalled(comm: MPI.Intracomm) -> None:
    comm.recv(source=1 - comm.rank)
