"""Launches of the CUDA kernels in ``cuda/``: source, compilation, grids and blocks, arguments.

A block has 256 threads. Grids depend on array sizes only, not on the device, and so do results.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.nn.activations import SELU_ALPHA, SELU_SCALE

FOLDER = Path(__file__).parent / "cuda"
FILES = ("common", "arrays", "layers", "losses", "updates")

OPTIONS = ("--std=c++17",)
"""For NVRTC. CuPy adds ``--device-as-default-execution-space``, which makes lambdas device functions, as in nvcc.

NVRTC before 12.9 refuses that option if it is given twice, also by its other name, ``-default-device``.
"""

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
REALS = {FLOAT32: "float", FLOAT64: "double"}

THREADS = 256
WARP = 32
PACK_BYTES = 16  # bytes that a thread loads at once
MOST_BLOCKS = 1 << 16  # of a grid; with more elements, threads process several packs each
MOST_BLOCKS_ALONG_Y = (1 << 16) - 1  # limit of the hardware
ENOUGH_THREADS = 1 << 18  # threads that occupy a large device
MOST_PARTS = 1024
"""Most blocks of a reduction: each writes a partial sum, and the last block to finish adds the partial sums."""

FLAT_BLOCK = (THREADS,)

GLOBAL_LOCALE = ctypes.c_void_p(-1)  # LC_GLOBAL_LOCALE of locale.h

Size = tuple[int, ...]

ACTIVATIONS = {
    "relu": ("z < 0 ? 0 : z", "y > 0 ? 1 : 0"),
    "identity": ("z", "1"),
    "tanh": ("tanh(z)", "1 - y * y"),
    "sigmoid": ("1 / (1 + exp(-z))", "y * (1 - y)"),
    "selu": (
        f"z > 0 ? REAL({SELU_SCALE!r}) * z : REAL({SELU_SCALE * SELU_ALPHA!r}) * expm1(z)",
        f"y > 0 ? REAL({SELU_SCALE!r}) : y + REAL({SELU_SCALE * SELU_ALPHA!r})",
    ),
}
"""Activation functions of ``z``, and their derivatives as functions of the output ``y``: CUDA C of type ``REAL``."""


@cache
def source() -> str:
    """The CUDA C++ source of all kernels, with ``#line`` directives, so that compiler messages name the files."""
    files = (f'#line 1 "{name}.cu"\n{(FOLDER / name).with_suffix(".cu").read_text("utf-8")}' for name in FILES)
    return "".join(files) + f'#line 1 "activations"\n{activation_source()}'


def activation_source() -> str:
    """CUDA C++ of the kernels of all activation functions; the macro ``KERNELS_OF`` is in ``cuda/layers.cu``."""
    return "".join(
        f"struct Activation_{name} {{\n"
        f"    static __device__ REAL value([[maybe_unused]] REAL z) {{ return {value}; }}\n"
        f"    static __device__ REAL slope([[maybe_unused]] REAL y) {{ return {slope}; }}\n"
        f"}};\n"
        f"KERNELS_OF({name}, Activation_{name})\n"
        for name, (value, slope) in ACTIVATIONS.items()
    )


@cache
def kernel_names() -> tuple[str, ...]:
    """Names of all kernels, from their definitions; those with ``##name`` are made for every activation."""
    found = re.findall(r"^ *KERNEL (\w+)(##name)?\(", source(), re.MULTILINE)
    return tuple(name + activation for name, made in found for activation in (ACTIVATIONS if made else ("",)))


def flat_grid(n: int, itemsize: int, most: int = MOST_BLOCKS) -> Size:
    """Blocks for `n` elements of `itemsize` bytes: one pack per thread, but at most `most` blocks."""
    return (_clamp(_quotient(n * itemsize, PACK_BYTES * THREADS), most),)


def row_block(columns: int, itemsize: int) -> Size:
    """Shape of a block for rows of `columns` elements: the threads along x, a power of two, share a row."""
    per_pack = PACK_BYTES // itemsize
    units = columns // per_pack if columns % per_pack == 0 else columns
    across = min(1 << max(units - 1, 0).bit_length(), THREADS)
    return across, THREADS // across


def blocks_of_rows(rows: int, block: Size) -> Size:
    """Blocks if each processes full rows."""
    return (_clamp(_quotient(rows, block[1]), MOST_BLOCKS),)


def column_block(rows: int, columns: int) -> Size:
    """Shape of a block for full columns: columns along x, threads that share one along y if there are few columns."""
    sharing = 1
    while 2 * sharing <= min(rows, THREADS // WARP) and sharing * columns < ENOUGH_THREADS:
        sharing *= 2
    return THREADS // sharing, sharing


def blocks_of_columns(columns: int, block: Size, most: int) -> Size:
    """Blocks if each processes full columns."""
    return (_clamp(_quotient(columns, block[0]), most),)


def tiled_rows(rows: int, columns: int, itemsize: int, block: Size) -> Size:
    """Blocks along a row and along the rows, if a row may have several blocks."""
    across = _clamp(_quotient(columns * itemsize, PACK_BYTES * block[0]), MOST_BLOCKS)
    return across, _clamp(_quotient(rows, block[1]), MOST_BLOCKS_ALONG_Y)


def _quotient(n: int, by: int) -> int:
    return -(-n // by)


def _clamp(blocks: int, most: int) -> int:
    return min(max(blocks, 1), most)


def restore_locale() -> None:
    """Give this thread the locale of the process again.

    NVRTC leaves the thread that it compiled in with the locale "C", in which Python reads text files as ASCII.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).uselocale(GLOBAL_LOCALE)


class KernelLauncher:
    """Kernels of one device, compiled for a dtype at their first launch."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._modules: dict[np.dtype[Any], Any] = {}
        self._kernels: dict[tuple[str, np.dtype[Any] | None], Any] = {}

    def __call__(self, name: str, dtype: np.dtype[Any] | None, grid: Size, block: Size, *arguments: Any) -> None:
        """Enqueue a launch on the current stream.

        The dtype is float32 or float64, None for a kernel that does not depend on it. Of the arguments an int becomes
        ``long long``, a float ``double``, None a null pointer.
        """
        kernel = self._kernels.get((name, dtype))
        if kernel is None:
            kernel = self._kernels[name, dtype] = self._module(dtype).get_function(name)
            restore_locale()
        kernel(grid, block, tuple(map(_argument, arguments)))

    def elementwise(self, name: str, *arrays: Any, more: tuple[Any, ...] = ()) -> None:
        """Launch a kernel whose arguments are arrays of one size, that size, and `more`."""
        n = arrays[0].size
        self.flat(name, same_size(*arrays), n, *arrays, n, *more)

    def flat(self, name: str, dtype: np.dtype[Any], n: int, *arguments: Any) -> None:
        """Launch a kernel over `n` elements."""
        if n:
            self(name, dtype, flat_grid(n, dtype.itemsize), FLAT_BLOCK, *arguments)

    def compile(self, dtype: DTypeLike) -> None:
        """Compile and load all kernels for a dtype now rather than in the first step, and before a graph is captured.

        CUDA may load a kernel at its first launch, and wait for the device meanwhile. While NCCL waits on the device
        for a rank that waits for this one in MPI, that would never end.
        """
        module = self._module(np.dtype(dtype))
        for name in kernel_names():
            module.get_function(name)
        restore_locale()

    def _module(self, dtype: np.dtype[Any] | None) -> Any:
        if dtype is None:
            dtype = next(iter(self._modules), FLOAT32)
        if dtype not in self._modules:
            if dtype not in REALS:
                raise ValueError(f"there are kernels for float32 and float64, not for {dtype}")
            options = (*OPTIONS, f"-DREAL={REALS[dtype]}")
            self._modules[dtype] = self._cupy.RawModule(code=source(), options=options)
        return self._modules[dtype]


def _argument(value: Any) -> Any:
    if isinstance(value, int | np.integer):
        return np.int64(value)
    if isinstance(value, float | np.floating):
        return np.float64(value)
    return np.uint64(0) if value is None else value


def same_size(*arrays: Any) -> np.dtype[Any]:
    """The dtype of contiguous arrays of one size; a kernel would access memory beyond a shorter array."""
    require(len({array.size for array in arrays}) == 1, "arrays of one size")
    return same_dtype(*arrays)


def same_dtype(*arrays: Any) -> np.dtype[Any]:
    """The dtype of contiguous arrays that share it."""
    dtype: np.dtype[Any] = arrays[0].dtype
    for array in arrays:
        require(array.dtype == dtype and array.flags.c_contiguous, "contiguous arrays of one dtype")
    return dtype


def require(fits: bool, expected: str) -> None:
    """Refuse arrays that a kernel would misinterpret.

    Raises `ValueError` if not `fits`.
    """
    if not fits:
        raise ValueError(f"the kernel takes {expected}")
