"""Stand-in for a GPU in trainings: NumPy kernels, executed when the host waits, on arrays that the host cannot read.

All calls are enqueued in a stream of the stand-in for CuPy. Code that reads device memory without `to_host` finds no
NumPy array, or old values.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from hybridnn import ProcessGrid
from hybridnn.gpu.cupy_kernels import CupyKernels
from hybridnn.gpu.device import Device, PinnedMemory, Progress, record_event, wait_for
from hybridnn.gpu.engine import GpuDevice, StepCapture
from hybridnn.gpu.setup import TransportFactory
from hybridnn.nn.kernels import NUMPY
from hybridnn.training.device import TrainingDevice
from reference.cases import Case, assert_arrays_close, check_against_reference, run
from reference.stand_in_device import STALE, DeviceArray, StandInCupy

CHUNK_BYTES = 200
"""Small, so that most arrays travel in several pieces."""


class StandInKernels:
    """Kernels of the stand-in device; the interface is `hybridnn.nn.kernels.Kernels`.

    `fetched` has the number of elements that each call of `to_host`, which waits for the device, copied, and `brought`
    that of each call of `put`, `filling` and `to_device`.
    """

    on_host = False
    record = CupyKernels.record
    _host = NUMPY
    _products = SimpleNamespace(forget_stream=lambda: None)

    def __init__(self, cupy: StandInCupy, free: int, progress: Progress | None = None) -> None:
        self._cupy, self._free, self._progress = cupy, free, progress
        self.fetched: list[int] = []
        self.brought: list[int] = []
        self._pinned = PinnedMemory(cupy, progress)

    @property
    def replays(self) -> list[int]:
        """Number of launches of each CUDA graph."""
        return self._cupy.launches

    @property
    def _records(self) -> bool:
        return self._cupy.current.is_capturing()

    def __getattr__(self, name: str) -> Callable[..., None]:
        compute = update_from_memory(name) if name.endswith("_update") else STEPS.get(name) or getattr(self._host, name)

        def later(*arguments: Any, **settings: Any) -> None:
            inner = [memory_of(value) for value in arguments]
            more = {key: memory_of(value) for key, value in settings.items()}
            self._cupy.current.enqueue(lambda: compute(*inner, **more))

        return later

    def compile(self, dtype: DTypeLike) -> None: ...

    def free_bytes(self) -> int:
        return self._free

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        assert not self._records
        return DeviceArray(np.full(shape, STALE, dtype), self._cupy)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        assert not self._records
        return self._cupy.compute(np.zeros(shape, dtype))

    def to_device(self, array: NDArray[Any]) -> DeviceArray:
        assert not self._records
        self.brought.append(array.size)
        return self._cupy.compute(array.copy())

    def put(self, host: NDArray[Any], out: DeviceArray) -> None:
        self.brought.append(host.size)
        assert not self._records
        assert out.flags.c_contiguous
        out.set(host)

    @contextmanager
    def filling(self, out: DeviceArray) -> Iterator[NDArray[Any]]:
        self.brought.append(out.size)
        assert not self._records
        kernels: Any = self
        with CupyKernels.filling(kernels, out) as numbers:
            yield numbers

    def to_host(self, array: DeviceArray) -> NDArray[Any]:
        assert isinstance(array, DeviceArray)
        assert not self._records
        self.fetched.append(array.size)
        wait_for(self._cupy, record_event(self._cupy), self._progress)
        return self._cupy.numbers(array)

    def fused_update(self, *_: Any) -> bool:
        return False

    def squared_norms(self, flat: DeviceArray, ends: Sequence[int]) -> NDArray[np.float64]:
        norms = self.empty((len(ends),), np.float64)
        self._cupy.current.enqueue(lambda: np.copyto(norms._memory, NUMPY.squared_norms(flat._memory, ends)))
        return self.to_host(norms)


def update_from_memory(name: str) -> Callable[..., None]:
    """An optimizer update that reads its scalars when it is executed, as on a GPU."""
    compute = getattr(NUMPY, name)

    def update(*arguments: Any) -> None:
        compute(*arguments[:-1], tuple(map(float, arguments[-1])))

    return update


def begin_step(
    step: NDArray[Any], order: NDArray[Any], batch_size: int, indices: NDArray[Any], table: NDArray[Any], scalars: Any
) -> None:
    """As `CupyKernels.begin_step`."""
    first = step.item() * batch_size
    np.copyto(indices, order[first : first + indices.size])
    np.copyto(scalars, table[step.item()])


def end_step(step: NDArray[Any], loss: NDArray[Any], losses: NDArray[Any]) -> None:
    """As `CupyKernels.end_step`."""
    losses[step.item()] = loss.item()
    step += 1


STEPS: dict[str, Callable[..., None]] = {"begin_step": begin_step, "end_step": end_step}


def memory_of(value: Any) -> Any:
    """The memory of a device array; arrays of the host are not accepted."""
    assert not isinstance(value, np.ndarray)
    return value._memory if isinstance(value, DeviceArray) else value


def stand_in(
    grid: ProcessGrid,
    transport: Any = "staging",
    comm: MPI.Intracomm | None = None,
    free: int = 1 << 40,
    *,
    graphs: bool | str = False,
) -> GpuDevice:
    """A device for the ranks of a grid. NCCL can connect the ranks of `comm` if the grid has one axis."""
    cupy = StandInCupy(comm)
    device = Device(cupy, CHUNK_BYTES)
    grid.attach_device(TransportFactory(transport, device))
    kernels = StandInKernels(cupy, free, device.progress if grid.size > 1 else None)
    capture = StepCapture(kernels.record, required=graphs is True) if graphs else None
    return GpuDevice(kernels, "gpu", "a stand-in", transport, "requested", capture)


def kernels_of(device: TrainingDevice) -> StandInKernels:
    assert isinstance(device.kernels, StandInKernels)
    return device.kernels


def cupy_with_a_gpu(comm: MPI.Intracomm | None = None, place: str = "") -> Any:
    """Stand-in for CuPy with one GPU at the PCI bus ID `place`, for the choice of a device."""
    cupy = StandInCupy(comm)
    if comm is not None:
        cupy.cuda.nccl.available = True
    cupy.cuda.Device = lambda index: SimpleNamespace(use=lambda: None)
    cupy.cuda.runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        memGetInfo=lambda: (1, 2),
        getDeviceProperties=lambda index: {"name": b"Imaginary"},
        deviceGetPCIBusId=lambda index: place,
        **vars(cupy.cuda.runtime),
    )
    return cupy


EXACTLY = 1e-12
CLIPPED = Case(clip_norm=0.05)
CASES = {
    "momentum": Case(),
    "clipped": CLIPPED,
    "adam": Case(classification=False, optimizer="adam", activation="selu"),
    "residual": Case((6, 6, 6, 4), residual=True, optimizer="nesterov", activation="relu"),
    "plain": Case(optimizer="plain", activation="sigmoid", schedule="cosine"),
}
SPLIT = replace(CASES["residual"], model_split="alternating")


def check(case: Case, grid: ProcessGrid, device: TrainingDevice) -> None:
    """The reference says what is right; the CPU does the same to the last digits."""
    trainer = check_against_reference(case, grid, device=device)
    on_cpu = run(replace(case, shared_replicas=False), grid, device="cpu")
    assert_arrays_close(trainer.weights(), on_cpu.weights(), str(case), EXACTLY)
