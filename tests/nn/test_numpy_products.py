"""Products of matrices and scaled additions, by BLAS and by NumPy."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from hybridnn import SGD, Adam
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import NUMPY, Kernels, add_scaled

TOLERANCES = {"float32": 1e-5, "float64": 1e-13}
"""Relative to the sum of the absolute values of all addends."""


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (0, 5), (1, 7), (9, 1), (6, 33)])
def test_scaled_addition(shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    around = random.standard_normal((shape[0] + 4, *shape[1:])).astype(dtype)
    x, y, before = random.standard_normal(shape).astype(dtype), around[3:-1], around.copy()
    added = x.copy()
    add_scaled(y, -0.75, x)
    kept, addend = before[3:-1].astype(np.float64), -0.75 * x.astype(np.float64)
    assert (np.abs(y - kept - addend) <= TOLERANCES[dtype] * (np.abs(kept) + np.abs(addend))).all()
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
        "fused_update": lambda: NUMPY.fused_update("rmsprop_update", [flat()] * 4, (0.9, 1e-8), (0.1,), 1),
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


WITHOUT_EXTENSION = """
import importlib.machinery
from hybridnn.nn import kernels
loaded_alone = kernels._BLAS.__name__
class Nothing:
    find_spec = staticmethod(lambda *_: None)
kernels.PathFinder = Nothing
other = kernels.load_blas()
assert (loaded_alone, other.__name__) == ("scipy.linalg._fblas", "scipy.linalg.blas"), (loaded_alone, other)
assert (other.saxpy, other.daxpy) == (kernels._BLAS.saxpy, kernels._BLAS.daxpy)
import scipy.linalg
assert scipy.linalg._fblas.daxpy is kernels._BLAS.daxpy
assert scipy.linalg.norm([3.0, 4.0]) == 5
kernels.PathFinder = importlib.machinery.PathFinder
assert kernels.load_blas() is other
"""


def test_routines_of_blas_are_those_of_the_public_module_which_is_taken_where_the_extension_is_not_found() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
