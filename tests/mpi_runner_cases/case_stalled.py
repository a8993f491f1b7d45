"""A test that stalls, which only ``tests/test_mpi_runner.py`` runs."""

from __future__ import annotations

import pytest
from mpi4py import MPI


@pytest.mark.mpi(ranks=[2])
@pytest.mark.timeout(600)
def test_stalled(comm: MPI.Intracomm) -> None:
    comm.recv(source=1 - comm.rank)
