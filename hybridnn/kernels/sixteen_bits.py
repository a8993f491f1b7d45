"""Numbers rounded to 16 bits, as words that can travel where nothing is known of their type.

Rounding is to the nearest, of two equally near to the one whose last bit is 0. What is infinite or not a number stays
what it is.

``bfloat16`` is the upper half of a float32: its exponents, and 8 bits of significand, so that a number is off by at
most 2^-8 of itself. ``float16`` has 11 bits of significand, 2^-11, but is zero below 2^-25 and infinite from 65520,
where gradients may well be. So it travels with a power of two that brings the largest number of a message to between
2^14 and 2^15. It is exact to multiply by, and what is rounded to whole units of the smallest float16, 2^-24, is then
off by at most 2^-39 of the largest number beside its 2^-11 of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import frexp, isfinite, ldexp
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Words = NDArray[np.uint16]

WORD_BYTES = 2

QUIET = 0x40
"""The bit that makes a bfloat16 with the exponent of infinity not a number, whatever else is cut off."""

TOP = 15
"""The largest number of a message is below 2^15, so that none can round to infinity."""


@dataclass(frozen=True)
class CompressedFormat:
    """A way to write numbers as words of 16 bits.

    Attributes
    ----------
    name : {"bfloat16", "float16"}
    head : int
        Words ahead of those of the numbers.
    roundoff : float
        Largest relative error of rounding a float32 that is not too small: see above.
    write : callable
        ``write(numbers, words, room)`` with `numbers` of float32 or float64, shape (n,); `words` of uint16, shape
        (head + n,); and `room`, overwritten, of the dtype of `numbers` and shape (2, n) or more columns.
    read : callable
        ``read(words, numbers)``, the other way round.
    """

    name: str
    head: int
    roundoff: float
    write: Callable[[Array, Words, Array], None]
    read: Callable[[Words, Array], None]


def _write_bfloat16(numbers: Array, words: Words, room: Array) -> None:
    """Round to bfloat16; float64 is rounded to float32 first."""
    single, sums = numbers, room[1].view(np.uint32)[: numbers.size]
    if numbers.dtype != np.float32:
        single = room[0].view(np.float32)[: numbers.size]
        np.copyto(single, numbers, casting="same_kind")
    bits = single.view(np.uint32)
    # Half a unit of the last bit that stays, less 1 where that bit is 0: then only more than half carries into it.
    np.right_shift(bits, 16, out=sums)
    np.bitwise_and(sums, 1, out=sums)
    np.add(sums, 0x7FFF, out=sums)
    np.add(sums, bits, out=sums)
    np.right_shift(sums, 16, out=sums)
    np.copyto(words, sums, casting="unsafe")
    undefined = np.isnan(single)
    if undefined.any():
        words[undefined] = (bits[undefined] >> 16) | QUIET


def _read_bfloat16(words: Words, numbers: Array) -> None:
    if numbers.dtype != np.float32:
        single = np.empty(numbers.shape, np.float32)
        _read_bfloat16(words, single)
        np.copyto(numbers, single)
        return
    bits = numbers.view(np.uint32)
    np.copyto(bits, words)
    np.left_shift(bits, 16, out=bits)


def _write_float16(numbers: Array, words: Words, room: Array) -> None:
    """Round to float16 multiples of a power of two, whose exponent is the first word."""
    largest = max(float(numbers.max(initial=0)), -float(numbers.min(initial=0)))
    exponent = frexp(largest)[1] - TOP if isfinite(largest) else 0
    # A power of two that is too far from 1 has no inverse in the dtype; the smallest numbers fit without it.
    most = -int(np.finfo(numbers.dtype).minexp)
    exponent = max(-most, min(exponent, most))
    words[0] = exponent % (1 << 16)
    scaled = room[0, : numbers.size]
    np.multiply(numbers, numbers.dtype.type(ldexp(1.0, -exponent)), out=scaled)
    np.copyto(words[1:].view(np.float16), scaled, casting="same_kind")


def _read_float16(words: Words, numbers: Array) -> None:
    exponent = int(words[:1].view(np.int16)[0])
    np.multiply(words[1:].view(np.float16), numbers.dtype.type(ldexp(1.0, exponent)), out=numbers)


COMPRESSED_FORMATS: Mapping[str, CompressedFormat] = MappingProxyType(
    {
        "bfloat16": CompressedFormat("bfloat16", 0, 2.0**-8, _write_bfloat16, _read_bfloat16),
        "float16": CompressedFormat("float16", 1, 2.0**-11, _write_float16, _read_float16),
    }
)
"""By name."""
