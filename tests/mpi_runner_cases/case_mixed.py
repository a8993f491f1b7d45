"""A serial test followed by one under MPI, the last of the file."""

from __future__ import annotations

import pytest


def test_serial_first() -> None:
    pass


@pytest.mark.mpi(ranks=[2])
def test_mpi_last() -> None:
    pass
