"""A stand-in for CuPy and a GPU that does nothing before somebody waits for it.

Work given to a stream stays undone until an event or the stream is waited for, or is asked whether it is done, which
lets one piece of work pass. What reads the memory of the device, or pinned memory, too early finds old numbers there,
and what is reused too early is overwritten. Memory lies in the host, so MPI can be handed the address of an array.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["STALE", "DeviceArray", "StandInCupy"]

STALE = 99
"""What memory holds before anything was computed."""


class Stream:
    """Work in order, some of it waiting for events of other streams; or a part of what is recorded.

    Parameters
    ----------
    device : StandInCupy, optional
        On which it can be made the current stream.
    """

    def __init__(self, device: StandInCupy | None = None) -> None:
        self._work: deque[Callable[[], None] | Event] = deque()
        self._device, self._before = device, self
        self.capture: Capture | None = None
        self.given = self.done = 0
        self.ptr = id(self)

    def __enter__(self) -> Stream:
        assert self._device is not None
        self._before, self._device.current = self._device.current, self
        return self

    def __exit__(self, *_: object) -> None:
        assert self._device is not None
        self._device.current = self._before

    def give(self, work: Callable[[], None] | Event) -> None:
        if self.capture is not None:
            self.capture.lines[self].append(work)
            return
        self._work.append(work)
        self.given += 1

    def wait_event(self, event: Event) -> None:
        if event.capture is None:
            refuse(self.capture is not None, "a recorded stream waits for what is not recorded")
        else:
            refuse(event.capture.ended, "the recording that the event belongs to has ended")
            refuse(self.capture not in (None, event.capture), "one stream in two recordings")
            event.capture.join(self)
        self.give(event.now())

    def begin_capture(self) -> None:
        refuse(self.capture is not None, "the stream is being recorded")
        self.capture = Capture(self)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def end_capture(self) -> Graph:
        capture = self.capture
        refuse(capture is None or capture.origin is not self, "no recording began with this stream")
        assert capture is not None
        assert self._device is not None
        capture.end()
        return Graph(capture, self._device)

    def step(self) -> None:
        """Do the next piece of work, or one of what it waits for."""
        first = self._work[0]
        if isinstance(first, Event) and not first.reached:
            first.stream.step()
            return
        self._work.popleft()
        self.done += 1
        if not isinstance(first, Event):
            first()

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for a stream that is being recorded")
        while self._work:
            self.step()


class Event:
    stream: Stream
    until: int
    capture: Capture | None = None

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None: ...

    def record(self, stream: Stream) -> None:
        self.stream, self.until, self.capture = stream, stream.given, stream.capture
        if self.capture is not None:
            self.until = len(self.capture.lines[stream])

    def now(self) -> Event:
        """The event as it is recorded now."""
        event = Event()
        event.stream, event.until, event.capture = self.stream, self.until, self.capture
        return event

    @property
    def reached(self) -> bool:
        return self.stream.done >= self.until

    @property
    def done(self) -> bool:
        refuse(self.capture is not None, "nobody can know whether what is recorded is done")
        if self.reached:
            return True
        self.stream.step()  # time passes
        return False

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for what is recorded")
        while not self.reached:
            self.stream.step()


class Capture:
    """What streams are told while it is recorded: a line for each of them, and where one waits for another.

    Refuses what CUDA refuses (CUDA C++ Programming Guide, "Cross-stream Dependencies and Events" and "Prohibited and
    Unhandled Operations").
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.lines: dict[Stream, list[Callable[[], None] | Event]] = {origin: []}
        self.ended = False

    def join(self, stream: Stream) -> None:
        stream.capture = self
        self.lines.setdefault(stream, [])

    def end(self) -> None:
        for stream in self.lines:
            stream.capture = None
        self.ended = True
        waited_for, looked_at = {self.origin: len(self.lines[self.origin])}, -1
        while sum(waited_for.values()) != looked_at:
            looked_at = sum(waited_for.values())
            for stream, until in list(waited_for.items()):
                for event in self.lines[stream][:until]:
                    if isinstance(event, Event):
                        waited_for[event.stream] = max(waited_for.get(event.stream, 0), event.until)
        unjoined = any(waited_for.get(stream, 0) < len(line) for stream, line in self.lines.items())
        refuse(unjoined, "a stream takes part that the first one does not wait for")


class Graph:
    """What was recorded, to be put in a stream's line."""

    def __init__(self, capture: Capture, device: StandInCupy) -> None:
        self._capture, self._launches, self._number = capture, device.launches, len(device.launches)
        device.launches.append(0)
        finalize(self, device.ended.append, "graph")

    def launch(self, stream: Stream) -> None:
        """Let new lines begin after what `stream` was told, and `stream` go on when the first of them has ended."""
        self._launches[self._number] += 1
        origin, lines = self._capture.origin, {line: Stream() for line in self._capture.lines}
        before = Event()
        before.record(stream)
        lines[origin].give(before)
        for line, recorded in self._capture.lines.items():
            for work in recorded:
                if isinstance(work, Event):
                    event = Event()
                    event.stream, event.until = lines[work.stream], work.until + (work.stream is origin)
                    lines[line].give(event)
                else:
                    lines[line].give(work)
        after = Event()
        after.record(lines[origin])
        stream.give(after)


def refuse(wrong: bool, what: str) -> None:
    if wrong:
        raise StandInError(what)


class StandInError(RuntimeError):
    """What CUDA would refuse."""


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
        Graphs and connections that are no more, in the order in which they went.
    """

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        self.current = Stream(self)
        self._pinned: list[NDArray[np.uint8]] = []
        self.launches: list[int] = []
        self.ended: list[str] = []
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(CUDARuntimeError=StandInError),
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
