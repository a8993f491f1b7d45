"""Rounding to few bits, and sums of what was rounded, apart from how the package does it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


def rounded(words: str, numbers: Array) -> Array:
    """To bfloat16 by PyTorch, and to 11 bits of significand, with exponents without end, by Python's own arithmetic."""
    if words == "bfloat16":
        single = torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.float32)
        return single.to(torch.bfloat16).to(torch.float32).numpy().astype(numbers.dtype)
    significands, exponents = np.frexp(numbers)
    return np.ldexp(np.round(np.ldexp(significands, 11)), exponents - 11).astype(numbers.dtype)


def rounded_sum(words: str, addends: Sequence[Array]) -> Array:
    """What ranks that have these numbers agree on."""
    return rounded(words, reduce(np.add, [rounded(words, numbers) for numbers in addends]))
