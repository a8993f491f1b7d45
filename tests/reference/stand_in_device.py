"""A stand-in for CuPy and a GPU that does nothing before somebody waits for it.

Work given to a stream stays undone until an event or the stream is waited for, or is asked whether it is done, which
lets one piece of work pass. What reads the memory of the device, or pinned memory, too early finds old numbers there,
and what is reused too early is overwritten. Memory lies in the host, so MPI can be handed the address of an array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Event as ThreadEvent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.factory import TransportFactory
from hybridnn.parallel.grid import ProcessGrid
from reference.stand_in_streams import Event, StandInError, Stream

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "ONE_MESSAGE",
    "SMALL_PIECES",
    "STALE",
    "TRANSPORTS",
    "DeviceArray",
    "StandInCupy",
    "StandInNccl",
    "data_of",
    "device_group",
]

STALE = 99
"""What memory holds before anything was computed."""


class DeviceArray:
    """Numbers that the host can reach only by what CuPy has for it."""

    def __init__(self, memory: NDArray[Any], device: StandInCupy) -> None:
        self._memory, self._device = memory, device
        self.data = SimpleNamespace(ptr=memory.ctypes.data if memory.size else 0)
        self.dtype, self.shape, self.size = memory.dtype, memory.shape, memory.size
        self.nbytes, self.itemsize, self.flags = memory.nbytes, memory.itemsize, memory.flags
        self.__cuda_array_interface__ = {**memory.__array_interface__, "version": 3, "stream": None}

    def __len__(self) -> int:
        return len(self._memory)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("no host array is made of a device's by itself")

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self._memory[key], self._device)

    def __setitem__(self, key: Any, value: DeviceArray | float) -> None:
        assert isinstance(value, DeviceArray | int | float)
        target, source = self._memory[key], value._memory if isinstance(value, DeviceArray) else value
        self._device.current.give(lambda: np.copyto(target, source))

    @property
    def T(self) -> DeviceArray:  # noqa: N802 - the name CuPy gives it
        return DeviceArray(self._memory.T, self._device)

    def reshape(self, *shape: int) -> DeviceArray:
        return DeviceArray(self._memory.reshape(*shape), self._device)

    def get(self, stream: Stream | None = None, out: Any = None, blocking: bool = True) -> None:
        self._require_like(out)
        stream = stream or self._device.current
        stream.give(lambda: np.copyto(out, self._memory))
        if blocking:
            stream.synchronize()

    def set(self, source: NDArray[Any], stream: Stream | None = None) -> None:
        self._require_like(source)
        if not self._device.is_pinned(source):
            source = source.copy()  # as CUDA does before it returns
        (stream or self._device.current).give(lambda: np.copyto(self._memory, source))

    def _require_like(self, host: NDArray[Any]) -> None:
        assert isinstance(host, np.ndarray)
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert host.flags.c_contiguous


class StandInCupy:
    """What the transports use of the module ``cupy``.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        Ranks that the stand-in for NCCL connects; all of them at once.

    Attributes
    ----------
    launches : list of int
        How often each graph was launched.
    ended : list of str
        Graphs and connections that are no more, in the order in which they went; an aborted connection is told apart.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.current = Stream(self)
        self._pinned: list[NDArray[np.uint8]] = []
        self.launches: list[int] = []
        self.ended: list[str] = []
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=StandInError,
                eventQuery=Event.query,
                getDevice=lambda: 0,
                setDevice=lambda index: None,
            ),
            Stream=self._new_stream,
            Event=Event,
            get_current_stream=lambda: self.current,
            alloc_pinned_memory=self._pin,
            nccl=None if comm is None else StandInNccl(comm, self),
        )
        self.streams: list[Stream] = []

    @property
    def pinned_bytes(self) -> int:
        return sum(memory.size for memory in self._pinned)

    def compute(self, values: NDArray[Any]) -> DeviceArray:
        """An array that the current stream fills some time, with `values`."""
        memory = np.full_like(values, STALE)
        self.current.give(lambda: np.copyto(memory, values))
        return DeviceArray(memory, self)

    def numbers(self, array: DeviceArray) -> NDArray[Any]:
        """The numbers of `array` for what the current stream is told next."""
        self.current.synchronize()
        return array._memory.copy()

    def is_pinned(self, host: NDArray[Any]) -> bool:
        return any(np.may_share_memory(host, memory) for memory in self._pinned)

    def _new_stream(self, non_blocking: bool = False) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def _pin(self, nbytes: int) -> memoryview:
        self._pinned.append(np.full(nbytes, STALE, np.uint8))
        return memoryview(self._pinned[-1])


NAME = b"the ranks of one test"


class StandInNccl:
    """Connections of all ranks at once; calls of a group happen when it ends.

    Attributes
    ----------
    calls : list of str
        Collectives that were asked for.
    failing : set of int
        Ranks that cannot be connected. The others wait for them, as NCCL does.
    late : threading.Event
        Ends their waiting, when they are connected nevertheless.
    """

    NCCL_SUM, NCCL_MAX = "sum", "max"

    def __init__(self, comm: MPI.Intracomm, device: StandInCupy) -> None:
        self.comm, self.device = comm, device
        self.grouped: list[tuple[Any, Callable[[], None]]] | None = None
        self.calls: list[str] = []
        self.failing: set[int] = set()
        self.late = ThreadEvent()
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
        def call() -> None:
            everyone = np.array(self._comm.allgather(memory(send, count, kind).copy()))
            memory(into, count, kind)[:] = (everyone.max(0) if how == "max" else everyone.sum(0)).astype(kind)

        self._later("allReduce", stream, call)

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


def memory(address: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The numbers at an address."""
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)


TRANSPORTS = ["staging", "mpi", "nccl"]
ONE_MESSAGE, SMALL_PIECES = 2**22, 40  # bytes: arrays in one message, and in a few numbers at a time


def data_of(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(100 + rank).integers(0, 9, shape).astype(dtype)


def device_group(comm: MPI.Intracomm, name: Any, chunk: int = ONE_MESSAGE, **how: Any) -> tuple[Group, StandInCupy]:
    """The batch group of all ranks."""
    grid, cupy = ProcessGrid(comm, **how), StandInCupy(comm)
    grid.attach_device(TransportFactory(name, Device(cupy, chunk)))
    return grid.batch_group, cupy
