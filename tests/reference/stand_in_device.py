"""A stand-in for CuPy and a GPU that does nothing before somebody waits for it.

Work given to a stream stays undone until an event or the stream is waited for, or is asked whether it is done, which
lets one piece of work pass. What reads the memory of the device, or pinned memory, too early finds old numbers there,
and what is reused too early is overwritten. Memory lies in the host, so MPI can be handed the address of an array.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reference.stand_in_nccl import StandInNccl
from reference.stand_in_streams import Event, StandInError, Stream

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["STALE", "DeviceArray", "StandInCupy"]

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
