"""Program that sends arrays of GPUs through MPI, alone or as two ranks; a child process, as it may crash or hang.

``python -m hybridnn.diagnostics.device_mpi_probe SECONDS [BUS_ID ...]``: `hybridnn.diagnostics.device_mpi_trial` starts
it and reads its output.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import MESSAGE_LIMIT
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.transports.device import CHUNK_BYTES, Device
from hybridnn.comm.transports.staging import DeviceMpi
from hybridnn.diagnostics.device_mpi_trial import GPUS, PROBLEM, RANKS
from hybridnn.diagnostics.failsafe import exit_now
from hybridnn.kernels.backend import Array

SIZES = (16, 1 << 18, CHUNK_BYTES // 4 + 1)
"""Elements of a message: small and large ones are copied in different ways, and the last one in two pieces."""

TAG = 1


def find_problem(
    comm: Any, device: Device, to_device: Callable[[NDArray[Any]], Array], to_host: Callable[[Array], NDArray[Any]]
) -> str:
    """Send messages from every rank to the next through `DeviceMpi`; returns an error message, empty without one."""
    transport = DeviceMpi(comm, MESSAGE_LIMIT, device)
    rank, size = comm.Get_rank(), comm.Get_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    for n in SIZES:
        for synchronous in (False, True):
            received = to_device(np.full(n, -1, np.float32))
            receives = transport.receive(received, previous, TAG)
            sends = transport.send(to_device(_elements(n, rank)), following, TAG, synchronous)
            for requests in (receives, sends):
                requests[0].Waitall(requests)
            if not np.array_equal(to_host(received), _elements(n, previous)):
                return f"a message of {n:,} elements arrived with other values than were sent"
    return ""


def _elements(n: int, rank: int) -> NDArray[np.float32]:
    return np.arange(n, dtype=np.float32) + rank


def _use_gpu(cupy: Any, bus_ids: Sequence[str], rank: int) -> str:
    """Select the GPU of the training's rank, if this process may see it; returns its bus ID."""
    runtime = cupy.cuda.runtime
    index = rank % runtime.getDeviceCount()
    if bus_ids:
        with suppress(runtime.CUDARuntimeError):  # each rank of the training may see no other GPU than its own
            index = runtime.deviceGetByPCIBusId(bus_ids[rank % len(bus_ids)])
    cupy.cuda.Device(index).use()
    bus_id: str = runtime.deviceGetPCIBusId(index)
    return bus_id


def _main(seconds: str, *bus_ids: str) -> str:
    """Carry out the trial; returns an error message, empty without one."""
    signal.alarm(int(seconds))  # ends this process also where CUDA or MPI hang
    comm = import_mpi().COMM_WORLD
    print(f"{RANKS}{comm.Get_size()}", flush=True)
    try:
        import cupy

        used = comm.allgather(_use_gpu(cupy, bus_ids, comm.Get_rank()))
        print(f"{GPUS}{len(set(used))}", flush=True)
        return find_problem(comm, Device(cupy), cupy.asarray, cupy.asnumpy)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    problem = _main(*sys.argv[1:])
    if problem:
        print(f"{PROBLEM}{problem}", flush=True)
        exit_now(1)  # MPI would wait for the other rank, which may wait for this one
