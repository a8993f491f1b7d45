"""A program of its own, as it may crash or hang: send arrays that lie on GPUs through MPI, as the training would.

``python -m hybridnn.diagnostics.device_mpi_probe SECONDS [PLACE ...]``, alone or as two ranks: see
`hybridnn.diagnostics.device_mpi_trial`, which starts it and reads what it prints.
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
from hybridnn.comm.transports.device_mpi import DeviceMpi
from hybridnn.comm.transports.transport import Array
from hybridnn.diagnostics.device_mpi_trial import GPUS, PROBLEM, RANKS
from hybridnn.diagnostics.failsafe import exit_now

SIZES = (16, 1 << 18, CHUNK_BYTES // 4 + 1)
"""Numbers of a message: small ones are copied in another way than large ones, and the last travel in two pieces."""

TAG = 1


def what_goes_wrong(
    comm: Any, device: Device, to_device: Callable[[NDArray[Any]], Array], to_host: Callable[[Array], NDArray[Any]]
) -> str:
    """What is wrong with messages from every rank to the next, by way of the transport that is to be used.

    Parameters
    ----------
    comm : MPI.Intracomm
    device : Device
    to_device, to_host : callable
        As `Kernels.to_device` and `Kernels.to_host`.

    Returns
    -------
    str
        Empty if every message arrives as it was sent.
    """
    transport = DeviceMpi(comm, MESSAGE_LIMIT, device)
    rank, size = comm.Get_rank(), comm.Get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for n in SIZES:
        for synchronous in (False, True):
            room = to_device(np.full(n, -1, np.float32))
            receives = transport.receive(room, before, TAG)
            sends = transport.send(to_device(_numbers(n, rank)), after, TAG, synchronous)
            for requests in (receives, sends):
                requests[0].Waitall(requests)
            if not np.array_equal(to_host(room), _numbers(n, before)):
                return f"a message of {n:,} numbers arrived with other values than were sent"
    return ""


def _numbers(n: int, rank: int) -> NDArray[np.float32]:
    return np.arange(n, dtype=np.float32) + rank


def _use_gpu(cupy: Any, places: Sequence[str], rank: int) -> str:
    """Compute on the GPU that the training's rank has, if this process may see it; returns where it is plugged in."""
    runtime = cupy.cuda.runtime
    index = rank % runtime.getDeviceCount()
    if places:
        with suppress(runtime.CUDARuntimeError):  # each rank of the training may see no other GPU than its own
            index = runtime.deviceGetByPCIBusId(places[rank % len(places)])
    cupy.cuda.Device(index).use()
    place: str = runtime.deviceGetPCIBusId(index)
    return place


def _main(seconds: str, *places: str) -> str:
    """Try it; returns what goes wrong, empty if nothing does."""
    signal.alarm(int(seconds))  # ends this process even where CUDA or MPI never return
    comm = import_mpi().COMM_WORLD
    print(f"{RANKS}{comm.Get_size()}", flush=True)
    try:
        import cupy

        used = comm.allgather(_use_gpu(cupy, places, comm.Get_rank()))
        print(f"{GPUS}{len(set(used))}", flush=True)
        return what_goes_wrong(comm, Device(cupy), cupy.asarray, cupy.asnumpy)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    problem = _main(*sys.argv[1:])
    if problem:
        print(f"{PROBLEM}{problem}", flush=True)
        exit_now(1)  # the other rank may wait for this one, which MPI would wait for in turn
