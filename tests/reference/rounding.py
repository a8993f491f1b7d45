"""Reference of the compressed all-reduce: rounding to 16 bits by PyTorch and Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


def rounded(dtype: str, values: Array) -> Array:
    """Round to bfloat16, or to the 11 significant bits of float16 with an unlimited exponent."""
    if dtype == "bfloat16":
        single = torch.from_numpy(np.ascontiguousarray(values)).to(torch.float32)
        return single.to(torch.bfloat16).to(torch.float32).numpy().astype(values.dtype)
    significands, exponents = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(significands, 11)), exponents - 11).astype(values.dtype)


def rounded_sum(dtype: str, addends: Sequence[Array]) -> Array:
    """Result of a compressed all-reduce of the addends of all ranks."""
    return rounded(dtype, reduce(np.add, [rounded(dtype, addend) for addend in addends]))
