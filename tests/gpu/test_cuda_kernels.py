"""CUDA kernels, emulated with their launch parameters, against NumPy; products by a library that checks arguments."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu.cuda_cases import FLAT_CASES, FLAT_SIZES, MATRIX_CASES, SHAPES, UPDATES, compare
from hybridnn.gpu.cublas import CublasProducts
from hybridnn.gpu.cupy_kernels import CupyKernels
from hybridnn.gpu.cupy_launch import (
    MOST_PARTS,
    THREADS,
    KernelLauncher,
    blocks_of_rows,
    column_block,
    flat_grid,
    row_block,
    source,
    tiled_rows,
)
from hybridnn.nn.kernels import Kernels
from hybridnn.nn.optimizers import Optimizer, new_state
from reference.emulated_device import DeviceArray, EmulatedCupy
from reference.emulated_kernels import kernel_library, kernels_in

DTYPES = ("float32", "float64")
GUARD = 64
"""Bytes around an array that must not be written."""


CUPY = EmulatedCupy()
device_array, numbers = CUPY.asarray, CUPY.numbers


@pytest.fixture
def kernels() -> CupyKernels:
    return CUPY.kernels()


def test_a_gpu_overrides_every_function() -> None:
    assert {name for name in vars(Kernels) if name[0] != "_"} <= vars(CupyKernels).keys()


class Uploads:
    """Copies of arrays, `offset` elements after a 16-byte boundary, between guard bytes."""

    def __init__(self, offset: int) -> None:
        self.offset, self._buffers = offset, list[tuple[Any, slice]]()

    def __call__(self, array: Any) -> Any:
        buffer = np.full(array.nbytes + 2 * GUARD + 32, 0x5A, np.uint8)
        start = -buffer.ctypes.data % 16 + GUARD + self.offset * array.itemsize
        used = slice(start, start + array.nbytes)
        copy = buffer[used].view(array.dtype).reshape(array.shape)
        copy[...] = array
        self._buffers.append((buffer, used))
        return DeviceArray(copy, CUPY)

    def check_guards(self) -> None:
        for buffer, used in self._buffers:
            assert (buffer[: used.start] == 0x5A).all(), "written in front of an array"
            assert (buffer[used.stop :] == 0x5A).all(), "written behind an array"


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FLAT_CASES)
def test_flat_arrays(kernels: CupyKernels, name: str, dtype: str, offset: int) -> None:
    for size in FLAT_SIZES:
        uploads = Uploads(offset)
        compare(FLAT_CASES[name], kernels, uploads, dtype, size)
        uploads.check_guards()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRIX_CASES)
def test_matrices(kernels: CupyKernels, name: str, dtype: str, offset: int) -> None:
    for shape in SHAPES:
        uploads = Uploads(offset)
        compare(MATRIX_CASES[name], kernels, uploads, dtype, shape)
        uploads.check_guards()


@pytest.mark.parametrize(
    "name", ["cross-entropy", "count correct", "mean squared error", "row sums", "gradient and sums selu"]
)
def test_the_order_of_blocks_and_threads_does_not_matter(
    kernels: CupyKernels, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("hybridnn.gpu.cupy_launch.MOST_BLOCKS", 2)  # blocks that iterate several times
    outcomes = []
    for reverse in (False, True):
        call, arrays = MATRIX_CASES[name](np.random.default_rng(0), np.dtype(np.float32), (9, 3001))
        found = {key: device_array(array) for key, array in arrays.items()}
        kernels.compile(np.float32)
        library = kernel_library(source(), "float")
        library.set_reversed(reverse)
        call(kernels, **found)
        outcomes.append({key: numbers(array).tobytes() for key, array in found.items()})
    library.set_reversed(False)
    assert outcomes[0] == outcomes[1]


def test_all_kernels_are_loaded_before_the_first_step() -> None:
    """CUDA may wait for the device when it loads one later, while NCCL waits for another rank."""
    loaded: list[str] = []
    module = SimpleNamespace(get_function=loaded.append)
    KernelLauncher(SimpleNamespace(RawModule=lambda **_: module)).compile(np.float32)
    compiled = kernels_in(source(), "float")
    assert sorted(loaded) == sorted(compiled)
    assert len(compiled) > 20


def test_more_rows_and_elements_than_threads_of_a_grid(kernels: CupyKernels, monkeypatch: Any) -> None:
    for limit in ("MOST_BLOCKS", "MOST_BLOCKS_ALONG_Y"):
        monkeypatch.setattr(f"hybridnn.gpu.cupy_launch.{limit}", 2)
    for name in ("adam adamw", "norm and clip"):
        compare(FLAT_CASES[name], kernels, device_array, "float64", 5003)
    for name in ("bias tanh", "gradient and sums tanh", "gather", "row sums"):
        compare(MATRIX_CASES[name], kernels, device_array, "float64", (40, 2050))


def test_reductions_with_few_blocks(kernels: CupyKernels, monkeypatch: Any) -> None:
    monkeypatch.setattr("hybridnn.gpu.cupy_kernels.MOST_PARTS", 3)
    compare(FLAT_CASES["norm and clip"], kernels, device_array, "float64", 5003)
    compare(FLAT_CASES["squared norms"], kernels, device_array, "float64", 5003)
    compare(MATRIX_CASES["count correct"], kernels, device_array, "float64", (3, 1500))
    compare(MATRIX_CASES["cross-entropy"], kernels, device_array, "float64", (7, 500))
    compare(MATRIX_CASES["mean squared error"], kernels, device_array, "float64", (3, 1500))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", UPDATES.values(), ids=repr)
def test_a_replayed_update_reads_the_scalars_of_its_step(
    kernels: CupyKernels, optimizer: Optimizer, dtype: str
) -> None:
    """A step has more samples than threads of a block, and the last one fewer."""
    step, scalars, room = kernels.zeros((1,), np.int64), kernels.empty((4,), dtype), kernels.zeros((300,), np.int64)
    order, table = device_array(np.arange(1000)[::-1]), kernels.zeros((4, 4), dtype)
    losses = kernels.zeros((4,), np.float64)
    weights = [device_array(np.ones(50, dtype)) for _ in range(2)]
    direct, replayed = (new_state(optimizer, array, kernels) for array in weights)
    replayed.device_scalars = scalars
    for number, gradient in enumerate(np.random.default_rng(1).standard_normal((4, 50)).astype(dtype)):
        lr = 0.1 / (number + 1)
        values = optimizer.step_scalars(replayed, lr)
        table[number, : len(values)] = device_array(np.array(values, dtype))
        optimizer.update(weights[0], device_array(gradient), direct, lr)
        indices = room[: min(300, 1000 - 300 * number)]
        kernels.begin_step(step, order, 300, indices, table, scalars)
        assert numbers(indices).tolist() == list(range(1000))[::-1][300 * number :][:300]
        optimizer.update(weights[1], device_array(gradient), replayed, 9.0)  # the rate of a replay is not read
        kernels.end_step(step, device_array(np.array([number + 0.5], dtype)), losses)
    assert np.array_equal(*map(numbers, weights))
    assert numbers(losses).tolist() == [0.5, 1.5, 2.5, 3.5]
    assert numbers(step).tolist() == [4]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["identity", "relu", "tanh", "sigmoid", "selu"])
def test_extreme_arguments_and_nan(kernels: CupyKernels, name: str, dtype: str) -> None:
    z = device_array(np.array([-1e4, 1e4, np.nan], dtype))
    kernels.activate(name, z)
    limits = {
        "identity": (-1e4, 1e4),
        "relu": (0, 1e4),
        "tanh": (-1, 1),
        "sigmoid": (0, 1),
        "selu": (-1.7580993, 10507.01),
    }
    np.testing.assert_allclose(numbers(z)[:2], limits[name], rtol=1e-6)
    assert np.isnan(numbers(z)[2])
    if name in ("tanh", "selu"):  # exp(z) - 1 would lose all digits
        small = device_array(np.array([-1e-9], dtype))
        kernels.activate(name, small)
        assert float(numbers(small)[0]) == pytest.approx({"tanh": -1e-9, "selu": -1.7580993e-9}[name], rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_of_large_logits(kernels: CupyKernels, dtype: str) -> None:
    logits = device_array(np.array([[1000, -1000, -1000], [-1000, 1000, -1000], [0, 1000, -1000]], dtype))
    gradient, loss = kernels.empty((3, 3), dtype), kernels.empty((1,), dtype)
    kernels.cross_entropy(logits, device_array(np.array([0, 0, 2])), None, 1.0, gradient, loss)
    # Losses by hand: 0, 2000 + log 2, log 3.
    assert float(numbers(loss)[0]) == pytest.approx(2000 + np.log(2) + np.log(3), rel=1e-6)
    expected = np.array([[0, 0, 0], [-1, 0.5, 0.5], [1 / 3, 1 / 3, -2 / 3]]).T
    np.testing.assert_allclose(numbers(gradient), expected, atol=1e-6)
    in_place = device_array(numbers(logits))
    kernels.cross_entropy(in_place, device_array(np.array([0, 0, 2])), None, 1.0, in_place, loss)
    assert np.array_equal(numbers(in_place), numbers(gradient))


def test_cross_entropy_of_a_million_classes(kernels: CupyKernels) -> None:
    """Almost equal ones, whose sum float32 rounds in one direction for long."""
    logits = np.random.default_rng(0).uniform(-0.31, -0.3, (1_000_003, 2)).astype(np.float32)
    logits[0] = 0
    gradient, loss = kernels.empty(logits.shape, np.float32), kernels.empty((1,), np.float32)
    kernels.cross_entropy(device_array(logits), device_array(np.array([5, 7])), None, 1.0, gradient, loss)
    exponentials = np.exp(logits.astype(np.float64))
    expected = exponentials / exponentials.sum(axis=0)
    assert numbers(loss)[0] == pytest.approx(-np.log(expected[[5, 7], [0, 1]]).sum(), rel=1e-6)
    expected[[5, 7], [0, 1]] -= 1
    np.testing.assert_allclose(numbers(gradient), expected, rtol=1e-5)


def test_indices_out_of_range_make_the_loss_nan(kernels: CupyKernels) -> None:
    source, labels = device_array(np.ones((3, 5), np.float32)), device_array(np.arange(3))
    index = device_array(np.array([1, 3, -1]))
    rows, wanted = kernels.zeros((3, 5), np.float32), kernels.zeros((3,), np.int64)
    kernels.gather_rows(source, index, rows)
    kernels.gather_rows(labels, index, wanted)
    assert numbers(rows)[0].tolist() == [1] * 5
    assert np.isnan(numbers(rows)[1:]).all()
    assert numbers(wanted).tolist() == [1, -1, -1]
    loss, gradient = kernels.zeros((1,), np.float32), kernels.empty((4, 3), np.float32)
    kernels.cross_entropy(kernels.zeros((4, 3), np.float32), wanted, None, 1.0, gradient, loss)
    assert np.isnan(numbers(loss)[0])


def test_nan_is_the_largest_logit_as_in_numpy(kernels: CupyKernels) -> None:
    logits = np.array([[1, np.nan, 2, np.nan], [np.nan, 3, np.inf, np.nan], [9, 9, -np.inf, 0]], np.float32)
    labels = np.array([1, 0, 1, 0])
    assert labels.tolist() == logits.argmax(axis=0).tolist()
    for wrong in range(4):
        correct = kernels.zeros((1,), np.float64)
        found = np.where(np.arange(4) < wrong, 2, labels)
        kernels.count_correct(device_array(logits), device_array(found), correct)
        assert numbers(correct).tolist() == [4 - wrong]


def test_squares_that_overflow_float32(kernels: CupyKernels) -> None:
    assert kernels.squared_norms(device_array(np.full(3, 1e30, np.float32)), (1, 3)) == pytest.approx([1e60, 2e60])


@pytest.mark.parametrize(("squared", "expected"), [(np.nan, 2.0), (np.inf, 0.0), (16.0, 1.0), (4.0, 2.0)])
def test_clipping_by_a_given_norm(kernels: CupyKernels, squared: float, expected: float) -> None:
    flat = device_array(np.full(5, 2.0))
    kernels.clip_to_norm(flat, device_array(np.array([squared])), 2.0)
    assert numbers(flat).tolist() == [expected] * 5


def test_sums_of_arrays_that_are_not_contiguous(kernels: CupyKernels) -> None:
    a, b = device_array(np.arange(6.0).reshape(2, 3)), device_array(np.ones((3, 2)))
    out = kernels.empty((3, 2), np.float64)
    kernels.add(a.T, b, out)
    assert numbers(out).tolist() == [[1, 4], [2, 5], [3, 6]]


def test_unsuitable_arrays_are_refused(kernels: CupyKernels) -> None:
    double, single = kernels.zeros((4, 6), np.float64), kernels.zeros((4, 6), np.float32)
    with pytest.raises(ValueError, match="one size"):
        kernels.add(double, double, double[:2])
    with pytest.raises(ValueError, match="one dtype"):
        kernels.add(double, single, double)
    with pytest.raises(ValueError, match="contiguous"):
        kernels.activate("relu", double[:, :3])
    with pytest.raises(ValueError, match="int64 label"):
        kernels.cross_entropy(single, single[0], None, 1.0, single, single[0, :1])
    with pytest.raises(ValueError, match="float32 and float64"):
        kernels.activate("relu", kernels.zeros((3,), np.float16))


@pytest.mark.parametrize(("enough", "block"), [(1, (256, 1)), (200, (128, 2)), (500, (64, 4)), (1 << 18, (32, 8))])
def test_threads_that_share_the_classes_of_a_sample(
    kernels: CupyKernels, monkeypatch: pytest.MonkeyPatch, enough: int, block: tuple[int, int]
) -> None:
    monkeypatch.setattr("hybridnn.gpu.cupy_launch.ENOUGH_THREADS", enough)
    compare(MATRIX_CASES["cross-entropy"], kernels, device_array, "float64", (11, 150))
    assert ("cross_entropy", block) in {(name, block) for name, _, block in CUPY.launches}
    assert column_block(1, 150) == (256, 1)


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("n", [0, 1, 100, 1024, 4097, 1 << 26])
def test_grid_sizes(n: int, itemsize: int) -> None:
    per_block = THREADS * 16 // itemsize
    assert 1 <= flat_grid(n, itemsize)[0] <= max(1, -(-n // per_block))
    assert flat_grid(n, itemsize, MOST_PARTS)[0] <= MOST_PARTS
    block = row_block(n, itemsize)
    assert block[0] * block[1] == THREADS
    assert block[0] & (block[0] - 1) == 0
    assert 1 <= blocks_of_rows(n, block)[0] <= 1 << 16
    across, down = tiled_rows(n, n, itemsize, block)
    assert across >= 1
    assert 1 <= down < 1 << 16


# -- products ----------------------------------------------------------------------------------------------------------


PRODUCT_DTYPES = ("float32", "float64")
PRODUCT_SHAPES = ((1, 1, 1), (2, 3, 4), (7, 1, 5), (1, 6, 3), (4, 5, 1), (1, 1, 9), (33, 17, 12))


@pytest.fixture
def products() -> CublasProducts:
    return CublasProducts(CUPY, CUPY.blas, tf32=False)


def counter(name: str) -> Any:
    return ctypes.c_int.in_dll(CUPY.blas.library, name)


def matrices(random: np.random.Generator, rows: int, columns: int, dtype: str) -> list[Any]:
    return matrices_of(random.standard_normal((rows, columns)).astype(dtype))


def matrices_of(values: Any) -> list[Any]:
    """Equal matrices of all layouts: row-major, column-major, and blocks of larger ones of either kind."""
    (rows, columns), dtype = values.shape, values.dtype
    plain, turned = device_array(values), device_array(values.T).T
    wide = device_array(np.full((rows + 2, columns + 3), np.nan, dtype))[1:-1, 2:-1]
    tall = device_array(np.full((columns + 2, rows + 3), np.nan, dtype))[1:-1, 2:-1].T
    wide[...] = tall[...] = plain
    return [plain, turned, wide, tall]


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("m", "k", "n"), PRODUCT_SHAPES)
def test_products_of_matrices_of_all_layouts(products: CublasProducts, m: int, k: int, n: int, dtype: str) -> None:
    random = np.random.default_rng(m + k + n)
    factors = matrices(random, m, k, dtype), matrices(random, k, n, dtype)
    expected = np.einsum("ik,kj->ij", *(numbers(matrix[0]).astype("d") for matrix in factors))
    for a in factors[0]:
        for b in factors[1]:
            for out in matrices(random, m, n, dtype):
                around = out._owner.bytes.view(dtype)
                out[...] = 9
                numbers(out)
                kept = np.isnan(around).sum()
                products.multiply(a, b, out)
                scale = np.abs(expected).max() + 1
                error = {"rtol": 0, "atol": scale * (1e-5 if dtype == "float32" else 1e-13)}
                np.testing.assert_allclose(numbers(out), expected, **error)
                assert np.isnan(around).sum() == kept, "written outside the result"


def test_empty_products_and_sums_of_nothing(products: CublasProducts) -> None:
    before = counter("products").value
    for m, k, n in ((0, 3, 4), (3, 4, 0), (2, 0, 3)):
        out = device_array(np.full((m, n), np.nan))
        products.multiply(device_array(np.ones((m, k))), device_array(np.ones((k, n))), out)
        assert not numbers(out).any()
    assert counter("products").value == before


@pytest.mark.parametrize(
    ("dtype", "tf32", "compute"),
    [("float32", False, 68), ("float32", True, 77), ("float64", False, 70), ("float64", True, 70)],
)
def test_tf32_is_a_setting(dtype: str, tf32: bool, compute: int) -> None:
    # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_COMPUTE_64F of cublas_api.h.
    square, out = device_array(np.ones((2, 2), dtype)), device_array(np.ones((2, 2), dtype))
    CublasProducts(CUPY, CUPY.blas, tf32).multiply(square, square, out)
    assert counter("last_compute_type").value == compute


def test_stream_and_workspace_are_set_for_another_stream_and_every_recording(kernels: CupyKernels) -> None:
    """A stream of a recording ends with it, and the next one may have its address."""
    square, out = device_array(np.ones((2, 2))), device_array(np.ones((2, 2)))
    before = counter("workspaces_set").value

    def multiply() -> None:
        kernels.matmul(square, square, out)

    for times in (1, 1, 2, 3, 3):
        if times == 2:
            with CUPY.cuda.Stream():
                multiply()
        else:
            multiply()
        assert counter("workspaces_set").value == before + times
    for times in (4, 5):
        kernels.record(multiply)
        assert counter("workspaces_set").value == before + times
    multiply()
    assert counter("workspaces_set").value == before + 6


def test_shapes_that_do_not_match_are_refused(products: CublasProducts) -> None:
    square, single = device_array(np.ones((4, 4))), device_array(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="is not"):
        products.multiply(square, square[:3], square)
    with pytest.raises(ValueError, match="is not"):
        products.multiply(square, single, square)
    with pytest.raises(ValueError, match="neither axis"):
        products.multiply(square[::2, ::2], square[:2], square[:2])


def test_the_handle_ends_with_the_object() -> None:
    before, products = counter("destroyed").value, CublasProducts(CUPY, CUPY.blas, tf32=False)
    assert counter("destroyed").value == before
    del products
    assert counter("destroyed").value == before + 1


def test_a_graph_that_uses_memory_after_it_was_freed_computes_nan(kernels: CupyKernels) -> None:
    """Of the emulated device: the pool gives it to another array."""
    total, addends = kernels.zeros((9,), np.float32), [kernels.zeros((9,), np.float32)]
    replay = kernels.record(lambda: kernels.add(total, addends[0], total))
    replay()
    assert not numbers(total).any()
    addends.clear()
    replay()
    assert np.isnan(numbers(total)).all()
