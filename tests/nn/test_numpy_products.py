"""NumPy products against sums over elements: transposed, accumulated, row sums, scaled addition; empty blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridnn import SGD, Adam
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import NUMPY, Kernels, add_scaled
from reference.network import Array

TOLERANCES = {"float32": 1e-5, "float64": 1e-13}
"""Relative to the sum of the absolute values of all addends."""

ORDERS: dict[str, Callable[[Array], Array]] = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "rows of a row-major matrix": lambda array: _within(array, "C"),
    "rows of a column-major matrix": lambda array: _within(array, "F"),
}
"""Memory layouts of a matrix."""

KEEPS = (0.0, 1.0, 0.5)

dtypes, orders, keeps = st.sampled_from(sorted(TOLERANCES)), st.sampled_from(sorted(ORDERS)), st.sampled_from(KEEPS)
sizes, lengths = st.sampled_from((0, 1, 2, 3, 16, 33)), st.sampled_from((0, 1, 2, 7, 50))
factors = st.sampled_from((1.0, -0.25, 0.0, 3.5))


def _within(array: Array, order: Any) -> Array:
    """The array as rows of a larger one, whose other rows are NaN."""
    around = np.full((len(array) + 5, array.shape[1]), np.nan, array.dtype, order=order)
    around[2 : 2 + len(array)] = array
    return around[2 : 2 + len(array)]


def output_for(shape: tuple[int, ...], keep: float, dtype: str, random: np.random.Generator) -> tuple[Array, Array]:
    """A larger array and an output inside it, which is NaN if its elements are not kept."""
    around = random.standard_normal((shape[0] + 4, *shape[1:])).astype(dtype)
    out = around[3:-1]
    if keep == 0:
        out[...] = np.nan
    return around, out


def assert_sum(found: Array, before: Array, terms: Array, keep: float, dtype: str) -> None:
    """`found` equals what is kept plus the sum of the terms along the last axis."""
    kept = keep * before.astype(np.float64) if keep else np.zeros(before.shape)
    magnitude = np.abs(kept) + np.abs(terms).sum(axis=-1)
    assert (np.abs(found - kept - terms.sum(axis=-1)) <= TOLERANCES[dtype] * magnitude).all()


@given(sizes, sizes, lengths, orders, orders, keeps, factors, dtypes)
def test_product_added_in_place(
    m: int, n: int, k: int, of_a: str, of_b: str, keep: float, factor: float, dtype: str
) -> None:
    random = np.random.default_rng([m, n, k])
    a = ORDERS[of_a](random.standard_normal((m, k)).astype(dtype))
    b = ORDERS[of_b](random.standard_normal((k, n)).astype(dtype))
    around, out = output_for((m, n), keep, dtype, random)
    before, inputs = around.copy(), (a.copy(), b.copy())
    NUMPY.add_product(a, b, out, factor, keep)
    terms = factor * a.astype(np.float64)[:, None, :] * b.astype(np.float64).T[None, :, :]
    assert_sum(around[3:-1], before[3:-1], terms, keep, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(a, inputs[0])
    assert np.array_equal(b, inputs[1])


@given(sizes, lengths, orders, keeps, factors, dtypes)
def test_row_sums_added_in_place(m: int, k: int, order: str, keep: float, factor: float, dtype: str) -> None:
    random = np.random.default_rng([m, k])
    dz = ORDERS[order](random.standard_normal((m, k)).astype(dtype))
    around, out = output_for((m,), keep, dtype, random)
    before, given_dz = around.copy(), dz.copy()
    NUMPY.add_row_sums(dz, np.ones(k, dtype), out, factor, keep)
    assert_sum(around[3:-1], before[3:-1], factor * dz.astype(np.float64), keep, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(dz, given_dz)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (0, 5), (1, 7), (9, 1), (6, 33)])
def test_scaled_addition(shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    around, y = output_for(shape, 1.0, dtype, random)
    x, before = random.standard_normal(shape).astype(dtype), around.copy()
    added = x.copy()
    add_scaled(y, -0.75, x)
    assert_sum(around[3:-1], before[3:-1], (-0.75 * x.astype(np.float64))[..., None], 1.0, dtype)
    assert np.array_equal(around[:3], before[:3])
    assert np.array_equal(around[-1:], before[-1:])
    assert np.array_equal(x, added)


def test_scaled_addition_of_an_array_to_itself() -> None:
    y = np.arange(40.0).reshape(5, 8)
    add_scaled(y, 2.0, y)
    assert np.array_equal(y, 3 * np.arange(40.0).reshape(5, 8))


@pytest.mark.parametrize("with_workspace", [False, True])
@pytest.mark.parametrize(("k", "m", "n"), [(7, 5, 3), (1, 4, 1), (6, 2, 0), (40, 33, 16)])
def test_transposed_product(k: int, m: int, n: int, with_workspace: bool) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((k, m)), random.standard_normal((k, n))
    out = np.full((m, n), np.nan)
    workspace = np.full((n, m), np.nan) if with_workspace else None
    NUMPY.matmul_transposed(a, b, out, workspace)
    expected = [[sum(a[i, row] * b[i, column] for i in range(k)) for column in range(n)] for row in range(m)]
    np.testing.assert_allclose(out, np.array(expected).reshape(m, n), rtol=1e-12, atol=1e-14)


def kernel_calls(rows: int, n: int, name: str) -> dict[str, Callable[[], object]]:
    """A call of every kernel with a block of `rows` and `n` samples: by name, with an activation."""
    ones, labels, total = np.ones, np.zeros(n, np.int64), np.ones(1)
    block, flat, bias = partial(ones, (rows, n)), partial(ones, rows * n), partial(ones, (rows, 1))
    classes = partial(ones, (3, n))  # every rank has all outputs of the network
    return {
        "copy": lambda: NUMPY.copy(block(), block()),
        "add": lambda: NUMPY.add(block(), block(), block()),
        "gather_rows": lambda: NUMPY.gather_rows(ones((5, rows)), labels, ones((n, rows))),
        "matmul": lambda: NUMPY.matmul(ones((rows, 2)), ones((2, n)), block()),
        "matmul_transposed": lambda: NUMPY.matmul_transposed(ones((2, rows)), ones((2, n)), block(), ones((n, rows))),
        "add_product": lambda: NUMPY.add_product(ones((rows, 2)), ones((2, n)), block(), 1.0, 0.5),
        "add_row_sums": lambda: NUMPY.add_row_sums(block(), ones(n), ones(rows), 1.0, 0.5),
        "add_bias": lambda: NUMPY.add_bias(block(), bias()),
        "activate": lambda: NUMPY.activate(name, block(), block()),
        "bias_activate": lambda: NUMPY.bias_activate(name, block(), bias(), block()),
        "gradient_of_activation": lambda: NUMPY.gradient_of_activation(name, block(), block(), block(), block()),
        "row_sums": lambda: NUMPY.row_sums(block(), ones(n), ones(rows)),
        "gradient_and_row_sums": lambda: NUMPY.gradient_and_row_sums(
            name, block(), block(), block(), ones(rows), block(), ones(n)
        ),
        "mean_squared_error": lambda: NUMPY.mean_squared_error(classes(), classes(), 1.0, classes(), total),
        "cross_entropy": lambda: NUMPY.cross_entropy(classes(), labels, np.arange(n), 1.0, classes(), total),
        "count_correct": lambda: NUMPY.count_correct(classes(), labels, total),
        "squared_norms": lambda: NUMPY.squared_norms(flat(), [0, rows * n]),
        "squared_norm_into": lambda: NUMPY.squared_norm_into(flat(), total),
        "clip_to_norm": lambda: NUMPY.clip_to_norm(flat(), total, 0.5),
        "sgd_update": lambda: NUMPY.sgd_update(flat(), flat(), flat(), flat(), flat(), SGD(weight_decay=0.1), (0.1,)),
        "adam_update": lambda: NUMPY.adam_update(
            flat(), flat(), flat(), flat(), flat(), flat(), Adam(weight_decay=0.1), (0.1, 1.0, 1.0)
        ),
        "sgd_prediction": lambda: NUMPY.sgd_prediction(flat(), flat(), flat(), 2.0),
        "adam_prediction": lambda: NUMPY.adam_prediction(flat(), flat(), flat(), flat(), 0.1, (0.1, 1.0)),
    }


HOST_MEMORY = {"on_host", "compile", "empty", "zeros", "to_device", "to_host", "put", "filling", "free_bytes"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "n"), [(0, 3), (3, 0), (0, 0)])
def test_every_kernel_takes_empty_blocks(rows: int, n: int, activation: str) -> None:
    """Of layers with fewer outputs or inputs than model ranks, and of ranks without samples."""
    calls = kernel_calls(rows, n, activation)
    assert calls.keys() == {name for name in vars(Kernels) if name[0] != "_"} - HOST_MEMORY
    for call in calls.values():
        call()
