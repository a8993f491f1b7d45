"""Words of 16 bits hold the nearest numbers there are: against PyTorch, exact fractions, and NumPy's float16."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.kernels.sixteen_bits import COMPRESSED_FORMATS

Array = NDArray[Any]


def there_and_back(name: str, numbers: Array) -> Array:
    """What is read of the words that are written."""
    words = COMPRESSED_FORMATS[name]
    written = np.full(words.head + numbers.size, 0xABCD, np.uint16)
    read = np.full_like(numbers, 77)
    before = numbers.copy()
    words.write(numbers, written, np.full((2, numbers.size + 3), 55, numbers.dtype))
    words.read(written, read)
    np.testing.assert_array_equal(numbers, before)
    return read


def every_upper_half() -> Array:
    """All bfloat16, and for each of them float32 around the middle between it and the next one."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).reshape(-1).view(np.float32)


def test_bfloat16_is_what_pytorch_rounds_to() -> None:
    numbers = every_upper_half()
    expected = torch.from_numpy(numbers).to(torch.bfloat16).to(torch.float32).numpy()
    found = there_and_back("bfloat16", numbers)
    defined = ~np.isnan(numbers)
    np.testing.assert_array_equal(found[defined].view(np.uint32), expected[defined].view(np.uint32))
    assert np.isnan(found[~defined]).all()


def test_bfloat16_of_float64_is_that_of_the_nearest_float32() -> None:
    numbers = np.random.default_rng(0).standard_normal(10_000) * 2.0 ** np.arange(-100, 100).repeat(50)
    found = there_and_back("bfloat16", numbers)
    np.testing.assert_array_equal(found, there_and_back("bfloat16", numbers.astype(np.float32)))
    assert found.dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    numbers=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=30),
    shift=st.integers(-80, 0),
)
def test_no_word_is_further_from_its_number_than_stated(dtype: str, numbers: list[float], shift: int) -> None:
    given_numbers = (np.array(numbers) * 2.0**shift).astype(dtype)
    exact = [Fraction(number) for number in given_numbers.tolist()]
    largest = max(map(abs, exact))
    for name, absolute in (("bfloat16", Fraction(1025, 2**144)), ("float16", largest / 2**39)):
        roundoff = Fraction(COMPRESSED_FORMATS[name].roundoff)
        read = there_and_back(name, given_numbers)
        for number, found in zip(exact, read.tolist(), strict=True):
            # A float64 is rounded to float32 before it is to bfloat16.
            assert abs(Fraction(found) - number) <= (roundoff * (1 + Fraction(1, 2**20))) * abs(number) + absolute


def test_roundoffs_are_reached() -> None:
    """Halfway to the next number above 1: no smaller bound would hold."""
    for name, bits in (("bfloat16", 8), ("float16", 11)):
        halfway = np.array([1 + 2.0**-bits], np.float32)
        assert there_and_back(name, halfway)[0] == 1
        assert COMPRESSED_FORMATS[name].roundoff == 2.0**-bits


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_is_that_of_numpy_whatever_the_scale(dtype: str) -> None:
    random = np.random.default_rng(0)
    numbers = (random.standard_normal(1000) * 100).astype(np.float16).astype(dtype)
    numbers[0] = 1000.0
    finer = numbers * (1 + random.standard_normal(1000).astype(dtype) * 2.0**-9)
    expected = finer.astype(np.float16).astype(dtype)  # in the middle of its range
    limits = {"float32": (-110, -30, 0, 40, 117), "float64": (-900, -30, 0, 40, 1013)}
    for exponent in limits[dtype]:
        scale = np.array(2.0**exponent, dtype)
        np.testing.assert_array_equal(there_and_back("float16", finer * scale), expected * scale)


def test_the_smallest_float32_survive_among_themselves() -> None:
    units = np.array([1, 2, 3, 100, 2047, 0, -5], np.float32)
    numbers = units * np.float32(2.0**-149)
    np.testing.assert_array_equal(there_and_back("float16", numbers), numbers)


@pytest.mark.parametrize("name", list(COMPRESSED_FORMATS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_finite_stays_so(name: str, dtype: str) -> None:
    numbers = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, -2.0], dtype)
    np.testing.assert_array_equal(there_and_back(name, numbers), numbers)
    for special in (np.inf, -np.inf, np.nan):
        assert not np.isfinite(there_and_back(name, np.array([0.5, special, 1e-5], dtype))[1])


def test_what_rounds_to_more_than_there_is_becomes_infinite() -> None:
    largest = np.array([np.finfo(np.float32).max, 1], np.float32)
    with np.errstate(over="ignore"):
        for name in COMPRESSED_FORMATS:
            assert there_and_back(name, largest).tolist() == [np.inf, 1 if name == "bfloat16" else 0]


@pytest.mark.parametrize("name", list(COMPRESSED_FORMATS))
def test_zeros_and_nothing(name: str) -> None:
    assert not there_and_back(name, np.zeros(4, np.float32)).any()
    assert there_and_back(name, np.zeros(0, np.float32)).size == 0
