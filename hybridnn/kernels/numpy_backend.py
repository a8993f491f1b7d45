"""Arithmetic of the host: the NumPy functions as one object that implements `hybridnn.kernels.backend.Kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.kernels import numpy_kernels, numpy_updates
from hybridnn.kernels.activations import ACTIVATIONS
from hybridnn.kernels.backend import Kernels

Array = NDArray[Any]


class NumpyKernels:
    """Arithmetic on NumPy arrays; see `hybridnn.kernels.backend.Kernels`."""

    on_host = True

    empty = staticmethod(numpy_kernels.empty)
    zeros = staticmethod(numpy_kernels.zeros)
    copy = staticmethod(numpy_kernels.copy)
    add = staticmethod(numpy_kernels.add)
    matmul = staticmethod(numpy_kernels.matmul)
    matmul_transposed = staticmethod(numpy_kernels.matmul_transposed)
    add_bias = staticmethod(numpy_kernels.add_bias)
    row_sums = staticmethod(numpy_kernels.row_sums)
    mean_squared_error = staticmethod(numpy_kernels.mean_squared_error)
    cross_entropy = staticmethod(numpy_kernels.cross_entropy)
    squared_norm = staticmethod(numpy_kernels.squared_norm)
    sgd_update = staticmethod(numpy_updates.sgd_update)
    adam_update = staticmethod(numpy_updates.adam_update)
    sgd_prediction = staticmethod(numpy_updates.sgd_prediction)
    adam_prediction = staticmethod(numpy_updates.adam_prediction)

    def compile(self, dtype: DTypeLike) -> None:
        """Does nothing: there is nothing to compile."""

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
        """0: all arrays are on the host."""
        return 0

    def gather_rows(self, source: Array, index: NDArray[np.int64], out: Array) -> None:
        """``out = source[index]``."""
        # The indices are in range; every other mode writes into a buffer first.
        np.take(source, index, axis=0, out=out, mode="clip")

    def activate(self, name: str, z: Array, scratch: Array) -> None:
        """Replace `z` by its activation."""
        ACTIVATIONS[name].apply(z, scratch)

    def gradient_of_activation(self, name: str, y: Array, dy: Array, out: Array, scratch: Array) -> None:
        """Gradient with respect to the activation's input."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)

    def bias_activate(self, name: str, z: Array, bias: Array, scratch: Array) -> None:
        """Add the bias, then activate."""
        np.add(z, bias, out=z)
        ACTIVATIONS[name].apply(z, scratch)

    def gradient_and_row_sums(
        self, name: str, y: Array, dy: Array, out: Array, sums: Array, scratch: Array, ones: Array
    ) -> None:
        """Gradient of the activation into `out`, and its row sums into `sums`."""
        ACTIVATIONS[name].gradient(y, dy, out, scratch)
        np.dot(out, ones, out=sums)

    def squared_norm_into(self, flat: Array, norm: NDArray[np.float64]) -> None:
        """Sum of squares of `flat` into `norm`, shape (1,)."""
        norm[0] = numpy_kernels.squared_norm(flat)

    def clip_to_norm(self, flat: Array, squared_norm: NDArray[np.float64], limit: float) -> None:
        """Scale `flat` if the norm is above the limit."""
        norm = sqrt(squared_norm[0])
        if norm > limit:
            np.multiply(flat, limit / norm, out=flat)

    def write_scalars(self, scalars: NDArray[np.float64], values: Sequence[float]) -> None:
        """Write `values` into `scalars`."""
        scalars[: len(values)] = values


NUMPY: Kernels = NumpyKernels()
"""The host's arithmetic; it has no state."""
