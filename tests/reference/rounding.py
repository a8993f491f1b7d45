"""Reference of the compressed all-reduce: rounding to 16 bits by the significands of Python's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}


def rounded(dtype: str, values: Array) -> Array:
    """Round to bfloat16, of float64 to float32 first, or to float16 with an unlimited exponent; ties to even."""
    exact = values.astype(np.float32) if dtype == "bfloat16" else values
    significands, exponents = np.frexp(exact)
    bits = SIGNIFICANT_BITS[dtype]
    return np.ldexp(np.round(np.ldexp(significands, bits)), exponents - bits).astype(values.dtype)


def rounded_sum(dtype: str, addends: Sequence[Array]) -> Array:
    """Result of a compressed all-reduce of the addends of all ranks."""
    return rounded(dtype, reduce(np.add, [rounded(dtype, addend) for addend in addends]))
