"""Every kernel on a GPU against NumPy, and CUDA graphs, streams and memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpu.cuda_cases import FLAT_CASES, FLAT_SIZES, MATRIX_CASES, SHAPES, TOLERANCES, compare
from hybridnn import AdamW
from hybridnn.gpu.cupy_kernels import cupy_kernels
from hybridnn.gpu.cupy_loading import load_cupy
from hybridnn.nn.optimizers import new_state

DTYPES = ("float32", "float64")
LARGE_SIZES = (*FLAT_SIZES, (1 << 21) + 3)
LARGE_SHAPES = (*SHAPES, (1000, 513), (70_000, 8), (10, 200_003), (2048, 1024))


@pytest.fixture(scope="module")
def cupy() -> Any:
    return load_cupy()  # raises if there is no GPU


@pytest.fixture(scope="module")
def kernels(cupy: Any) -> Any:
    return cupy_kernels()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FLAT_CASES)
def test_flat_arrays(cupy: Any, kernels: Any, name: str, dtype: str) -> None:
    for size in LARGE_SIZES:
        compare(FLAT_CASES[name], kernels, cupy.asarray, dtype, size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRIX_CASES)
def test_matrices(cupy: Any, kernels: Any, name: str, dtype: str) -> None:
    for shape in LARGE_SHAPES:
        compare(MATRIX_CASES[name], kernels, cupy.asarray, dtype, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_arrays(cupy: Any, kernels: Any, dtype: str) -> None:
    def upload(array: Any) -> Any:
        unaligned = cupy.empty((array.size + 1,), array.dtype)[1:].reshape(array.shape)
        unaligned[...] = cupy.asarray(array)
        return unaligned

    for case in FLAT_CASES.values():
        compare(case, kernels, upload, dtype, 5003)
    for case in MATRIX_CASES.values():
        compare(case, kernels, upload, dtype, (40, 2048))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cross-entropy", "mean squared error", "gradient and sums selu", "row sums"])
def test_the_same_sums_give_the_same_bits(cupy: Any, kernels: Any, name: str, dtype: str) -> None:
    outcomes = []
    for _ in range(2):
        call, arrays = MATRIX_CASES[name](np.random.default_rng(0), np.dtype(dtype), (300, 5001))
        found = {key: cupy.asarray(array) for key, array in arrays.items()}
        call(kernels, **found)
        outcomes.append({key: kernels.to_host(array).tobytes() for key, array in found.items()})
    assert outcomes[0] == outcomes[1]


def orders(cupy: Any, matrix: Any) -> Iterator[Any]:
    """A matrix in row-major and column-major order, and as a block of a larger one."""
    yield cupy.asarray(matrix)
    yield cupy.asarray(np.ascontiguousarray(matrix.T)).T
    part = cupy.zeros((matrix.shape[0], matrix.shape[1] + 3), matrix.dtype)[:, 1:-2]
    part[...] = cupy.asarray(matrix)
    yield part


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 40, 7), (33, 1, 5), (100, 64, 1), (257, 129, 65)])
def test_products_of_matrices_of_all_layouts(cupy: Any, kernels: Any, dtype: str, m: int, k: int, n: int) -> None:
    random = np.random.default_rng(m + k + n)
    first, second = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    expected = first.astype(np.float64) @ second.astype(np.float64)
    largest = np.abs(first).max() * np.abs(second).max() * k**0.5
    for a in orders(cupy, first):
        for b in orders(cupy, second):
            for out in orders(cupy, np.full((m, n), 9, dtype)):
                kernels.matmul(a, b, out)
                np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=0, atol=TOLERANCES[dtype] * largest)


def test_tf32_is_less_precise_and_optional(cupy: Any, kernels: Any) -> None:
    if int(cupy.cuda.Device().compute_capability) < 80:
        pytest.skip("this device has no TF32")
    a = cupy.asarray(np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32))
    exact, errors = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(a).astype(np.float64), []
    for device in (kernels, cupy_kernels(tf32=True)):
        out = cupy.empty_like(a)
        device.matmul(a, a, out)
        errors.append(np.abs(cupy.asnumpy(out) - exact).max() / np.abs(exact).max())
    assert errors[0] < 1e-6
    assert 1e-5 < errors[1] < 5e-3


class Training:
    """A network of two layers on device arrays, trained by AdamW."""

    SAMPLES, FEATURES, HIDDEN, CLASSES, BATCH = 200, 12, 32, 5, 48
    OPTIMIZER = AdamW(betas=(0.9, 0.99), weight_decay=0.01)

    def __init__(self, kernels: Any, dtype: str) -> None:
        self.kernels, random = kernels, np.random.default_rng(5)
        upload, empty = kernels.to_device, lambda *shape: kernels.zeros(shape, dtype)
        features, hidden, classes, n = self.FEATURES, self.HIDDEN, self.CLASSES, self.BATCH
        self.data = upload(random.standard_normal((self.SAMPLES, features)).astype(dtype))
        self.labels = upload(random.integers(0, classes, self.SAMPLES))
        size = hidden * features + hidden + classes * hidden + classes
        self.weights = upload((0.1 * random.standard_normal(size)).astype(dtype))
        self.gradient, self.state = empty(size), new_state(self.OPTIMIZER, self.weights, kernels)
        self.x, self.y, self.index = empty(n, features), kernels.zeros((n,), np.int64), kernels.zeros((n,), np.int64)
        self.hidden, self.outputs, self.loss = empty(hidden, n), empty(classes, n), empty(1)
        self.d_hidden, self.d_outputs, self.norm = empty(hidden, n), empty(classes, n), kernels.zeros((1,), np.float64)

    def views(self, flat: Any) -> list[Any]:
        shapes = [(self.HIDDEN, self.FEATURES), (self.HIDDEN, 1), (self.CLASSES, self.HIDDEN), (self.CLASSES, 1)]
        stops = np.cumsum([rows * columns for rows, columns in shapes])
        return [flat[stop - r * c : stop].reshape(r, c) for stop, (r, c) in zip(stops, shapes, strict=True)]

    def step(self, lr: float) -> None:
        k, (w1, b1, w2, b2), (g1, s1, g2, s2) = self.kernels, self.views(self.weights), self.views(self.gradient)
        k.gather_rows(self.data, self.index, self.x)
        k.gather_rows(self.labels, self.index, self.y)
        k.matmul(w1, self.x.T, self.hidden)
        k.bias_activate("selu", self.hidden, b1, None)
        k.matmul(w2, self.hidden, self.outputs)
        k.add_bias(self.outputs, b2)
        k.cross_entropy(self.outputs, self.y, None, 1 / self.BATCH, self.d_outputs, self.loss)
        k.row_sums(self.d_outputs, None, s2)
        k.matmul(self.d_outputs, self.hidden.T, g2)
        k.matmul_transposed(w2, self.d_outputs, self.d_hidden, None)
        k.gradient_and_row_sums("selu", self.hidden, self.d_hidden, self.d_hidden, s1, None, None)
        k.matmul(self.d_hidden, self.x, g1)
        k.squared_norm_into(self.gradient, self.norm)
        k.clip_to_norm(self.gradient, self.norm, 0.5)
        self.OPTIMIZER.update(self.weights, self.gradient, self.state, lr)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_neither_waits_nor_allocates(cupy: Any, kernels: Any, dtype: str) -> None:
    from cupyx import allow_synchronize

    training, pool = Training(kernels, dtype), cupy.get_default_memory_pool()
    training.step(0.1)
    before = pool.used_bytes(), pool.total_bytes()
    with allow_synchronize(False):
        training.step(0.1)
    assert (pool.used_bytes(), pool.total_bytes()) == before
