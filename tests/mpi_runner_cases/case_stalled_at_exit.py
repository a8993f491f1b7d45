"""A job whose tests pass and whose processes stay; run by ``tests/test_mpi_runner.py`` alone."""

from __future__ import annotations

import atexit
import time

import pytest
from mpi4py import MPI


@pytest.mark.mpi(ranks=[2])
def test_passes(comm: MPI.Intracomm) -> None:
    atexit.register(time.sleep, 600)
    comm.Barrier()
