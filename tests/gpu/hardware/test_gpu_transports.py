"""Every call of a group on arrays of a GPU, which ranks share if there are fewer GPUs, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn.comm.mpi import load_mpi_library
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_kernels import cupy_kernels
from hybridnn.gpu.device import Device
from hybridnn.gpu.device_choice import choose_device
from hybridnn.gpu.nccl import Nccl
from hybridnn.gpu.setup import TransportFactory, choose_transport, cuda_support
from hybridnn.parallel.grid import ProcessGrid
from reference.emulated_device import data_of
from reference.group_calls import CALLS, Case, allreduce

if TYPE_CHECKING:
    from mpi4py import MPI

SHAPES = ((1 << 20, 3), (11, 3), (6, 2), (2, 5), (7,), (5, 0))
CHUNKS = (2**22, 2**16)


def late(cupy: Any, numbers: NDArray[Any]) -> Any:
    """`numbers` on the device, available only after much other work of the stream."""
    array = cupy.full(numbers.shape, 99, numbers.dtype)
    busy = cupy.ones((1500, 1500), np.float64)
    for _ in range(3):
        busy = busy @ busy * 1e-4
    array[...] = cupy.asarray(numbers) + 0 * busy[0, 0].astype(numbers.dtype)
    return array


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", ["staging", "mpi", "nccl"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_call(comm: MPI.Intracomm, dtype: str, name: str, chunk: int) -> None:
    if name == "mpi" and not cuda_support():
        pytest.skip("this MPI library does not say that it supports CUDA")
    grid = ProcessGrid(comm)
    cupy = choose_device("gpu", grid.node_group.rank).cupy
    try:
        choice = choose_transport(grid, name, cupy)
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    assert grid.attach_device(TransportFactory(choice.name, Device(cupy, chunk))) == ""
    cases = [Case(grid.batch_group, dtype, shape, partial(late, cupy), cupy.asnumpy) for shape in SHAPES]
    for case, call in product(cases, CALLS):
        call(case)
    grid.disconnect()
    for case in cases:
        allreduce(case)  # staged, after any connection


def with_nccl() -> tuple[Any, Any]:
    """CuPy with NCCL, and a communicator of this process alone."""
    cupy = choose_device("gpu", 0).cupy
    if not cupy.cuda.nccl.available:
        pytest.skip("CuPy finds no NCCL")
    try:
        return cupy, load_mpi_library().COMM_SELF
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


def test_order_of_the_arguments_of_nccl() -> None:
    """In a group of one rank, which needs no second GPU, every collective returns its input."""
    cupy, alone = with_nccl()
    nccl = Nccl(alone, 2**30, Device(cupy))
    numbers = data_of(0, (1000, 3))
    calls: list[Callable[[Any], list[Any]]] = [
        lambda array: nccl.allreduce(array, "sum"),
        lambda array: nccl.allreduce(array, "max"),
        lambda array: nccl.allgather(array),
        lambda array: nccl.broadcast(array, 0),
    ]
    for call in calls:
        array = late(cupy, numbers)
        requests = call(array)
        requests[0].Waitall(requests)
        np.testing.assert_array_equal(array.get(), numbers)
    nccl.disconnect()


def test_nccl_can_be_captured() -> None:
    """In a group of one rank; the graph is freed before the connection, as NCCL requires."""
    cupy, alone = with_nccl()
    kernels, nccl = cupy_kernels(), Nccl(alone, 2**30, Device(cupy))
    numbers = data_of(0, (1000, 3))
    array, beside = cupy.asarray(numbers), cupy.asarray(numbers)

    def work() -> None:
        requests = [nccl.allreduce(array, "sum"), nccl.broadcast(array, 0)]
        kernels.add(beside, beside, beside)
        assert not requests[0][0].Testall(requests[0])
        for request in requests:
            request[0].Waitall(request)
        kernels.add(beside, array, array)

    work()
    replay = kernels.record(work)
    np.testing.assert_array_equal(array.get(), 3 * numbers)
    for times in (7, 15, 31):  # times numbers: `beside` is 4, 8 and 16 times numbers, and is added to `array`
        replay()
        np.testing.assert_array_equal(array.get(), times * numbers)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        kernels.record(lambda: cupy.cuda.get_current_stream().synchronize())
    replay()
    np.testing.assert_array_equal(array.get(), 63 * numbers)
    recordings = {1: replay}
    del replay
    assert nccl.register_graphs(recordings)
    nccl.disconnect()
    assert not recordings
    assert not nccl.register_graphs(recordings)
