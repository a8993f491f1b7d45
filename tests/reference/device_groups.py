"""Groups that take arrays of a stand-in device, and numbers for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.factory import TransportFactory
from hybridnn.parallel.grid import ProcessGrid
from reference.stand_in_device import StandInCupy

if TYPE_CHECKING:
    from mpi4py import MPI

NAMES = ["staging", "mpi", "nccl"]
WHOLE, CHUNKS = 2**22, 40  # bytes: arrays in one message, and in a few numbers at a time


def data_of(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(100 + rank).integers(0, 9, shape).astype(dtype)


def device_group(comm: MPI.Intracomm, name: Any, chunk: int = WHOLE, **how: Any) -> tuple[Group, StandInCupy]:
    """The batch group of all ranks."""
    grid, cupy = ProcessGrid(comm, **how), StandInCupy(comm)
    grid.attach_device(TransportFactory(name, Device(cupy, chunk)))
    return grid.batch_group, cupy
