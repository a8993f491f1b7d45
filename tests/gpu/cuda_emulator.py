"""Emulation of the module ``cupy`` that runs CUDA kernels on the processor, compiled by g++ as ordinary functions.

Kernels are called with the same grid, block and arguments as on a device, and the type of each argument is compared
with that of the kernel's parameter.
"""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from mpi_runner.slowness import deadline

HERE = Path(__file__).parent
OUTCOMES = {1: "deadlock of threads", 2: "a block or a grid is too large"}


class DeviceArray(np.ndarray):
    """An array with its address as ``data.ptr``, as CuPy's have."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def device_array(array: Any) -> Any:
    return np.array(array, order="C").view(DeviceArray)


class Kernel:
    def __init__(self, library: ctypes.CDLL, name: str, launches: list[tuple[Any, ...]]) -> None:
        kinds = getattr(library, f"kinds_{name}")
        kinds.restype = ctypes.c_char_p
        self._name, self._kinds = name, kinds().decode()
        self._function, self._launches = getattr(library, f"launch_{name}"), launches

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self._launches.append((self._name, grid, block))
        assert "".join(map(kind_of, arguments)).replace("0", "p") == self._kinds, self._name
        values = [bytes_of(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        outcome = self._function(dimensions(grid), dimensions(block), addresses)
        assert outcome == 0, f"{self._name}: {OUTCOMES[outcome]}"


def kind_of(argument: Any) -> str:
    if isinstance(argument, DeviceArray):
        return "p"
    return {np.int64: "l", np.float64: "d", np.uint64: "0"}[type(argument)]


def bytes_of(argument: Any) -> Any:
    """The eight bytes that a driver copies."""
    value = np.uint64(argument.data.ptr) if isinstance(argument, DeviceArray) else argument
    return ctypes.c_uint64.from_buffer_copy(value.tobytes())


def dimensions(size: tuple[int, ...]) -> Any:
    assert all(isinstance(count, int) and count > 0 for count in size), size
    return (ctypes.c_uint * 3)(*(*size, 1, 1)[:3])


class Emulator:
    """The part of ``cupy`` that the package uses, with kernels compiled into `folder` now or by an earlier run.

    `launches` has name, grid and block of every launch.
    """

    add, copyto = staticmethod(np.add), staticmethod(np.copyto)
    ascontiguousarray = staticmethod(lambda array: device_array(array))
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7), using_allocator=nullcontext)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[str, ctypes.CDLL] = {}
        self.launches: list[tuple[Any, ...]] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        # Uninitialized elements have 0xff in every byte: NaN.
        return device_array(
            np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)
        ).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return device_array(np.zeros(shape, dtype))

    def asarray(self, array: Any) -> Any:
        return device_array(array)

    def asnumpy(self, array: Any) -> Any:
        return np.array(array)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        real = next(option.removeprefix("-DREAL=") for option in options if option.startswith("-DREAL="))
        library = self._library(code, real)
        return SimpleNamespace(get_function=lambda name: Kernel(library, name, self.launches))

    def reverse(self, *, reverse: bool) -> None:
        """Run blocks and threads in the opposite order from now on."""
        for library in self._libraries.values():
            library.set_reversed(reverse)

    def kernels(self, code: str, real: str) -> list[str]:
        """Names of all kernels, as the preprocessor expands them."""
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", encoding="utf-8") as file:
            file.write(program_of(code, real))
            file.flush()
            expanded = compile_cpp(Path(file.name), "-E")
        names = re.findall(r'extern "C"\s+void\s+(\w+)\s*\(', expanded[expanded.index('"common.cu"') :])
        assert len(set(names)) == len(names) > 20
        return names

    def _library(self, code: str, real: str) -> ctypes.CDLL:
        if real not in self._libraries:
            program = program_of(code, real)
            digest = sha256((program + (HERE / "cuda_emulation.h").read_text("utf-8")).encode()).hexdigest()[:16]
            library = self._folder / f"{real}-{digest}.so"
            if not library.exists():
                path = self._folder / f"{real}-{digest}-{os.getpid()}.cpp"
                path.write_text(program + "".join(map(entry_points, self.kernels(code, real))), "utf-8")
                compile_cpp(path, "-O1", "-fPIC", "-shared", "-o", str(path.with_suffix(".so")))
                path.with_suffix(".so").replace(library)
                path.unlink()
            self._libraries[real] = ctypes.CDLL(str(library))
        return self._libraries[real]


def program_of(code: str, real: str) -> str:
    return f'#define REAL {real}\n#include "cuda_emulation.h"\n{code}\n#line 1 "launches"\n'


def entry_points(name: str) -> str:
    return (
        f'extern "C" int launch_{name}(const unsigned* grid, const unsigned* block, void** arguments) '
        f"{{ return emulation::launch({name}, grid, block, arguments); }}\n"
        f'extern "C" const char* kinds_{name}() {{ return emulation::kinds({name}); }}\n'
    )


def compile_cpp(path: Path, *options: str) -> str:
    """Run g++ and return its output; without g++ see `without_compiler`."""
    compiler = shutil.which("g++")
    if compiler is None:
        without_compiler("no g++ to compile them for the processor")
    command = [compiler, "-std=c++20", f"-I{HERE}", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline(100))
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_compiler(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where all compilers must be installed."""
    if os.environ.get("CI"):
        pytest.fail(f"the CUDA kernels are not tested in CI: {reason}")
    pytest.skip(f"THE CUDA KERNELS ARE NOT COMPILED: {reason}")
