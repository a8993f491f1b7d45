"""Emulated GPU, CuPy and NCCL: the real kernels through the real launches, by rules at least as strict as CuPy's.

Work is executed as `reference.emulated_streams` says. Memory that was freed is overwritten, in the order of its stream,
and stays mapped: a graph that still uses it computes NaN. The memory is host memory, so MPI can use the address of an
array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod
from threading import Event as ThreadEvent
from threading import local
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.gpu.cublas import CublasProducts
from hybridnn.gpu.cupy_kernels import CupyKernels
from hybridnn.gpu.device import Device, Progress
from hybridnn.gpu.setup import TransportFactory
from hybridnn.parallel.grid import ProcessGrid
from reference.emulated_kernels import cublas, kernel
from reference.emulated_streams import FREED, CudaError, Event, Stream, refuse

if TYPE_CHECKING:
    from mpi4py import MPI


STALE = 99
"""Content of pinned memory, and of arrays of `EmulatedCupy.compute`, before they are written."""
LARGE = 1 << 24  # bytes of memory that is not overwritten when freed, and may be unmapped: cuBLAS's workspace


class Memory:
    """Bytes of the device, at a multiple of 512."""

    def __init__(self, device: EmulatedCupy, nbytes: int) -> None:
        raw = np.empty(nbytes + 512, np.uint8)
        start = -raw.ctypes.data % 512
        self.bytes = raw[start : start + nbytes]
        if nbytes < LARGE:
            self.bytes.fill(FREED)
            device.mapped.append(raw)
            finalize(self, device.current.free, self.bytes).atexit = False


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Array whose elements are accessible only through the methods of CuPy, with CuPy's own checks."""

    def __init__(self, memory: NDArray[Any], device: EmulatedCupy, owner: Memory | None = None) -> None:
        self._memory, self._device, self._owner = memory, device, owner
        self.data = SimpleNamespace(ptr=memory.ctypes.data if memory.size else 0)
        self.dtype, self.shape, self.size, self.strides = memory.dtype, memory.shape, memory.size, memory.strides
        self.nbytes, self.itemsize, self.flags = memory.nbytes, memory.itemsize, memory.flags
        self.__cuda_array_interface__ = {**memory.__array_interface__, "version": 3, "stream": None}

    def __len__(self) -> int:
        return len(self._memory)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("implicit conversion to a host array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (None,), **options: Any) -> Any:
        assert method == "__call__"
        assert not options
        assert not any(isinstance(item, np.ndarray) for item in inputs), "an array of the host"
        memories = [item._memory if isinstance(item, DeviceArray) else item for item in inputs]
        dtype = np.result_type(*memories)
        target = self._device.empty(np.broadcast_shapes(*map(np.shape, memories)), dtype) if out[0] is None else out[0]
        assert dtype == target.dtype, f"{ufunc.__name__} computes in {dtype}, for {target.dtype}"
        for item in inputs:
            self._device.copy_if_it_overlaps(item, target)
        self._device.launch(ufunc.__name__, lambda: ufunc(*memories, out=target._memory))
        return target

    def __getitem__(self, key: Any) -> DeviceArray:
        return self._view(self._memory[key])

    def __setitem__(self, key: Any, value: DeviceArray | float) -> None:
        self._device.assign(self[key], value)

    def fill(self, value: float) -> None:
        self._device.assign(self, value)

    @property
    def T(self) -> DeviceArray:  # noqa: N802 - name in CuPy
        return self._view(self._memory.T)

    def reshape(self, *shape: int) -> DeviceArray:
        return self._view(self._memory.reshape(*shape))

    def _view(self, memory: Any) -> DeviceArray:
        assert isinstance(memory, np.ndarray), "a single element"
        assert not memory.size or np.may_share_memory(memory, self._memory), "CuPy copies"
        return DeviceArray(memory, self._device, self._owner)

    def get(self, stream: Stream | None = None, out: Any = None, blocking: bool = True) -> None:
        self._require_like(out)
        stream = stream or self._device.current
        refuse(stream.capture is not None, "the stream is capturing, so D2H transfers are disallowed")
        stream.enqueue(lambda: np.copyto(out, self._memory))
        if blocking:
            stream.synchronize()

    def set(self, source: NDArray[Any], stream: Stream | None = None) -> None:
        self._require_like(source)
        stream = stream or self._device.current
        refuse(stream.capture is not None, "the stream is capturing, so H2D transfers are disallowed")
        if stream is self._device.current:
            self._device.brought.append(self.size)
        if not self._device.is_pinned(source):
            source = source.copy()  # as CUDA does for memory that is not pinned
        stream.enqueue(lambda: np.copyto(self._memory, source))

    def _require_like(self, host: NDArray[Any]) -> None:
        assert isinstance(host, np.ndarray)
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert host.flags.c_contiguous
        assert self.flags.c_contiguous, "CuPy refuses it, or makes a temporary array"


class EmulatedCupy:
    """What the package uses of the module ``cupy``, with one GPU; NCCL connects the ranks of `comm`.

    `launches` has name, grid and block of every kernel, ufunc and graph that the host launched, and `replays` the
    number of launches of each graph; `ended` the kinds of destroyed graphs and connections, in order. `fetched` has the
    elements of each copy that the host waited for, `brought` those of each copy to the device in the current stream,
    and `failing` the status of functions of cuBLAS that fail.
    """

    __version__ = "14.2.0"
    add = staticmethod(np.add)

    def __init__(self, comm: MPI.Intracomm | None = None, free: int = 1 << 40, place: str = "") -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.replays: list[int] = []
        self.ended: list[str] = []
        self.fetched: list[int] = []
        self.brought: list[int] = []
        self.failing: dict[str, int] = {}
        self.streams: list[Stream] = []
        self.mapped: list[NDArray[np.uint8]] = []
        self._pinned: list[NDArray[np.uint8]] = []
        self._default, self._thread = self._new_stream(), local()
        self._allocator: Callable[[int], Any] | None = None
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError,
            eventQuery=Event.query,
            getDevice=lambda: 0,
            setDevice=lambda index: None,
            getDeviceCount=lambda: 1,
            getDeviceProperties=lambda index: {"name": b"Imaginary"},
            deviceGetPCIBusId=lambda index: place,
            memGetInfo=lambda: (free, 1 << 40),
            runtimeGetVersion=lambda: 12090,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Device=lambda index: SimpleNamespace(use=lambda: None),
            Stream=self._new_stream,
            Event=Event,
            get_current_stream=lambda: self.current,
            alloc_pinned_memory=self._pin,
            using_allocator=self._using_allocator,
            nccl=None if comm is None else EmulatedNccl(comm, self),
        )

    @property
    def current(self) -> Stream:
        """The current stream of the thread."""
        stream: Stream = getattr(self._thread, "stream", self._default)
        return stream

    @current.setter
    def current(self, stream: Stream) -> None:
        self._thread.stream = stream

    @cached_property
    def blas(self) -> Any:
        return cublas(lambda: self.current.ptr, self.launch, self.failing)

    def kernels(self, *, tf32: bool = False, progress: Progress | None = None) -> CupyKernels:
        """As `cupy_kernels`, on this device."""
        return CupyKernels(self, CublasProducts(self, self.blas, tf32), progress)

    def launch(self, name: str, work: Callable[[], Any], grid: Any = (), block: Any = (), arguments: Any = ()) -> None:
        self.launches.append((name, grid, block))
        self.current.enqueue(work)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        assert options[:-1] == ("--std=c++17",)
        real = options[-1].removeprefix("-DREAL=")
        return SimpleNamespace(get_function=lambda name: kernel(real, code, name, self.launch))

    @contextmanager
    def _using_allocator(self, allocator: Callable[[int], Any]) -> Iterator[None]:
        self._allocator, before = allocator, self._allocator
        try:
            yield
        finally:
            self._allocator = before

    def allocate(self, nbytes: int) -> Memory:
        if self._allocator is not None:
            self._allocator(nbytes)
        refuse(self.current.capture is not None, "the pool takes the memory back, and the graph uses it")
        return Memory(self, nbytes)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        dtype = np.dtype(dtype)
        owner = self.allocate(prod(shape) * dtype.itemsize)
        return DeviceArray(owner.bytes.view(dtype).reshape(shape), self, owner)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        array = self.empty(shape, dtype)
        array.fill(0)
        return array

    def asarray(self, host: NDArray[Any]) -> DeviceArray:
        array = self.empty(host.shape, host.dtype)
        array.set(np.ascontiguousarray(host))
        return array

    def asnumpy(self, array: DeviceArray) -> NDArray[Any]:
        self.fetched.append(array.size)
        return self.numbers(array)

    def copyto(self, target: DeviceArray, source: DeviceArray) -> None:
        self.assign(target, source)

    def assign(self, target: DeviceArray, value: DeviceArray | float) -> None:
        """Copy an array or a number to an array."""
        assert isinstance(value, DeviceArray | int | float)
        self.copy_if_it_overlaps(value, target)
        source = value._memory if isinstance(value, DeviceArray) else value
        self.launch("copy", lambda: np.copyto(target._memory, source))

    def copy_if_it_overlaps(self, item: Any, target: DeviceArray) -> None:
        """As ``_copy_in_args_if_needed``: an input of a ufunc that is not the output, but shares its memory."""
        if isinstance(item, DeviceArray) and item is not target and np.may_share_memory(item._memory, target._memory):
            self.allocate(item.nbytes)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)

    @property
    def pinned_bytes(self) -> int:
        return sum(memory.size for memory in self._pinned)

    def compute(self, values: NDArray[Any]) -> DeviceArray:
        """An array that the current stream will fill with `values`."""
        array = self.empty(values.shape, values.dtype)
        array._memory.fill(STALE)
        self.current.enqueue(lambda: np.copyto(array._memory, values))
        return array

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


class EmulatedNccl:
    """Connections of all ranks; the calls of a group are enqueued when it ends.

    `calls` has the names of all collectives after the first, which connects the ranks. Those in `failing` cannot; the
    others wait for them, as in NCCL, until the event `late`. `problem` is an error that NCCL noticed after it had
    connected the ranks, or empty.
    """

    NCCL_SUM, NCCL_MAX = "sum", "max"

    def __init__(self, comm: MPI.Intracomm, device: EmulatedCupy) -> None:
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

    def NcclCommunicator(self, size: int, unique_id: bytes, rank: int) -> EmulatedCommunicator:  # noqa: N802
        assert (size, rank, unique_id) == (self.comm.size, self.comm.rank, NAME)
        return EmulatedCommunicator(self)

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


class EmulatedCommunicator:
    """A connection: collectives by MPI, in the order of a stream, on memory at an address."""

    def __init__(self, nccl: EmulatedNccl) -> None:
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
            raise CudaError(self._nccl.problem)

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


def device_group(comm: MPI.Intracomm, name: Any, chunk: int = ONE_MESSAGE, **how: Any) -> tuple[Group, EmulatedCupy]:
    """The batch group of all ranks, on an emulated device and the named transport."""
    grid, cupy = ProcessGrid(comm, **how), EmulatedCupy(comm)
    grid.attach_device(TransportFactory(name, Device(cupy, chunk)))
    return grid.batch_group, cupy
