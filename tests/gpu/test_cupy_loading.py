"""CuPy: whether it can be used, and waiting for a device."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu import cupy_loading
from hybridnn.gpu.cublas import load_cublas
from hybridnn.gpu.cupy_kernels import CupyKernels, cupy_kernels
from hybridnn.gpu.device import PinnedMemory, is_complete, wait_for
from mpi_runner.slowness import deadline


class NoDriverError(RuntimeError):
    pass


def fake_cupy(version: str = "14.2.0", devices: int | Exception = 1) -> Any:
    def count() -> int:
        if isinstance(devices, Exception):
            raise devices
        return devices

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=NoDriverError, runtimeGetVersion=lambda: 13000)
    return SimpleNamespace(__version__=version, cuda=SimpleNamespace(runtime=runtime))


def message(monkeypatch: pytest.MonkeyPatch, cupy: Any, driver: int | None) -> str:
    """Error message of `cupy_kernels` with this module, an error of its import, or None if it is missing."""

    def load(name: str) -> Any:
        if isinstance(cupy, Exception):
            raise cupy
        return cupy

    monkeypatch.setattr(cupy_loading, "find_spec", lambda name: cupy)
    monkeypatch.setattr(cupy_loading, "import_module", load)
    monkeypatch.setattr(cupy_loading, "driver_version", lambda: driver)
    with pytest.raises(EnvironmentProblem) as caught:
        cupy_kernels()
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("a GPU was asked for")
    return text


@pytest.mark.parametrize(
    ("cupy", "driver", "found", "advice"),
    [
        (None, 13020, "CuPy is not installed", "the driver is for CUDA 13.2: pip install 'hybridnn[cuda13]'"),
        (None, 12080, "CuPy is not installed", "the driver is for CUDA 12.8: pip install 'hybridnn[cuda12]'"),
        (None, None, "no NVIDIA driver", "hybridnn[cuda12]' or 'hybridnn[cuda13]'"),
        (ImportError("no libfoo\nmore"), 13000, "cannot be imported (no libfoo)", "hybridnn[cuda13]"),
        (fake_cupy("13.6.0"), 12080, "CuPy 13.6.0 is installed, 14 or newer is needed", "hybridnn[cuda12]"),
        (fake_cupy(), None, "CuPy 14.2.0 is installed, but there is no NVIDIA driver", "--gres=gpu:1"),
        (fake_cupy(devices=0), 13000, "a driver for CUDA 13.0", "no device"),
        (fake_cupy(devices=NoDriverError("too old")), 12080, "cannot use the driver (too old)", "hybridnn[cuda12]"),
    ],
)
def test_error_messages_say_what_was_found_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cupy: Any, driver: int | None, found: str, advice: str
) -> None:
    text = message(monkeypatch, cupy, driver)
    assert found in text
    assert advice in text


def driver_with(capabilities: list[tuple[int, int]]) -> Any:
    """``libcuda.so.1`` with GPUs of these compute capabilities."""

    def write(reference: Any, value: int) -> int:
        reference._obj.value = value
        return 0

    return SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDeviceGetCount=lambda count: write(count, len(capabilities)),
        cuDeviceGet=write,
        cuDeviceGetAttribute=lambda found, which, device: write(found, capabilities[device.value][which - 75]),
    )


@pytest.mark.parametrize(
    ("capabilities", "advice"),
    [
        ([(9, 0)], "for CUDA 13.0: pip install 'hybridnn[cuda13]'"),
        ([(7, 5)], "for CUDA 13.0: pip install 'hybridnn[cuda13]'"),
        (
            [(9, 0), (7, 0)],
            "CUDA 13 cannot compile for a GPU of compute capability 7.0: pip install 'hybridnn[cuda12]'",
        ),
        ([], "for CUDA 13.0: pip install 'hybridnn[cuda13]'"),
    ],
)
def test_volta_and_pascal_need_cuda_12_although_their_driver_is_for_13(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[tuple[int, int]], advice: str
) -> None:
    monkeypatch.setattr(cupy_loading.ctypes, "CDLL", lambda name: driver_with(capabilities))
    assert advice in message(monkeypatch, None, 13000)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError("no libcublas.so.13\nlong story")

    monkeypatch.setattr("hybridnn.gpu.cublas.import_module", fail)
    with pytest.raises(
        EnvironmentProblem, match=r"^CuPy finds no cuBLAS \(no libcublas.so.13\): pip install 'cupy-cuda13x"
    ):
        load_cublas(fake_cupy())


def test_cupy_is_not_imported_without_a_gpu_run() -> None:
    program = "import sys; sys.modules['cupy'] = None; import hybridnn, hybridnn.gpu.cupy_kernels"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=deadline(60))


@pytest.mark.parametrize("has_nccl", [True, False])
def test_nccl_is_loaded_if_available(monkeypatch: pytest.MonkeyPatch, has_nccl: bool) -> None:
    cupy, loaded = fake_cupy(), []

    def load(name: str) -> Any:
        loaded.append(name)
        if name != "cupy" and not has_nccl:
            raise ImportError(name)
        return cupy

    monkeypatch.setattr(cupy_loading, "find_spec", lambda name: cupy)
    monkeypatch.setattr(cupy_loading, "import_module", load)
    monkeypatch.setattr(cupy_loading, "driver_version", lambda: 13000)
    assert cupy_loading.load_cupy() is cupy
    assert loaded == ["cupy", "cupy.cuda.nccl"]


def test_a_missing_compiler_is_named() -> None:
    def compile_nothing(dtype: Any) -> None:
        raise RuntimeError("no libnvrtc.so.13\nmore")

    kernels = object.__new__(CupyKernels)
    kernels._cupy, kernels._launch = fake_cupy(), SimpleNamespace(compile=compile_nothing)
    with pytest.raises(
        EnvironmentProblem, match=r"^CuPy 14.2.0 .* kernels \(no libnvrtc.so.13\): NVRTC .*; .*'hybridnn"
    ):
        kernels.compile("float32")


# -- events ------------------------------------------------------------------------------------------------------------


class DeviceError(RuntimeError):
    pass


class FailedEvent:
    ptr = 7

    def synchronize(self) -> None:
        raise DeviceError("an illegal memory access was encountered")


def cupy_with_status(status: int) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(eventQuery={7: status}.__getitem__)))


@pytest.mark.parametrize(("status", "passed"), [(0, True), (600, False)])
def test_completion_of_events(status: int, passed: bool) -> None:
    assert is_complete(cupy_with_status(status), FailedEvent()) is passed


def test_a_failed_device_raises_its_error() -> None:
    with pytest.raises(DeviceError, match="illegal memory access"):
        is_complete(cupy_with_status(700), FailedEvent())


class SlowEvent:
    """Completes after three calls of `progress`."""

    ptr = 7

    def __init__(self) -> None:
        self.done = 0
        self.cupy = SimpleNamespace(
            cuda=SimpleNamespace(
                runtime=SimpleNamespace(eventQuery=lambda ptr: 0 if self.done >= 3 else 600),
                alloc_pinned_memory=bytearray,
            )
        )

    def progress(self) -> None:
        self.done += 1

    def synchronize(self) -> None:
        raise AssertionError("must not block while other ranks need progress")


def test_progress_is_called_while_waiting() -> None:
    event = SlowEvent()
    wait_for(event.cupy, event, event.progress)
    assert event.done == 3
    event = SlowEvent()
    pinned = PinnedMemory(event.cupy, event.progress)
    memory = pinned.acquire(10)
    pinned.release(memory, event)
    pinned.wait_for_all_but(1)
    assert event.done == 0
    pinned.wait_for_all_but(0)
    assert event.done == 3
    assert pinned.acquire(10) is memory


def test_waiting_without_progress_is_left_to_cuda() -> None:
    waited = []
    event: Any = SimpleNamespace(ptr=7, synchronize=lambda: waited.append(True))
    wait_for(cupy_with_status(600), event, None)
    assert waited == [True]
