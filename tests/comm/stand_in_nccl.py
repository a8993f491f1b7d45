"""A stand-in for NCCL, as the stand-in for CuPy has it: see ``stand_in_device.py``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

    from comm.stand_in_device import StandInCupy

__all__ = ["StandInNccl"]


class StandInNccl:
    """Collectives of MPI in the order of a stream, on the memory at an address; calls of a group when it ends."""

    NCCL_SUM, NCCL_MAX = "sum", "max"
    NcclError = RuntimeError

    def __init__(self, comm: MPI.Intracomm, device: StandInCupy) -> None:
        self._comm, self._device = comm, device
        self._grouped: list[tuple[int, Callable[[], None]]] | None = None
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> np.dtype[Any]:
        if not name.startswith("NCCL_"):
            raise AttributeError(name)
        return np.dtype(name.removeprefix("NCCL_").lower())

    def get_unique_id(self) -> bytes:
        assert self._comm.rank == 0
        return b"the ranks of one test"

    def NcclCommunicator(self, size: int, unique_id: bytes, rank: int) -> StandInCommunicator:  # noqa: N802
        assert (size, rank, unique_id) == (self._comm.size, self._comm.rank, b"the ranks of one test")
        communicator = StandInCommunicator(self)
        finalize(communicator, self._device.ended.append, "connection")
        return communicator

    def groupStart(self) -> None:  # noqa: N802
        assert self._grouped is None
        self._grouped = []

    def groupEnd(self) -> None:  # noqa: N802
        grouped, self._grouped = self._grouped or [], None
        for pointer, call in grouped:
            next(stream for stream in self._device.streams if stream.ptr == pointer).give(call)

    def allReduce(self, send: int, into: int, count: int, kind: Any, how: str, stream: int) -> None:  # noqa: N802
        self._later("allReduce", stream, lambda: self._reduce(send, into, count, kind, how, slice(0, count)))

    def reduceScatter(self, send: int, into: int, count: int, kind: Any, how: str, stream: int) -> None:  # noqa: N802
        own = slice(self._comm.rank * count, (self._comm.rank + 1) * count)
        everything = count * self._comm.size
        self._later("reduceScatter", stream, lambda: self._reduce(send, into, everything, kind, how, own))

    def reduce(self, send: int, into: int, count: int, kind: Any, how: str, root: int, stream: int) -> None:
        part = slice(0, count) if self._comm.rank == root else None
        self._later("reduce", stream, lambda: self._reduce(send, into, count, kind, how, part))

    def broadcast(self, send: int, into: int, count: int, kind: Any, root: int, stream: int) -> None:
        def call() -> None:
            memory(into, count, kind)[:] = self._comm.bcast(memory(send, count, kind), root)

        self._later("broadcast", stream, call)

    def allGather(self, send: int, into: int, count: int, kind: Any, stream: int) -> None:  # noqa: N802
        def call() -> None:
            everyone = self._comm.allgather(memory(send, count, kind).copy())
            memory(into, count * self._comm.size, kind)[:] = np.concatenate(everyone)

        self._later("allGather", stream, call)

    def _later(self, name: str, stream: int, call: Callable[[], None]) -> None:
        assert self._grouped is not None
        self.calls.append(name)
        self._grouped.append((stream, call))

    def _reduce(self, send: int, into: int, count: int, kind: Any, how: str, part: slice | None) -> None:
        everyone = np.array(self._comm.allgather(memory(send, count, kind).copy()))
        total = (everyone.max(0) if how == "max" else everyone.sum(0)).astype(kind)
        if part is not None:
            memory(into, part.stop - part.start, kind)[:] = total[part]


class StandInCommunicator:
    """A connection, on which any collective may be called."""

    def __init__(self, nccl: StandInNccl) -> None:
        self._nccl = nccl

    def __getattr__(self, name: str) -> Callable[..., None]:
        return getattr(self._nccl, name)


def memory(address: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The numbers at an address."""
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)
