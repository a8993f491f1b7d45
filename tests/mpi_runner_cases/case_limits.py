"""Tests that take longer than their limits on an idle machine, which only ``tests/test_mpi_runner.py`` runs."""

from __future__ import annotations

import time

import pytest
from mpi4py import MPI

from mpi_runner.slowness import deadline


@pytest.mark.timeout(0.3)
def test_marked() -> None:
    time.sleep(0.5)


@pytest.mark.timeout(timeout=0.3, method="thread")
def test_marked_by_name() -> None:
    time.sleep(0.5)


def test_usual() -> None:
    time.sleep(0.5)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.timeout(0.3)
def test_ranks(comm: MPI.Intracomm) -> None:
    time.sleep(0.5)
    assert deadline(0.5) == 500
