"""Matrix products on a GPU by direct calls of cuBLAS.

CuPy's matrix products cannot be captured in a CUDA graph, allocate memory for some orders of the output, and set TF32
for the whole process. This module has its own handle and workspace, and calls ``cublasGemmEx``.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any
from weakref import finalize

import numpy as np

from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_loading import first_line

NO_TRANSPOSE, TRANSPOSE = 0, 1
DATA_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
DEFAULT_ALGORITHM = -1
SCALARS = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.float64): ctypes.c_double}
"""Types of alpha and beta in host memory, where cuBLAS reads them during the call: a captured product repeats them."""

STATUSES = {1: "not initialized", 3: "out of memory", 8: "the GPU is too old for it", 13: "the GPU failed"}
"""Of ``cublasStatus_t``, those that a correct program meets."""

WORKSPACE_BYTES = 32 << 20
"""NVIDIA's recommendation for Hopper. With a workspace, products do not allocate and can be captured."""


def load_cublas(cupy: Any) -> ctypes.CDLL:
    """Load the cuBLAS that CuPy uses.

    Raises `EnvironmentProblem` if there is none.
    """
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    try:
        # Importing this module loads the library that CuPy finds.
        _ = import_module("cupy_backends.cuda.libs").cublas
        return ctypes.CDLL(f"libcublas.so.{major}")
    except (ImportError, OSError) as error:
        raise EnvironmentProblem(
            f"CuPy finds no cuBLAS ({first_line(error)}): "
            f"pip install 'cupy-cuda{major}x[ctk]', or load the CUDA module of your cluster"
        ) from error


class CublasProducts:
    """Products of matrices on the current device.

    With `tf32`, float32 products may round their factors to TF32, with a significand of 11 bits, for tensor cores.
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
            *(pointer, pointer, integer, integer, pointer, integer, integer),  # alpha; address, type, stride of a and b
            *(pointer, pointer, integer, integer, integer, integer),  # beta; the same of c; compute type, algorithm
        ]
        self._set_stream, self._set_workspace = library.cublasSetStream_v2, library.cublasSetWorkspace_v2
        self._set_stream.argtypes = [pointer, pointer]
        self._set_workspace.argtypes = [pointer, pointer, ctypes.c_size_t]
        self._handle = ctypes.c_void_p()
        _check(library.cublasCreate_v2(ctypes.byref(self._handle)), "cublasCreate")
        library.cublasDestroy_v2.argtypes = [pointer]
        # Not at exit: the driver may have been unloaded before, with all its handles.
        finalize(self, library.cublasDestroy_v2, self._handle).atexit = False
        self._workspace = cupy.empty((WORKSPACE_BYTES,), np.uint8)
        self._stream: int | None = None

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """``out = a @ b``, of shapes (m, k), (k, n) and (m, n), and one dtype, float32 or float64.

        Raises `ValueError` if shapes or dtypes do not match, or an array is contiguous along neither axis.
        """
        (m, k), n, dtype = a.shape, b.shape[1], out.dtype
        if b.shape[0] != k or out.shape != (m, n) or not a.dtype == b.dtype == dtype:
            raise ValueError(f"({a.shape}, {a.dtype}) @ ({b.shape}, {b.dtype}) is not ({out.shape}, {dtype})")
        if m == 0 or n == 0:
            return
        if k == 0:
            out.fill(0)
            return
        column_major, out_stride = _order(out)
        if column_major:
            self.multiply(b.T, a.T, out.T)
            return
        # cuBLAS is column-major: to it row-major arrays are their transposes, and out.T = b.T @ a.T.
        (a_column_major, a_stride), (b_column_major, b_stride) = _order(a), _order(b)
        self._use_current_stream()
        scalar, kind = SCALARS[dtype], DATA_TYPES[dtype]
        status = self._gemm(
            self._handle,
            TRANSPOSE if b_column_major else NO_TRANSPOSE,
            TRANSPOSE if a_column_major else NO_TRANSPOSE,
            *(n, m, k),
            *(ctypes.byref(scalar(1.0)), b.data.ptr, kind, b_stride, a.data.ptr, kind, a_stride),
            *(ctypes.byref(scalar(0.0)), out.data.ptr, kind, out_stride),
            self._compute[dtype],
            DEFAULT_ALGORITHM,
        )
        _check(status, "cublasGemmEx")

    def forget_stream(self) -> None:
        """Set the stream at the next product: a new stream may have the address of one that has ended."""
        self._stream = None

    def _use_current_stream(self) -> None:
        stream = self._cupy.cuda.get_current_stream().ptr
        if stream != self._stream:
            _check(self._set_stream(self._handle, stream), "cublasSetStream")
            # Setting the stream resets the workspace.
            _check(self._set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES), "cublasSetWorkspace")
            self._stream = stream


def _order(matrix: Any) -> tuple[bool, int]:
    """Whether a matrix is column-major, and the elements from one row (or column) to the next."""
    (rows, columns), (down, right), size = matrix.shape, matrix.strides, matrix.itemsize
    if right == size or columns == 1:
        return False, max(down // size if rows > 1 else 0, columns)
    if down == size or rows == 1:
        return True, max(right // size, rows)
    raise ValueError(f"a matrix of shape {matrix.shape} and strides {matrix.strides} is contiguous along neither axis")


def _check(status: int, call: str) -> None:
    if status != 0:
        reason = f", {STATUSES[status]}" if status in STATUSES else ""
        raise RuntimeError(f"{call} failed with status {status}{reason}")
