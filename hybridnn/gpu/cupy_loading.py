"""Loading of CuPy, or an error that says what is missing and how to install it."""

from __future__ import annotations

import ctypes
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hybridnn.errors import EnvironmentProblem

OLDEST_CUPY = 14


def load_cupy() -> Any:
    """The module ``cupy``, with a driver and at least one device.

    Raises `EnvironmentProblem` if something is missing.
    """
    driver = driver_version()
    if find_spec("cupy") is None:
        raise _problem("CuPy is not installed", driver)
    try:
        cupy = import_module("cupy")
    except Exception as error:  # a broken installation fails in many ways
        raise _problem(f"CuPy is installed but cannot be imported ({first_line(error)})", driver) from error
    if int(cupy.__version__.split(".")[0]) < OLDEST_CUPY:
        raise _problem(f"CuPy {cupy.__version__} is installed, {OLDEST_CUPY} or newer is needed", driver)
    if driver is None:
        raise EnvironmentProblem(
            f"{_ASKED}: CuPy {cupy.__version__} is installed, but there is no NVIDIA driver: "
            "install it, or run where there is a GPU (Slurm: --gres=gpu:1)"
        )
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _problem(f"CuPy {cupy.__version__} cannot use the driver ({first_line(error)})", driver) from error
    if devices == 0:
        raise EnvironmentProblem(
            f"{_ASKED}: CuPy {cupy.__version__} and a driver for CUDA {cuda_version(driver)} are there, but no device: "
            "ask Slurm for one (--gres=gpu:1), and see that CUDA_VISIBLE_DEVICES is not empty"
        )
    with suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns if NCCL is missing, which most runs do not need
        import_module("cupy.cuda.nccl")  # which `import cupy` alone does not load
    return cupy


def driver_version() -> int | None:
    """Newest CUDA version that the NVIDIA driver supports, as an integer (13020 is 13.2); None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value else None


def compute_capability() -> int | None:
    """The lowest compute capability of the GPUs, times ten, by the driver alone; None without a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    devices = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(devices)) != 0:
        return None
    return min((_capability_of(driver, index) for index in range(devices.value)), default=None)


def _capability_of(driver: Any, index: int) -> int:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    for attribute, found in ((75, major), (76, minor)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        driver.cuDeviceGetAttribute(ctypes.byref(found), attribute, device)
    return 10 * major.value + minor.value


OLDEST_OF_CUDA_13 = 75  # its compiler refuses Volta and Pascal, which a driver for CUDA 13 still runs

_ASKED = "a GPU was asked for"


def _problem(found: str, driver: int | None) -> EnvironmentProblem:
    """Error with what was found, and the extra that fits driver and GPU."""
    return EnvironmentProblem(f"{_ASKED}: {found}; {extra_to_install(driver)}")


def extra_to_install(driver: int | None) -> str:
    """Advice on the extra that fits the driver, of that version, and the GPU."""
    if driver is None:
        return "there is no NVIDIA driver either; with one: pip install 'hybridnn[cuda12]' or 'hybridnn[cuda13]'"
    found, extra, capability = f"the driver is for CUDA {cuda_version(driver)}", "cuda12", compute_capability()
    if driver >= 13000 and capability is not None and capability < OLDEST_OF_CUDA_13:
        found += f", and CUDA 13 cannot compile for a GPU of compute capability {capability / 10}"
    elif driver >= 13000:
        extra = "cuda13"
    return f"{found}: pip install 'hybridnn[{extra}]'"


def cuda_version(number: int) -> str:
    """Version of CUDA: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its name."""
    return (str(error).splitlines() or [type(error).__name__])[0]
