"""Launches of our own CUDA kernels: their source, how many threads take part, and arguments as the kernels want them.

A block has 256 threads. Grids depend on sizes alone, not on the device, so results do not either.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

FOLDER = Path(__file__).parent / "cuda"
FILES = ("common", "arrays", "layers", "losses", "updates")

OPTIONS = ("--std=c++17", "-default-device")
"""For NVRTC; by the second, functions without a name belong to the device, as nvcc has it anyway."""

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
REALS = {FLOAT32: "float", FLOAT64: "double"}

THREADS = 256
WARP = 32
PACK_BYTES = 16
"""What a thread loads at once."""
MOST_BLOCKS = 1 << 16
"""Of a grid; beyond it, threads take several packs each."""
MOST_BLOCKS_ALONG_Y = (1 << 16) - 1
"""The hardware's limit."""
ENOUGH_THREADS = 1 << 18
"""Such as keep a large device busy."""
MOST_PARTS = 1024
"""Blocks of a grid that adds up: each leaves a part, and the last to come adds up the parts."""

FLAT_BLOCK = (THREADS,)

Size = tuple[int, ...]


@cache
def source() -> str:
    """The CUDA C++ source of all kernels, in which messages of the compiler name the files."""
    return "".join(f'#line 1 "{name}.cu"\n{(FOLDER / name).with_suffix(".cu").read_text("utf-8")}' for name in FILES)


def flat_grid(n: int, itemsize: int, most: int = MOST_BLOCKS) -> Size:
    """Blocks for `n` numbers of `itemsize` bytes, a pack per thread as far as `most` blocks allow."""
    return (_clamp(_quotient(n * itemsize, PACK_BYTES * THREADS), most),)


def row_block(columns: int, itemsize: int) -> Size:
    """Shape of a block for rows of `columns` numbers: the threads along x, a power of two, take a row together."""
    per_pack = PACK_BYTES // itemsize
    units = columns // per_pack if columns % per_pack == 0 else columns
    across = min(1 << max(units - 1, 0).bit_length(), THREADS)
    return across, THREADS // across


def blocks_of_rows(rows: int, block: Size) -> Size:
    """Blocks, each of which takes whole rows."""
    return (_clamp(_quotient(rows, block[1]), MOST_BLOCKS),)


def column_block(rows: int, columns: int) -> Size:
    """Shape of a block for whole columns: columns along x, and along y threads that share one where there are few."""
    sharing = 1
    while 2 * sharing <= min(rows, THREADS // WARP) and sharing * columns < ENOUGH_THREADS:
        sharing *= 2
    return THREADS // sharing, sharing


def blocks_of_columns(columns: int, block: Size, most: int) -> Size:
    """Blocks, each of which takes whole columns."""
    return (_clamp(_quotient(columns, block[0]), most),)


def tiled_rows(rows: int, columns: int, itemsize: int, block: Size) -> Size:
    """Blocks along a row and along the rows, where a row may take several."""
    across = _clamp(_quotient(columns * itemsize, PACK_BYTES * block[0]), MOST_BLOCKS)
    return across, _clamp(_quotient(rows, block[1]), MOST_BLOCKS_ALONG_Y)


def _quotient(n: int, by: int) -> int:
    return -(-n // by)


def _clamp(blocks: int, most: int) -> int:
    return min(max(blocks, 1), most)


class KernelLauncher:
    """Kernels of one device, compiled for a dtype when they are first wanted.

    Parameters
    ----------
    cupy : module
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._modules: dict[np.dtype[Any], Any] = {}
        self._kernels: dict[tuple[str, np.dtype[Any] | None], Any] = {}

    def __call__(self, name: str, dtype: np.dtype[Any] | None, grid: Size, block: Size, *arguments: Any) -> None:
        """Put a launch in the current stream's line.

        Parameters
        ----------
        name : str
            Of the kernel.
        dtype : dtype or None
            float32 or float64; None for a kernel to which it is all the same.
        grid, block : tuple of int
        *arguments : array, int, float or None
            An int becomes ``long long``, a float ``double``, None a null pointer.
        """
        kernel = self._kernels.get((name, dtype))
        if kernel is None:
            kernel = self._kernels[name, dtype] = self._module(dtype).get_function(name)
        kernel(grid, block, tuple(map(_argument, arguments)))

    def elementwise(self, name: str, *arrays: Any, more: tuple[Any, ...] = ()) -> None:
        """A kernel whose arguments are arrays of one size, that size, and `more`."""
        n = arrays[0].size
        self.flat(name, same_size(*arrays), n, *arrays, n, *more)

    def flat(self, name: str, dtype: np.dtype[Any], n: int, *arguments: Any) -> None:
        """A kernel over `n` numbers."""
        if n:
            self(name, dtype, flat_grid(n, dtype.itemsize), FLAT_BLOCK, *arguments)

    def compile(self, dtype: DTypeLike) -> None:
        """Compile all kernels for a dtype now rather than in the first step, and before anything is recorded."""
        self._module(np.dtype(dtype)).get_function("add")

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
    """The dtype of contiguous arrays of as many numbers each: a kernel would read and write beyond any other."""
    require(len({array.size for array in arrays}) == 1, "arrays of one size")
    return same_dtype(*arrays)


def same_dtype(*arrays: Any) -> np.dtype[Any]:
    """The dtype of contiguous arrays that share it."""
    dtype: np.dtype[Any] = arrays[0].dtype
    for array in arrays:
        require(array.dtype == dtype and array.flags.c_contiguous, "contiguous arrays of one dtype")
    return dtype


def require(fits: bool, wanted: str) -> None:
    """Refuse arrays that a kernel would misread.

    Raises
    ------
    ValueError
        If not `fits`.
    """
    if not fits:
        raise ValueError(f"the kernel takes {wanted}")
