"""NCCL connections, on a stand-in: they begin and end on all ranks together, or on none if a rank fails."""

from __future__ import annotations

import gc
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.group import Group
from hybridnn.gpu.device import Device
from hybridnn.gpu.nccl import start_nccl
from hybridnn.gpu.setup import TransportFactory
from hybridnn.parallel.grid import ProcessGrid
from mpi_runner.launch import run_mpi
from reference.stand_in_device import StandInCupy, data_of, device_of


def connected(comm: MPI.Intracomm) -> tuple[ProcessGrid, StandInCupy]:
    grid, cupy = ProcessGrid(comm), StandInCupy(comm)
    assert grid.attach_device(TransportFactory("nccl", Device(cupy))) == ""
    return grid, cupy


def check_sum(group: Group, cupy: StandInCupy) -> None:
    array = cupy.compute(data_of(group.rank, (40,)))
    group.allreduce(array)
    np.testing.assert_array_equal(cupy.numbers(array), sum(data_of(rank, (40,)) for rank in range(group.size)))


@pytest.mark.mpi(ranks=[2, 3])
def test_disconnect_ends_the_connection_on_all_ranks_and_arrays_are_staged_then(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    array = cupy.compute(data_of(comm.rank, (40,)))
    grid.batch_group.allreduce(array)  # not complete when the connection is to end
    if comm.rank == 0:
        sleep(0.2)
    grid.disconnect()
    assert cupy.ended == ["connection"]
    np.testing.assert_array_equal(cupy.numbers(array), sum(data_of(rank, (40,)) for rank in range(comm.size)))
    assert cupy.pinned_bytes == 0
    check_sum(grid.batch_group, cupy)
    assert cupy.pinned_bytes > 0
    grid.disconnect()
    assert cupy.ended == ["connection"]


@pytest.mark.mpi(ranks=[2])
def test_connecting_again_ends_the_earlier_connection(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    for times in (1, 2):
        grid.attach_device(TransportFactory("nccl", Device(cupy)))
        assert cupy.ended == ["connection"] * times
        check_sum(grid.batch_group, cupy)
    assert cupy.cuda.nccl.calls == ["allReduce"] * 2
    grid.batch_group.split(0, "batch")
    assert cupy.cuda.nccl.connections == 3  # a part has no connection
    grid.disconnect()


@pytest.mark.mpi(ranks=[2])
def test_a_connection_that_failed_ends_the_wait_for_the_device(comm: MPI.Intracomm) -> None:
    """As when a rank or a link is lost: NCCL's kernel, and so the stream, would wait for ever."""
    grid, cupy = connected(comm)
    device = device_of(grid.batch_group)
    for _ in range(3):
        cupy.current.enqueue(lambda: None)
    device.wait_for(device.record_event())
    for _ in range(3):
        cupy.current.enqueue(lambda: None)
    cupy.cuda.nccl.problem = "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error"
    with pytest.raises(RuntimeError, match=r"connection of the ranks by NCCL failed: .*NCCL_ERROR_REMOTE_ERROR"):
        device.wait_for(device.record_event())
    cupy.cuda.nccl.problem = ""
    grid.disconnect()
    assert device.checks == []


@pytest.mark.mpi(ranks=[2])
def test_an_abandoned_connection_is_aborted_without_the_other_ranks(comm: MPI.Intracomm) -> None:
    grid, cupy = connected(comm)
    check_sum(grid.batch_group, cupy)
    if comm.rank == 0:
        device = device_of(grid.batch_group)
        del grid
        gc.collect()
        assert cupy.ended == ["aborted connection"]
        device.progress()  # no longer asks the connection for errors
    comm.Barrier()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_rank_that_fails_to_connect_does_not_block_the_others(comm: MPI.Intracomm) -> None:
    grid, cupy, last = ProcessGrid(comm), StandInCupy(comm), comm.size - 1
    cupy.cuda.nccl.failing = {last}
    problem = grid.attach_device(TransportFactory("nccl", Device(cupy)))
    found = "NCCL cannot connect the ranks (KeyError: 6; NCCL_DEBUG=INFO makes it say more)"
    assert problem == (found if comm.rank == last else "")
    check_sum(grid.batch_group, cupy)
    assert cupy.cuda.nccl.calls == []
    cupy.cuda.nccl.late.set()  # the other ranks connect after the failure
    while comm.rank != last and not cupy.ended:
        sleep(0.001)
    assert cupy.ended == ([] if comm.rank == last else ["aborted connection"])


@pytest.mark.mpi(ranks=[2])
def test_a_failure_of_the_identifier_is_reported_by_rank_0(comm: MPI.Intracomm) -> None:
    cupy = StandInCupy(comm)

    def fail() -> Any:
        raise RuntimeError("no socket interface found\nmore of it")

    cupy.cuda.nccl.get_unique_id = fail
    problem = "RuntimeError: no socket interface found"
    assert start_nccl(comm, cupy) == (None, problem if comm.rank == 0 else "")


@pytest.mark.mpi(ranks=[2])
def test_connecting_has_a_time_limit(comm: MPI.Intracomm) -> None:
    cupy = StandInCupy(comm)
    cupy.cuda.nccl.failing = {comm.size}  # a rank that never connects
    connection, problem = start_nccl(comm, cupy, seconds=0.05)
    assert connection is None
    # A rank that receives the failure of another first has none of its own.
    assert sorted(comm.allgather(problem))[-1] == "it does not connect in time"
    assert problem in ("", "it does not connect in time")


FAILS_DURING_A_TRAINING = """
import sys
sys.path[:0] = [{tests!r}]
from mpi4py import MPI
from hybridnn import ProcessGrid
from reference.callbacks import Calling
from reference.cases import Case, data, make_trainer
from training.stand_in_training import kernels_of, stand_in
grid = ProcessGrid(batch=2)
device = stand_in(grid, "nccl", MPI.COMM_WORLD)
def lose_a_link(record):
    if record.step == 3 and grid.rank == 1:
        kernels_of(device)._cupy.cuda.nccl.problem = "NCCL_ERROR_REMOTE_ERROR: a link is down"
make_trainer(Case(), grid, device=device).fit(*data(Case()), epochs=3, callbacks=[Calling(on_step=lose_a_link)])
print("unreachable")
"""


def test_an_error_that_nccl_notices_during_a_training_ends_the_job() -> None:
    """On the rank that waits for its device; the other rank would wait for ever."""
    result = run_mpi(2, FAILS_DURING_A_TRAINING.format(tests=str(Path(__file__).parents[1])), timeout=60)
    assert not result.timed_out
    assert result.returncode != 0
    assert "unreachable" not in result.stdout
    assert "=== rank 1 of 2 failed" in result.stderr
    assert "NCCL_ERROR_REMOTE_ERROR: a link is down" in result.stderr
