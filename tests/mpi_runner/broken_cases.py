"""Failing tests of several kinds, which only ``tests/test_tools_of_the_tests.py`` runs."""

import os
import signal

import pytest
from mpi4py import MPI

pytestmark = [pytest.mark.mpi(ranks=[2]), pytest.mark.timeout(30)]  # the deadlock has a shorter one


def test_before(comm: MPI.Intracomm) -> None:
    comm.Barrier()


def test_one_rank_asserts(comm: MPI.Intracomm) -> None:
    if comm.rank == 1:
        print("printed by the failing rank")
        assert comm.rank == 17
    comm.allreduce(1)


def test_between(comm: MPI.Intracomm) -> None:
    assert comm.allreduce(1) == comm.size


@pytest.mark.timeout(1)
def test_deadlock(comm: MPI.Intracomm) -> None:
    comm.recv(source=1 - comm.rank)


def test_exits(comm: MPI.Intracomm) -> None:
    if comm.rank == 1:
        os.write(2, b"the reason of the exit\n")  # as the watchdogs of a job do, beside Python's streams
        os._exit(3)
    comm.Barrier()


@pytest.mark.skip(reason="the reason of the skip")
def test_skipped() -> None:
    raise AssertionError


@pytest.mark.xfail(reason="known")
def test_expected_failure() -> None:
    raise AssertionError


def test_segmentation_fault(comm: MPI.Intracomm) -> None:
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    comm.Barrier()


def test_after(comm: MPI.Intracomm) -> None:
    assert comm.allreduce(1) == comm.size
