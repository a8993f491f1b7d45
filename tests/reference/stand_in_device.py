"""Stand-in for CuPy, NCCL and a GPU, which executes enqueued work only when the program waits for it.

Work in a stream is executed when the program waits for an event or the stream; a query executes one piece of work. So
a program that reads device memory or pinned memory too early gets old values, and memory that is reused too early is
overwritten. The memory is host memory, so MPI can use the address of an array.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from threading import Event as ThreadEvent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary, finalize, ref

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.gpu.device import Device
from hybridnn.gpu.setup import TransportFactory
from hybridnn.parallel.grid import ProcessGrid

if TYPE_CHECKING:
    from mpi4py import MPI


class Stream:
    """Queue of work and of events of other streams to wait for; during a capture, it records instead.

    A `device` can make it the current stream.
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

    def enqueue(self, work: Callable[[], None] | Event) -> None:
        if self.capture is not None:
            self.capture.lines[self].append(work)
            return
        self._work.append(work)
        self.given += 1

    def wait_event(self, event: Event) -> None:
        if event.capture is None:
            refuse(self.capture is not None, "a captured stream waits for an event outside the capture")
        else:
            refuse(event.capture.ended, "the capture of the event has ended")
            refuse(self.capture not in (None, event.capture), "one stream in two captures")
            event.capture.join(self)
        self.enqueue(event.now())

    def begin_capture(self) -> None:
        refuse(self.capture is not None, "the stream is being captured")
        self.capture = Capture(self)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def end_capture(self) -> Graph:
        capture = self.capture
        refuse(capture is None or capture.origin is not self, "no capture began with this stream")
        assert capture is not None
        assert self._device is not None
        capture.end()
        graph = Graph(capture, self._device)
        capture.graph = ref(graph)
        return graph

    def step(self) -> None:
        """Execute the next piece of work, or of the stream that it waits for."""
        first = self._work[0]
        if isinstance(first, Event) and not first.reached:
            first.stream.step()
            return
        self._work.popleft()
        self.done += 1
        if not isinstance(first, Event):
            first()

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for a stream during a capture")
        while self._work:
            self.step()


class Event:
    stream: Stream
    until: int
    capture: Capture | None = None

    known: ClassVar[WeakValueDictionary[int, Event]] = WeakValueDictionary()

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.ptr = id(self)
        self.known[self.ptr] = self

    def record(self, stream: Stream) -> None:
        self.stream, self.until, self.capture = stream, stream.given, stream.capture
        if self.capture is not None:
            self.until = len(self.capture.lines[stream])

    def now(self) -> Event:
        """A copy of the event in its current state."""
        event = Event()
        event.stream, event.until, event.capture = self.stream, self.until, self.capture
        return event

    @property
    def reached(self) -> bool:
        return self.stream.done >= self.until

    @classmethod
    def query(cls, ptr: int) -> int:
        """``cudaEventQuery``."""
        event = cls.known[ptr]
        refuse(event.capture is not None, "a captured event cannot be queried")
        if event.reached:
            return 0
        event.stream.step()  # progress of the device
        return 600

    def synchronize(self) -> None:
        refuse(self.capture is not None, "the host waits for a captured event")
        while not self.reached:
            self.stream.step()


class Capture:
    """Recorded work of all streams that take part, and the events between them.

    It raises the errors of CUDA (CUDA C++ Programming Guide, "Cross-stream Dependencies and Events" and "Prohibited
    and Unhandled Operations").
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.lines: dict[Stream, list[Callable[[], None] | Event]] = {origin: []}
        self.ended = False
        self.graph: Callable[[], Graph | None] = lambda: None

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
        refuse(unjoined, "the first stream does not wait for all captured streams")


class Graph:
    """Captured work, which can be launched in a stream."""

    def __init__(self, capture: Capture, device: StandInCupy) -> None:
        self._capture, self._launches, self._number = capture, device.launches, len(device.launches)
        device.launches.append(0)
        finalize(self, device.ended.append, "graph")

    def launch(self, stream: Stream) -> None:
        """Start copies of the captured streams after the work of `stream`, which waits for the first of them."""
        self._launches[self._number] += 1
        origin, lines = self._capture.origin, {line: Stream() for line in self._capture.lines}
        before = Event()
        before.record(stream)
        lines[origin].enqueue(before)
        for line, recorded in self._capture.lines.items():
            for work in recorded:
                if isinstance(work, Event):
                    event = Event()
                    event.stream, event.until = lines[work.stream], work.until + (work.stream is origin)
                    lines[line].enqueue(event)
                else:
                    lines[line].enqueue(work)
        after = Event()
        after.record(lines[origin])
        stream.enqueue(after)


def refuse(condition: bool, message: str) -> None:
    if condition:
        raise StandInError(message)


class StandInError(RuntimeError):
    """An error of CUDA."""


STALE = 99
"""Content of memory before it is written."""


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Array whose elements are accessible only through the methods of CuPy."""

    def __init__(self, memory: NDArray[Any], device: StandInCupy) -> None:
        self._memory, self._device = memory, device
        self.data = SimpleNamespace(ptr=memory.ctypes.data if memory.size else 0)
        self.dtype, self.shape, self.size = memory.dtype, memory.shape, memory.size
        self.nbytes, self.itemsize, self.flags = memory.nbytes, memory.itemsize, memory.flags
        self.__cuda_array_interface__ = {**memory.__array_interface__, "version": 3, "stream": None}

    def __len__(self) -> int:
        return len(self._memory)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("implicit conversion to a host array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any, **options: Any) -> Any:
        assert method == "__call__"
        assert not options
        memories = [item._memory if isinstance(item, DeviceArray) else item for item in inputs]
        self._device.current.enqueue(lambda: ufunc(*memories, out=out[0]._memory))
        return out[0]

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self._memory[key], self._device)

    def __setitem__(self, key: Any, value: DeviceArray | float) -> None:
        assert isinstance(value, DeviceArray | int | float)
        target, source = self._memory[key], value._memory if isinstance(value, DeviceArray) else value
        self._device.current.enqueue(lambda: np.copyto(target, source))

    @property
    def T(self) -> DeviceArray:  # noqa: N802 - name in CuPy
        return DeviceArray(self._memory.T, self._device)

    def reshape(self, *shape: int) -> DeviceArray:
        return DeviceArray(self._memory.reshape(*shape), self._device)

    def get(self, stream: Stream | None = None, out: Any = None, blocking: bool = True) -> None:
        self._require_like(out)
        stream = stream or self._device.current
        stream.enqueue(lambda: np.copyto(out, self._memory))
        if blocking:
            stream.synchronize()

    def set(self, source: NDArray[Any], stream: Stream | None = None) -> None:
        self._require_like(source)
        if not self._device.is_pinned(source):
            source = source.copy()  # as CUDA does for memory that is not pinned
        (stream or self._device.current).enqueue(lambda: np.copyto(self._memory, source))

    def _require_like(self, host: NDArray[Any]) -> None:
        assert isinstance(host, np.ndarray)
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert host.flags.c_contiguous


class StandInCupy:
    """The functions of the module ``cupy`` that the transports use; the stand-in for NCCL connects the ranks of `comm`.

    `launches` has the number of launches of each graph, and `ended` the kinds of destroyed graphs and connections, in
    order; aborted connections have a kind of their own.
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
            using_allocator=nullcontext,
            nccl=None if comm is None else StandInNccl(comm, self),
        )
        self.streams: list[Stream] = []

    @property
    def pinned_bytes(self) -> int:
        return sum(memory.size for memory in self._pinned)

    def compute(self, values: NDArray[Any]) -> DeviceArray:
        """An array that the current stream will fill with `values`."""
        memory = np.full_like(values, STALE)
        self.current.enqueue(lambda: np.copyto(memory, values))
        return DeviceArray(memory, self)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        return self.compute(np.zeros(shape, dtype))

    def numbers(self, array: DeviceArray) -> NDArray[Any]:
        """The elements of `array` after all work of the current stream."""
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
    """Connections of all ranks; the calls of a group are enqueued when it ends.

    `calls` has the names of all collectives after the first, which connects the ranks. Those in `failing` cannot; the
    others wait for them, as in NCCL, until the event `late`. `problem` is an error that NCCL noticed after it had
    connected the ranks, or empty.
    """

    NCCL_SUM, NCCL_MAX = "sum", "max"

    def __init__(self, comm: MPI.Intracomm, device: StandInCupy) -> None:
        self.comm, self.device = comm, device
        self.grouped: list[tuple[Any, Callable[[], None]]] | None = None
        self.calls: list[str] = []
        self.failing: set[int] = set()
        self.late = ThreadEvent()
        self.problem = ""
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
        return StandInCommunicator(self)

    def connect(self, rank: int) -> None:
        """What the first collective does."""
        if rank in self.failing:
            raise KeyError(6)  # CuPy's exception for ncclRemoteError
        if self.failing:
            self.late.wait()

    def groupStart(self) -> None:  # noqa: N802
        assert self.grouped is None
        self.grouped = []

    def groupEnd(self) -> None:  # noqa: N802
        grouped, self.grouped = self.grouped or [], None
        for stream, call in grouped:
            stream.enqueue(call)


class StandInCommunicator:
    """A connection: collectives by MPI, in the order of a stream, on memory at an address."""

    def __init__(self, nccl: StandInNccl) -> None:
        self._nccl, self._comm = nccl, nccl.comm
        self._recorded_in: list[Any] = []
        self._number = nccl.connections
        self._is_open, self._is_connected = True, False
        nccl.connections += 1

    def destroy(self) -> None:
        """End the connection, which all ranks must do in the same order."""
        assert set(self._comm.allgather(self._number)) == {self._number}
        self._end("connection")

    def abort(self) -> None:
        self._end("aborted connection")

    def check_async_error(self) -> None:
        assert self._is_open
        if self._nccl.problem:
            raise StandInError(self._nccl.problem)

    def _end(self, how: str) -> None:
        assert self._is_open
        waits = any(capture.graph() is not None for capture in self._recorded_in)
        assert not waits, "NCCL would wait for the graphs without end"
        self._is_open = False
        self._nccl.device.ended.append(how)

    def allReduce(self, send: int, into: int, count: int, kind: Any, how: str, stream: int) -> None:  # noqa: N802
        def call() -> None:
            contributions = np.array(self._comm.allgather(memory(send, count, kind).copy()))
            memory(into, count, kind)[:] = (contributions.max(0) if how == "max" else contributions.sum(0)).astype(kind)

        self._later("allReduce", stream, call)

    def broadcast(self, send: int, into: int, count: int, kind: Any, root: int, stream: int) -> None:
        def call() -> None:
            memory(into, count, kind)[:] = self._comm.bcast(memory(send, count, kind), root)

        self._later("broadcast", stream, call)

    def allGather(self, send: int, into: int, count: int, kind: Any, stream: int) -> None:  # noqa: N802
        def call() -> None:
            contributions = self._comm.allgather(memory(send, count, kind).copy())
            memory(into, count * self._comm.size, kind)[:] = np.concatenate(contributions)

        self._later("allGather", stream, call)

    def _later(self, name: str, pointer: int, call: Callable[[], None]) -> None:
        assert self._is_open
        if not self._is_connected:
            self._nccl.connect(self._comm.rank)
        self._is_connected = True
        stream = next(stream for stream in self._nccl.device.streams if stream.ptr == pointer)
        if stream.is_capturing():
            self._recorded_in.append(stream.capture)
        if self._nccl.grouped is None:
            stream.enqueue(call)
        else:
            self._nccl.calls.append(name)
            self._nccl.grouped.append((stream, call))


def memory(address: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """The elements at an address."""
    raw = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, kind)


TRANSPORTS = ["staging", "mpi", "nccl"]
ONE_MESSAGE, SMALL_PIECES = 2**22, 40  # bytes per piece: whole arrays, and a few elements


def data_of(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(100 + rank).integers(0, 9, shape).astype(dtype)


def device_of(group: Group) -> Device:
    """The device whose arrays a group accepts."""
    assert group._transports is not None
    return group._transports.device


def device_group(comm: MPI.Intracomm, name: Any, chunk: int = ONE_MESSAGE, **how: Any) -> tuple[Group, StandInCupy]:
    """The batch group of all ranks, with a stand-in device and the named transport."""
    grid, cupy = ProcessGrid(comm, **how), StandInCupy(comm)
    grid.attach_device(TransportFactory(name, Device(cupy, chunk)))
    return grid.batch_group, cupy
