"""Products, sums of rows and multiples that are added to what is there, beside plain sums over single numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn.kernels.numpy_kernels import add_product, add_row_sums, add_scaled
from reference.network import Array

TOLERANCES = {"float32": 1e-5, "float64": 1e-13}
"""Relative to the sum of the absolute values of all that is added."""

ORDERS: dict[str, Callable[[Array], Array]] = {
    "rows side by side": np.ascontiguousarray,
    "columns side by side": np.asfortranarray,
    "rows of rows side by side": lambda array: _within(array, "C"),
    "rows of columns side by side": lambda array: _within(array, "F"),
}
"""How the numbers of a matrix lie in memory."""

KEEPS = (0.0, 1.0, 0.5)

dtypes, orders, keeps = st.sampled_from(sorted(TOLERANCES)), st.sampled_from(sorted(ORDERS)), st.sampled_from(KEEPS)
sizes, lengths = st.sampled_from((1, 2, 3, 16, 33)), st.sampled_from((0, 1, 2, 7, 50))
factors = st.sampled_from((1.0, -0.25, 0.0, 3.5))


def _within(array: Array, order: Any) -> Array:
    """The same numbers as some rows of a larger array, whose others are not numbers."""
    around = np.full((len(array) + 5, array.shape[1]), np.nan, array.dtype, order=order)
    around[2 : 2 + len(array)] = array
    return around[2 : 2 + len(array)]


def places_for(shape: tuple[int, ...], keep: float, dtype: str, random: np.random.Generator) -> tuple[Array, Array]:
    """An array between others, and where it is; what is not kept is not a number."""
    around = random.standard_normal((shape[0] + 4, *shape[1:])).astype(dtype)
    out = around[3:-1]
    if keep == 0:
        out[...] = np.nan
    return around, out


def assert_sum(found: Array, before: Array, terms: Array, keep: float, dtype: str) -> None:
    """`found` is what was kept and the sum of the terms along the last axis."""
    kept = keep * before.astype(np.float64) if keep else np.zeros(before.shape)
    magnitude = np.abs(kept) + np.abs(terms).sum(axis=-1)
    assert (np.abs(found - kept - terms.sum(axis=-1)) <= TOLERANCES[dtype] * magnitude).all()


@given(sizes, sizes, lengths, orders, orders, keeps, factors, dtypes)
def test_a_product_is_added_in_place(
    m: int, n: int, k: int, of_a: str, of_b: str, keep: float, factor: float, dtype: str
) -> None:
    random = np.random.default_rng([m, n, k])
    a = ORDERS[of_a](random.standard_normal((m, k)).astype(dtype))
    b = ORDERS[of_b](random.standard_normal((k, n)).astype(dtype))
    around, out = places_for((m, n), keep, dtype, random)
    before, inputs = around.copy(), (a.copy(), b.copy())
    add_product(a, b, out, factor, keep)
    terms = factor * a.astype(np.float64)[:, None, :] * b.astype(np.float64).T[None, :, :]
    assert_sum(around[3:-1], before[3:-1], terms, keep, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(a, inputs[0])
    assert np.array_equal(b, inputs[1])


@given(sizes, lengths.filter(bool), orders, keeps, factors, dtypes)
def test_sums_of_rows_are_added_in_place(m: int, k: int, order: str, keep: float, factor: float, dtype: str) -> None:
    random = np.random.default_rng([m, k])
    dz = ORDERS[order](random.standard_normal((m, k)).astype(dtype))
    around, out = places_for((m,), keep, dtype, random)
    before, given_dz = around.copy(), dz.copy()
    add_row_sums(dz, np.ones(k, dtype), out, factor, keep)
    assert_sum(around[3:-1], before[3:-1], factor * dz.astype(np.float64), keep, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(dz, given_dz)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (0, 5), (1, 7), (9, 1), (6, 33)])
def test_a_multiple_is_added_in_place(shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    around, y = places_for(shape, 1.0, dtype, random)
    x, before = random.standard_normal(shape).astype(dtype), around.copy()
    added = x.copy()
    add_scaled(y, -0.75, x)
    assert_sum(around[3:-1], before[3:-1], (-0.75 * x.astype(np.float64))[..., None], 1.0, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(x, added)


def test_a_multiple_of_an_array_is_added_to_itself() -> None:
    y = np.arange(40.0).reshape(5, 8)
    add_scaled(y, 2.0, y)
    assert np.array_equal(y, 3 * np.arange(40.0).reshape(5, 8))
