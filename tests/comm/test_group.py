"""Groups: collectives, messages and agreement, their checks and records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn.comm.agreement import (
    agree,
    broadcast_text,
    gather_texts,
    lowest_rank,
    value_of_first,
)
from hybridnn.comm.comparison import same_text_on_all, unequal_values
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.parallel.grid import ProcessGrid
from reference.group_calls import CALLS, Case
from reference.stand_in_device import ONE_MESSAGE, SMALL_PIECES, TRANSPORTS, device_group

LIMITS = (2**30, 24)  # bytes: whole arrays, and a few elements at a time
HOST_SHAPES = ((11, 3), (2, 5), (7,), (4, 0))
DEVICE_SHAPES = ((11, 3), (6, 2), (2, 5), (7,), (1, 4), (5, 0))


def cases(comm: MPI.Intracomm, memory: str) -> Iterator[Case]:
    if memory == "host":
        for limit in LIMITS:
            group = ProcessGrid(comm, message_limit=limit).world
            for dtype in ("float32", "float64", "int64", "uint8"):
                for shape in HOST_SHAPES:
                    yield Case(group, dtype, shape, np.copy, np.asarray)
        return
    for chunk in (ONE_MESSAGE, SMALL_PIECES):
        group, cupy = device_group(comm, memory, chunk)
        for dtype in ("float32", "int64"):
            for shape in DEVICE_SHAPES:
                yield Case(group, dtype, shape, cupy.compute, cupy.numbers)


every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
@every_call
def test_calls_of_ranks_in_one_process(comm: MPI.Intracomm, call: Callable[[Case], None]) -> None:
    for case in cases(comm, "host"):
        call(case)


@pytest.mark.mpi(ranks=[3])
@pytest.mark.parametrize("memory", ["host", *TRANSPORTS])
@every_call
def test_calls_under_mpi(comm: MPI.Intracomm, memory: str, call: Callable[[Case], None]) -> None:
    for case in cases(comm, memory):
        call(case)


@pytest.mark.mpi(ranks=[2])
def test_a_synchronous_send_is_not_done_before_its_receive(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    array = np.arange(2.0)
    if comm.rank == 0:
        request = group.isend(array, 1, tag=0, synchronous=True)
        assert not request.test()
        group.barrier()
        request.wait()
    else:
        group.barrier()
        group.ireceive(array, 0, tag=0).wait()


@pytest.mark.mpi(ranks=[3])
def test_a_request_owns_its_arrays_until_it_is_done(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    array = np.full(1 << 16, comm.rank + 1.0)
    request = group.iallreduce(array)
    del array  # the only other reference: the request alone keeps the memory
    kept = request._arrays[0]
    while not request.test():
        pass
    assert request.test()
    np.testing.assert_array_equal(kept, sum(range(1, comm.size + 1)))
    assert request._arrays == ()


@pytest.mark.in_process(ranks=[2])
def test_wrong_arrays_are_refused_before_anything_is_sent(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm).world
    gaps = np.zeros((4, 4))[:, ::2]
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "not contiguous", lambda: group.allreduce(gaps)),
        (ValueError, "not contiguous", lambda: group.allgather_rows(gaps)),
        (ValueError, "'sum' or 'max', not 'min'", lambda: group.allreduce(np.zeros(2), "min")),
        (ValueError, "'sum' or 'max', not 'min'", lambda: group.iallreduce(np.zeros(2), "min")),
        (TypeError, "Python objects", lambda: group.allreduce(np.array([{}], object))),
        (ValueError, r"shape \(1, 2\)", lambda: group.scatter_rows(None, np.zeros((2, 2)), [1, 1])),
    ]
    for kind, text, call in refusals:
        with pytest.raises(kind, match=text):
            call()
    comm.Barrier()


@pytest.mark.in_process(ranks=[2, 4])
def test_every_call_is_recorded_with_its_bytes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    grid.world.allreduce(np.zeros(comm.size * 10))
    grid.world.allgather_rows(np.zeros(comm.size * 10))
    grid.world.broadcast(np.zeros(10), 1)
    grid.world.gather_rows(np.zeros(2), np.zeros(2 * comm.size) if comm.rank == 0 else None, [2] * comm.size)
    grid.world.barrier()
    grid.world.iallreduce(np.zeros(comm.size * 10)).wait()
    names = [event.name for event in grid.recorder.events]  # blocking calls have no wait
    assert names == ["allreduce", "allgather", "broadcast", "gather", "barrier", "allreduce", "allreduce.wait"]
    part = 10 * 8 * (comm.size - 1)
    expected = [2 * part, part, part * (comm.rank == 1), 16 * (comm.rank > 0), 0, 2 * part, 0]
    assert [event.nbytes for event in grid.recorder.events] == expected
    assert (grid.recorder.totals.bytes_sent, grid.recorder.totals.messages) == (sum(expected), 6)


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_split_makes_a_group_of_the_ranks_of_one_color_in_the_same_order(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    color = int(grid.rank in (1, 2))
    part = grid.world.split(color, "part")
    members = [rank for rank in range(grid.size) if (rank in (1, 2)) == bool(color)]
    assert (part.axis, part.size, part.rank) == ("part", len(members), members.index(grid.rank))
    ranks = np.full(len(members), -1)
    ranks[part.rank] = grid.rank
    part.allgather_rows(ranks)
    assert ranks.tolist() == members
    assert part.size == 1 or grid.recorder.events[-1].axis == "part"


# -- agreement ---------------------------------------------------------------------------------------------------------


SURROGATE = "\udc80"  # stands for a byte of a file name that is not UTF-8


@pytest.mark.in_process(ranks=[1, 3])
def test_the_lowest_failing_rank_is_known_to_all(comm: MPI.Intracomm) -> None:
    group, last = ProcessGrid(comm).world, comm.size - 1

    def fail() -> None:
        if comm.rank:
            raise SettingError("lr", comm.rank, "is wrong")

    assert agree(group, lambda: comm.rank) == comm.rank
    assert [lowest_rank(group, comm.rank >= first) for first in (0, last, comm.size)] == [0, last, None]
    if comm.size > 1:
        with pytest.raises(HybridnnError, match=f"lr = {max(comm.rank, 1)}") as raised:
            agree(group, fail)
        assert isinstance(raised.value, SettingError) == (comm.rank > 0)


@pytest.mark.in_process(ranks=[1, 3])
def test_texts_and_values_are_compared(comm: MPI.Intracomm) -> None:
    group, own = ProcessGrid(comm).world, "é" * comm.rank
    assert gather_texts(group, own) == ["é" * rank for rank in range(comm.size)]
    assert broadcast_text(group, f"{SURROGATE}{comm.rank}", comm.size - 1) == f"{SURROGATE}{comm.size - 1}"
    assert value_of_first(group, lambda: {"rank": comm.rank, "name": SURROGATE}) == {"rank": 0, "name": SURROGATE}
    assert same_text_on_all(group, SURROGATE)
    assert same_text_on_all(group, own) == (comm.size == 1)
    found = unequal_values(group, lambda: {"lr": "0.1" if comm.rank == 1 else "0.01", "seed": "0"})
    assert [value.text for value in found] == ["lr: rank 1 has 0.1, ranks 0, 2 have 0.01"] * (comm.size > 1)
