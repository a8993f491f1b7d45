"""Compressed formats: float32 and float64 elements rounded to bfloat16 or float16, held in uint16 arrays.

Rounding is to nearest, ties to even. Infinities and NaN are preserved.

``bfloat16`` is the upper half of a float32: the same exponents and a significand of 8 bits, so the relative error is at
most 2^-8. ``float16`` has a significand of 11 bits, relative error 2^-11, but underflows below 2^-25 and overflows from
65520, where gradients may well be. A float16 array is therefore scaled by a power of two that brings its largest
element to between 2^14 and 2^15; the exponent travels ahead of the elements. Scaling is exact, and rounding to
multiples of the smallest float16, 2^-24, adds an absolute error of at most 2^-39 of the largest element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import frexp, isfinite, ldexp
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hybridnn.kernels.backend import HostArray

Encoded = NDArray[np.uint16]

COMPRESSED_ITEMSIZE = 2

QUIET_NAN = 0x40  # the bit that makes a bfloat16 with the exponent of infinity a NaN, whatever bits are cut off
SCALED_EXPONENT = 15  # the largest scaled element is below 2^15, so that none can round to infinity


@dataclass(frozen=True)
class CompressedFormat:
    """A 16-bit floating-point format."""

    name: str  # one of "bfloat16", "float16"
    header: int  # items of an encoded array ahead of those of the elements
    roundoff: float  # largest relative error of rounding a float32 that does not underflow
    # ``encode(values, encoded, scratch)``: `values` of float32 or float64, shape (n,); `encoded` of uint16, shape
    # (header + n,); `scratch` of the dtype of `values`, shape (2, at least n), overwritten
    encode: Callable[[HostArray, Encoded, HostArray], None]
    decode: Callable[[Encoded, HostArray], None]  # ``decode(encoded, values)``, the inverse


def _encode_bfloat16(values: HostArray, encoded: Encoded, scratch: HostArray) -> None:
    """Round to bfloat16; float64 is rounded to float32 first."""
    single, sums = values, scratch[1].view(np.uint32)[: values.size]
    if values.dtype != np.float32:
        single = scratch[0].view(np.float32)[: values.size]
        np.copyto(single, values, casting="same_kind")
    bits = single.view(np.uint32)
    # Add half a unit of the last bit that stays, less 1 if that bit is 0: only more than half carries into it.
    np.right_shift(bits, 16, out=sums)
    np.bitwise_and(sums, 1, out=sums)
    np.add(sums, 0x7FFF, out=sums)
    np.add(sums, bits, out=sums)
    np.right_shift(sums, 16, out=sums)
    np.copyto(encoded, sums, casting="unsafe")
    is_nan = np.isnan(single)
    if is_nan.any():
        encoded[is_nan] = (bits[is_nan] >> 16) | QUIET_NAN


def _decode_bfloat16(encoded: Encoded, values: HostArray) -> None:
    if values.dtype != np.float32:
        single = np.empty(values.shape, np.float32)
        _decode_bfloat16(encoded, single)
        np.copyto(values, single)
        return
    bits = values.view(np.uint32)
    np.copyto(bits, encoded)
    np.left_shift(bits, 16, out=bits)


def _encode_float16(values: HostArray, encoded: Encoded, scratch: HostArray) -> None:
    """Round to float16 times a power of two, whose exponent is the first item."""
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    exponent = frexp(largest)[1] - SCALED_EXPONENT if isfinite(largest) else 0
    # A power of two too far from 1 has no inverse in the dtype; the smallest values fit without it.
    limit = -int(np.finfo(values.dtype).minexp)
    exponent = max(-limit, min(exponent, limit))
    encoded[0] = exponent % (1 << 16)
    scaled = scratch[0, : values.size]
    np.multiply(values, values.dtype.type(ldexp(1.0, -exponent)), out=scaled)
    np.copyto(encoded[1:].view(np.float16), scaled, casting="same_kind")


def _decode_float16(encoded: Encoded, values: HostArray) -> None:
    exponent = int(encoded[:1].view(np.int16)[0])
    np.multiply(encoded[1:].view(np.float16), values.dtype.type(ldexp(1.0, exponent)), out=values)


COMPRESSED_FORMATS: Mapping[str, CompressedFormat] = MappingProxyType(
    {
        "bfloat16": CompressedFormat("bfloat16", 0, 2.0**-8, _encode_bfloat16, _decode_bfloat16),
        "float16": CompressedFormat("float16", 1, 2.0**-11, _encode_float16, _decode_float16),
    }
)
"""The formats by name."""


def rounded_to_bfloat16(values: HostArray) -> HostArray:
    """A copy of float32 `values`, each rounded to bfloat16, in the same order in memory."""
    copy = np.array(values, np.float32, order="K")
    flat = copy.ravel(order="K")  # a view: the copy has no gaps
    encoded = np.empty(flat.size, np.uint16)
    _encode_bfloat16(flat, encoded, np.empty((2, flat.size), np.float32))
    _decode_bfloat16(encoded, flat)
    return copy
