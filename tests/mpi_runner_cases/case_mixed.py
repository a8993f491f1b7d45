"""A serial test and then one for MPI, the last of the file; another file follows it."""

from __future__ import annotations

import pytest


def test_serial_first() -> None:
    pass


@pytest.mark.mpi(ranks=[2])
def test_mpi_last() -> None:
    pass
