"""The arithmetic of the host: the NumPy functions as one object, and what other devices do in one pass made of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.kernels import numpy_kernels, numpy_updates
from hybridnn.kernels.backend import Kernels

Array = NDArray[Any]


class NumpyKernels:
    """Arithmetic on NumPy arrays; see `hybridnn.kernels.backend.Kernels`. Nothing is recorded, `numbers` is unused."""

    on_host = True

    empty = staticmethod(numpy_kernels.empty)
    zeros = staticmethod(numpy_kernels.zeros)
    copy = staticmethod(numpy_kernels.copy)
    add = staticmethod(numpy_kernels.add)
    scale = staticmethod(numpy_kernels.scale)
    matmul = staticmethod(numpy_kernels.matmul)
    matmul_transposed = staticmethod(numpy_kernels.matmul_transposed)
    add_bias = staticmethod(numpy_kernels.add_bias)
    activate = staticmethod(numpy_kernels.activate)
    gradient_of_activation = staticmethod(numpy_kernels.gradient_of_activation)
    row_sums = staticmethod(numpy_kernels.row_sums)
    mean_squared_error = staticmethod(numpy_kernels.mean_squared_error)
    cross_entropy = staticmethod(numpy_kernels.cross_entropy)
    squared_norm = staticmethod(numpy_kernels.squared_norm)

    def compile(self, dtype: DTypeLike) -> None:
        """Nothing is to be made ready."""

    def to_device(self, array: Array) -> Array:
        """The array itself."""
        return array

    def to_host(self, array: Array) -> Array:
        """The array itself."""
        return array

    def put(self, host: Array, out: Array) -> None:
        """``out = host``, unless they are the same array."""
        if host is not out:
            np.copyto(out, host)

    def filling(self, out: Array) -> AbstractContextManager[Array]:
        """The array itself."""
        return nullcontext(out)

    def free_bytes(self) -> int:
        """0: everything is on the host."""
        return 0

    def gather_rows(self, source: Array, index: NDArray[np.int64], out: Array) -> None:
        """Copy rows by their index."""
        # Indices are in range; every other mode would write into a buffer first.
        np.take(source, index, axis=0, out=out, mode="clip")

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array) -> None:
        """Add the bias, then activate."""
        numpy_kernels.add_bias(z, bias)
        numpy_kernels.activate(name, z, scratch)

    def gradient_and_row_sums(
        self, name: str, y: Array, dy: Array, out: Array, sums: Array, scratch: Array, ones: Array
    ) -> None:
        """Gradient of the activation into `out`, and the sums of its rows."""
        numpy_kernels.gradient_of_activation(name, y, dy, out, scratch)
        numpy_kernels.row_sums(out, ones, sums)

    def squared_norm_into(self, flat: Array, norm: NDArray[np.float64]) -> None:
        """Sum of squares of `flat` into `norm`, shape (1,)."""
        norm[0] = numpy_kernels.squared_norm(flat)

    def clip_to_norm(self, flat: Array, squared_norm: NDArray[np.float64], limit: float) -> None:
        """Scale `flat` where the norm is above the limit."""
        norm = sqrt(squared_norm[0])
        if norm > limit:
            numpy_kernels.scale(flat, limit / norm)

    def write_scalars(self, numbers: NDArray[np.float64], values: Sequence[float]) -> None:
        """Put `values` into `numbers`."""
        numbers[: len(values)] = values

    def sgd_update(self, *arrays: Any, numbers: Array | None = None, **settings: Any) -> None:
        """As `numpy_updates.sgd_update`."""
        numpy_updates.sgd_update(*arrays, **settings)

    def adam_update(self, *arrays: Any, numbers: Array | None = None, **settings: Any) -> None:
        """As `numpy_updates.adam_update`."""
        numpy_updates.adam_update(*arrays, **settings)

    def sgd_prediction(self, *arrays: Any, numbers: Array | None = None, **settings: Any) -> None:
        """As `numpy_updates.sgd_prediction`."""
        numpy_updates.sgd_prediction(*arrays, **settings)

    def adam_prediction(self, *arrays: Any, numbers: Array | None = None, **settings: Any) -> None:
        """As `numpy_updates.adam_prediction`."""
        numpy_updates.adam_prediction(*arrays, **settings)


NUMPY: Kernels = NumpyKernels()
"""The host's arithmetic; it holds nothing."""
