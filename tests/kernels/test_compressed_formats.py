"""Compressed formats round to the nearest value: against PyTorch, exact fractions, and NumPy's float16."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.kernels.compressed_formats import COMPRESSED_FORMATS

Array = NDArray[Any]


def round_trip(name: str, values: Array) -> Array:
    """Values decoded from their encoding."""
    compression = COMPRESSED_FORMATS[name]
    encoded = np.full(compression.header + values.size, 0xABCD, np.uint16)
    decoded = np.full_like(values, 77)
    before = values.copy()
    compression.encode(values, encoded, np.full((2, values.size + 3), 55, values.dtype))
    compression.decode(encoded, decoded)
    np.testing.assert_array_equal(values, before)
    return decoded


def bfloat16_boundaries() -> Array:
    """For every bfloat16, float32 values at it and around the middle between it and the next one."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).reshape(-1).view(np.float32)


def test_bfloat16_equals_pytorch() -> None:
    values = bfloat16_boundaries()
    expected = torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    found = round_trip("bfloat16", values)
    defined = ~np.isnan(values)
    np.testing.assert_array_equal(found[defined].view(np.uint32), expected[defined].view(np.uint32))
    assert np.isnan(found[~defined]).all()


def test_bfloat16_of_float64_is_rounded_to_float32_first() -> None:
    values = np.random.default_rng(0).standard_normal(10_000) * 2.0 ** np.arange(-100, 100).repeat(50)
    found = round_trip("bfloat16", values)
    np.testing.assert_array_equal(found, round_trip("bfloat16", values.astype(np.float32)))
    assert found.dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=30),
    shift=st.integers(-80, 0),
)
def test_rounding_errors_are_within_the_stated_bounds(dtype: str, values: list[float], shift: int) -> None:
    given_array = (np.array(values) * 2.0**shift).astype(dtype)
    exact = [Fraction(value) for value in given_array.tolist()]
    largest = max(map(abs, exact))
    for name, absolute in (("bfloat16", Fraction(1025, 2**144)), ("float16", largest / 2**39)):
        roundoff = Fraction(COMPRESSED_FORMATS[name].roundoff)
        decoded = round_trip(name, given_array)
        for value, found in zip(exact, decoded.tolist(), strict=True):
            # A float64 is rounded to float32 before it is to bfloat16.
            assert abs(Fraction(found) - value) <= (roundoff * (1 + Fraction(1, 2**20))) * abs(value) + absolute


def test_stated_roundoffs_are_tight() -> None:
    """Halfway to the next number above 1: no smaller bound would hold."""
    for name, bits in (("bfloat16", 8), ("float16", 11)):
        halfway = np.array([1 + 2.0**-bits], np.float32)
        assert round_trip(name, halfway)[0] == 1
        assert COMPRESSED_FORMATS[name].roundoff == 2.0**-bits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_equals_numpy_at_every_scale(dtype: str) -> None:
    random = np.random.default_rng(0)
    values = (random.standard_normal(1000) * 100).astype(np.float16).astype(dtype)
    values[0] = 1000.0
    finer = values * (1 + random.standard_normal(1000).astype(dtype) * 2.0**-9)
    expected = finer.astype(np.float16).astype(dtype)  # far from underflow and overflow
    limits = {"float32": (-110, -30, 0, 40, 117), "float64": (-900, -30, 0, 40, 1013)}
    for exponent in limits[dtype]:
        scale = np.array(2.0**exponent, dtype)
        np.testing.assert_array_equal(round_trip("float16", finer * scale), expected * scale)


def test_subnormal_float32_do_not_underflow() -> None:
    units = np.array([1, 2, 3, 100, 2047, 0, -5], np.float32)
    values = units * np.float32(2.0**-149)
    np.testing.assert_array_equal(round_trip("float16", values), values)


@pytest.mark.parametrize("name", list(COMPRESSED_FORMATS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinities_and_nan_are_preserved(name: str, dtype: str) -> None:
    values = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, -2.0], dtype)
    np.testing.assert_array_equal(round_trip(name, values), values)
    for special in (np.inf, -np.inf, np.nan):
        assert not np.isfinite(round_trip(name, np.array([0.5, special, 1e-5], dtype))[1])


def test_overflow_becomes_infinite() -> None:
    largest = np.array([np.finfo(np.float32).max, 1], np.float32)
    with np.errstate(over="ignore"):
        for name in COMPRESSED_FORMATS:
            assert round_trip(name, largest).tolist() == [np.inf, 1 if name == "bfloat16" else 0]


@pytest.mark.parametrize("name", list(COMPRESSED_FORMATS))
def test_zeros_and_empty_arrays(name: str) -> None:
    assert not round_trip(name, np.zeros(4, np.float32)).any()
    assert round_trip(name, np.zeros(0, np.float32)).size == 0
