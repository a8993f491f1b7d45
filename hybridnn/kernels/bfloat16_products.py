"""Matrix products in bfloat16 on the host: factors rounded to bfloat16, sums and results in float32.

So a GPU's tensor cores compute (``training.dtype = "bfloat16"``). On a processor the rounding only costs time; it makes
the same training possible without a GPU.
"""

from __future__ import annotations

import numpy as np

from hybridnn.kernels.backend import HostArray
from hybridnn.kernels.compressed_formats import COMPRESSED_FORMATS
from hybridnn.kernels.numpy_kernels import NumpyKernels, matmul, matmul_transposed

BFLOAT16 = COMPRESSED_FORMATS["bfloat16"]


def rounded(values: HostArray) -> HostArray:
    """A copy of float32 `values` rounded to bfloat16 (to nearest, ties to even), in the same order in memory."""
    copy = np.array(values, np.float32, order="K")
    flat = copy.ravel(order="K")  # a view: the copy has no gaps
    encoded = np.empty(flat.size, np.uint16)
    BFLOAT16.encode(flat, encoded, np.empty((2, flat.size), np.float32))
    BFLOAT16.decode(encoded, flat)
    return copy


class NumpyBfloat16Products(NumpyKernels):
    """As `NumpyKernels`, of float32 arrays, but with products of factors that are rounded to bfloat16."""

    @staticmethod
    def matmul(a: HostArray, b: HostArray, out: HostArray) -> None:
        """``out = rounded(a) @ rounded(b)``."""
        matmul(rounded(a), rounded(b), out)

    @staticmethod
    def matmul_transposed(a: HostArray, b: HostArray, out: HostArray, workspace: HostArray | None) -> None:
        """``out = rounded(a).T @ rounded(b)``."""
        matmul_transposed(rounded(a), rounded(b), out, workspace)
