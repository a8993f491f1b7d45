"""A stand-in for NCCL, as the stand-in for CuPy has it: see ``stand_in_device.py``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

    from reference.stand_in_device import StandInCupy

__all__ = ["StandInNccl"]

NAME = b"the ranks of one test"


class StandInNccl:
    """Connections of all ranks at once; calls of a group happen when it ends.

    Attributes
    ----------
    calls : list of str
        Collectives that were asked for.
    failing : set of int
        Ranks that cannot be connected. The others wait for them, as NCCL does.
    late : Event
        Ends their waiting, when they are connected nevertheless.
    """

    NCCL_SUM, NCCL_MAX = "sum", "max"

    def __init__(self, comm: MPI.Intracomm, device: StandInCupy) -> None:
        self.comm, self.device = comm, device
        self.grouped: list[tuple[Any, Callable[[], None]]] | None = None
        self.calls: list[str] = []
        self.failing: set[int] = set()
        self.late = Event()
        self.connections = 0

    def __getattr__(self, name: str) -> np.dtype[Any]:
        if not name.startswith("NCCL_"):
            raise AttributeError(name)
        return np.dtype(name.removeprefix("NCCL_").lower())

    def get_unique_id(self) -> bytes:
        assert self.comm.rank == 0
        return NAME

    def NcclCommunicator(self, size: int, unique_id: bytes, rank: int) -> StandInCommunicator:  # noqa: N802
        assert (size, rank, unique_id) == (self.comm.size, self.comm.rank, NAME)
        if rank in self.failing:
            raise KeyError(6)  # what CuPy makes of ncclRemoteError
        if self.failing:
            self.late.wait()
        return StandInCommunicator(self)

    def groupStart(self) -> None:  # noqa: N802
        assert self.grouped is None
        self.grouped = []

    def groupEnd(self) -> None:  # noqa: N802
        grouped, self.grouped = self.grouped or [], None
        for stream, call in grouped:
            stream.give(call)


class StandInCommunicator:
    """A connection: collectives of MPI in the order of a stream, on the memory at an address."""

    def __init__(self, nccl: StandInNccl) -> None:
        self._nccl, self._comm = nccl, nccl.comm
        self._recorded_in: list[Any] = []
        self._number = nccl.connections
        self._lives = True
        nccl.connections += 1

    def destroy(self) -> None:
        """All ranks end the same connection at a time."""
        assert set(self._comm.allgather(self._number)) == {self._number}
        self._end("connection")

    def abort(self) -> None:
        self._end("aborted connection")

    def _end(self, how: str) -> None:
        assert self._lives
        waits = any(capture.graph() is not None for capture in self._recorded_in)
        assert not waits, "NCCL would wait for the recordings for ever"
        self._lives = False
        self._nccl.device.ended.append(how)

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

    def _later(self, name: str, pointer: int, call: Callable[[], None]) -> None:
        assert self._lives
        assert self._nccl.grouped is not None
        self._nccl.calls.append(name)
        stream = next(stream for stream in self._nccl.device.streams if stream.ptr == pointer)
        if stream.is_capturing():
            self._recorded_in.append(stream.capture)
        self._nccl.grouped.append((stream, call))

    def _reduce(self, send: int, into: int, count: int, kind: Any, how: str, part: slice | None) -> None:
        everyone = np.array(self._comm.allgather(memory(send, count, kind).copy()))
        total = (everyone.max(0) if how == "max" else everyone.sum(0)).astype(kind)
        if part is not None:
            memory(into, part.stop - part.start, kind)[:] = total[part]


def memory(address: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The numbers at an address."""
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)
