"""CUDA kernels and products of cuBLAS on the processor: the real source, compiled by g++ with ``cuda_emulation.h``.

Kernels are launched with the same grid, block and arguments as on a device, and the type of each argument is compared
with that of the kernel's parameter.
"""

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from mpi_runner.slowness import deadline

SOURCES = Path(__file__).parents[1] / "gpu"
COMPILED = Path(__file__).parents[2] / "build" / "cuda-emulation"
OUTCOMES = {1: "deadlock of threads", 2: "a block or a grid is too large"}

Launch = Callable[..., None]  # notes the launch of a name, and enqueues its work


def kernel(real: str, code: str, name: str, launch: Launch) -> Callable[..., None]:
    """The function that CuPy's ``RawModule`` has for a kernel of `code`, with `real` as the type ``REAL``."""
    library = kernel_library(code, real)
    letters, function = getattr(library, f"kinds_{name}"), getattr(library, f"launch_{name}")
    letters.restype = ctypes.c_char_p
    kinds = letters().decode()

    def run(sizes: tuple[Any, Any], values: list[Any]) -> None:
        outcome = function(*sizes, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)))
        assert outcome == 0, f"{name}: {OUTCOMES[outcome]}"

    def call(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        assert "".join(map(kind_of, arguments)) == kinds, name
        work = partial(run, (dimensions(grid), dimensions(block)), list(map(bytes_of, arguments)))
        launch(name, work, grid, block, arguments)

    return call


def kind_of(argument: Any) -> str:
    return {np.int64: "l", np.float64: "d"}.get(type(argument), "p")


def bytes_of(argument: Any) -> Any:
    """The eight bytes that a driver copies."""
    value = argument if isinstance(argument, np.generic) else np.uint64(argument.data.ptr)
    return ctypes.c_uint64.from_buffer_copy(value.tobytes())


def dimensions(size: tuple[int, ...]) -> Any:
    assert all(isinstance(count, int) and count > 0 for count in size), size
    return (ctypes.c_uint * 3)(*(*size, 1, 1)[:3])


def cublas(current: Callable[[], int], launch: Launch, failing: dict[str, int]) -> Any:
    """The functions of cuBLAS that the package calls; those in `failing` return that status.

    A product checks its arguments at once, and is computed when its work is executed.
    """
    library = compiled((SOURCES / "cuda_blas_emulation.cpp").read_text("utf-8"))

    def gemm(*arguments: Any) -> int:
        handle = ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))
        assert (handle[0] or 0) == current(), "the handle has another stream"
        # Alpha and beta are read during the call.
        given = [ctypes.byref(type(one._obj)(one._obj.value)) if hasattr(one, "_obj") else one for one in arguments]
        library.cublasGemmEx.argtypes = library.compute_product.argtypes = found.cublasGemmEx.argtypes
        status: int = library.cublasGemmEx(*given)
        if status == 0:
            launch("product", lambda: library.compute_product(*given), arguments=given)
        return status

    names = ("cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2")
    functions: dict[str, Any] = {name: getattr(library, name) for name in names} | {"cublasGemmEx": gemm}
    functions |= {name: lambda *_, status=status: status for name, status in failing.items()}
    found = SimpleNamespace(library=library, **functions)
    return found


@cache
def kernel_library(code: str, real: str) -> ctypes.CDLL:
    return compiled(program_of(code, real), lambda: "".join(map(entry_points, kernels_in(code, real))))


def kernels_in(code: str, real: str) -> list[str]:
    """Names of all kernels, as the preprocessor expands them."""
    expanded = compile_cpp(program_of(code, real), "-E")
    names = re.findall(r'extern "C"\s+void\s+(\w+)\s*\(', expanded[expanded.index('"common.cu"') :])
    assert len(set(names)) == len(names) > 20
    return names


def program_of(code: str, real: str) -> str:
    return f'#define REAL {real}\n#include "cuda_emulation.h"\n{code}\n#line 1 "launches"\n'


def entry_points(name: str) -> str:
    return (
        f'extern "C" int launch_{name}(const unsigned* grid, const unsigned* block, void** arguments) '
        f"{{ return emulation::launch({name}, grid, block, arguments); }}\n"
        f'extern "C" const char* kinds_{name}() {{ return emulation::kinds({name}); }}\n'
    )


def compiled(program: str, more: Callable[[], str] = str) -> ctypes.CDLL:
    """A library of `program` and `more`, compiled now or by an earlier run: compiling takes several seconds."""
    known = program + entry_points("") + (SOURCES / "cuda_emulation.h").read_text("utf-8")
    target = COMPILED / f"{sha256(known.encode()).hexdigest()[:16]}.so"
    COMPILED.mkdir(parents=True, exist_ok=True)
    with open(COMPILED / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ranks and other runs compile the same
        if not target.exists():
            new = target.with_suffix(".new")
            compile_cpp(program + more(), "-O1", "-fPIC", "-shared", "-o", str(new))
            new.replace(target)
    return ctypes.CDLL(str(target))


def compile_cpp(program: str, *options: str) -> str:
    """Run g++ and return its output; without g++ see `without_compiler`."""
    compiler = shutil.which("g++")
    if compiler is None:
        without_compiler("no g++ to compile them for the processor")
    command = [compiler, "-std=c++20", f"-I{SOURCES}", *options, "-x", "c++", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=deadline(100))
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_compiler(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where all compilers must be installed."""
    if os.environ.get("CI"):
        pytest.fail(f"the CUDA kernels are not tested in CI: {reason}")
    pytest.skip(f"THE CUDA KERNELS ARE NOT COMPILED: {reason}")
