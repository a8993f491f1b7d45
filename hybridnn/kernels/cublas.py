"""Matrix products on a GPU by cuBLAS, called directly.

CuPy's own products refuse to be recorded in a CUDA graph, set aside memory when an output's order does not suit them,
and switch TF32 for a whole process. This is a handle of our own, with its working memory, and one call of the library.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any
from weakref import finalize

import numpy as np

from hybridnn.errors import EnvironmentProblem

NO_TRANSPOSE, TRANSPOSE = 0, 1
DATA_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
DEFAULT_ALGORITHM = -1
SCALARS: dict[np.dtype[Any], tuple[Any, Any]] = {
    np.dtype(np.float32): (ctypes.c_float(1), ctypes.c_float(0)),
    np.dtype(np.float64): (ctypes.c_double(1), ctypes.c_double(0)),
}
"""One and zero as cuBLAS reads them: from the host's memory, at the time of the call."""

WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper. A product that has memory allocates none, and can be recorded."""


def load_cublas(cupy: Any) -> ctypes.CDLL:
    """The library that CuPy has found.

    Raises
    ------
    EnvironmentProblem
        If there is none.
    """
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    try:
        # CuPy's package finds the library and brings it into the process when its module is asked for.
        _ = import_module("cupy_backends.cuda.libs").cublas
        return ctypes.CDLL(f"libcublas.so.{major}")
    except (ImportError, OSError) as error:
        first_line = str(error).splitlines()[0]
        raise EnvironmentProblem(
            f"CuPy finds no cuBLAS ({first_line}): "
            f"pip install 'cupy-cuda{major}x[ctk]', or load the CUDA module of your cluster"
        ) from error


class CublasProducts:
    """Products of matrices on the current device.

    Parameters
    ----------
    cupy : module
    library : ctypes.CDLL
        cuBLAS.
    tf32 : bool
        Whether float32 products may round their factors to ten bits behind the point, as tensor cores take them.
    """

    def __init__(self, cupy: Any, library: ctypes.CDLL, tf32: bool) -> None:
        self._cupy = cupy
        self._compute = {
            np.dtype(np.float32): COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F,
            np.dtype(np.float64): COMPUTE_64F,
        }
        integer, pointer = ctypes.c_int, ctypes.c_void_p
        self._gemm = library.cublasGemmEx
        self._gemm.argtypes = [
            *(pointer, integer, integer, integer, integer, integer),  # handle, transpositions, m, n, k
            *(pointer, pointer, integer, integer, pointer, integer, integer),  # alpha; address, type, step of a and b
            *(pointer, pointer, integer, integer, integer, integer),  # beta; the same of c; precision, algorithm
        ]
        self._set_stream, self._set_workspace = library.cublasSetStream_v2, library.cublasSetWorkspace_v2
        self._set_stream.argtypes = [pointer, pointer]
        self._set_workspace.argtypes = [pointer, pointer, ctypes.c_size_t]
        self._handle = ctypes.c_void_p()
        _check(library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        library.cublasDestroy_v2.argtypes = [pointer]
        # At the end of the program the driver may be gone before, and takes everything with it.
        finalize(self, library.cublasDestroy_v2, self._handle).atexit = False
        self._workspace = cupy.empty((WORKSPACE_BYTES,), np.uint8)
        self._stream: int | None = None

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """``out = a @ b``.

        Parameters
        ----------
        a, b, out : array, shape (m, k), (k, n), (m, n)
            Of one dtype, float32 or float64, each contiguous along one of its axes.

        Raises
        ------
        ValueError
            If an array is neither.
        """
        (m, k), n, dtype = a.shape, b.shape[1], out.dtype
        if b.shape[0] != k or out.shape != (m, n) or not a.dtype == b.dtype == dtype:
            raise ValueError(f"({a.shape}, {a.dtype}) @ ({b.shape}, {b.dtype}) is not ({out.shape}, {dtype})")
        if m == 0 or n == 0:
            return
        if k == 0:
            out.fill(0)
            return
        by_columns, out_step = _order(out)
        if by_columns:
            self.multiply(b.T, a.T, out.T)
            return
        # cuBLAS counts by columns: it sees the transpose of everything that lies row by row, and out.T = b.T @ a.T.
        (a_by_columns, a_step), (b_by_columns, b_step) = _order(a), _order(b)
        self._use_current_stream()
        (one, zero), kind = SCALARS[dtype], DATA_TYPES[dtype]
        status = self._gemm(
            self._handle,
            TRANSPOSE if b_by_columns else NO_TRANSPOSE,
            TRANSPOSE if a_by_columns else NO_TRANSPOSE,
            *(n, m, k),
            *(ctypes.byref(one), b.data.ptr, kind, b_step, a.data.ptr, kind, a_step),
            *(ctypes.byref(zero), out.data.ptr, kind, out_step),
            self._compute[dtype],
            DEFAULT_ALGORITHM,
        )
        _check(status, "cublasGemmEx")

    def _use_current_stream(self) -> None:
        stream = self._cupy.cuda.get_current_stream().ptr
        if stream != self._stream:
            _check(self._set_stream(self._handle, stream), "cublasSetStream")
            # A change of the stream takes the workspace away.
            _check(self._set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES), "cublasSetWorkspace")
            self._stream = stream


def _order(matrix: Any) -> tuple[bool, int]:
    """Whether a matrix lies column by column, and the numbers from one row (or column) to the next."""
    (rows, columns), (down, right), size = matrix.shape, matrix.strides, matrix.itemsize
    if right == size or columns == 1:
        return False, max(down // size if rows > 1 else 0, columns)
    if down == size or rows == 1:
        return True, max(right // size, rows)
    raise ValueError(f"a matrix of shape {matrix.shape} and strides {matrix.strides} is contiguous along neither axis")


def _check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} failed with status {status}")
