"""Matrix products: calls of cuBLAS, checked with a library that interprets the arguments as documented."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from gpu.cuda_emulator import HERE, Emulator, compile_cpp, device_array
from hybridnn.gpu.cublas import CublasProducts
from hybridnn.gpu.cupy_kernels import CupyKernels

DTYPES = ("float32", "float64")
SHAPES = ((1, 1, 1), (2, 3, 4), (7, 1, 5), (1, 6, 3), (4, 5, 1), (1, 1, 9), (33, 17, 12))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("blas") / "libblas.so"
    compile_cpp(HERE / "cuda_blas_emulation.cpp", "-O1", "-fPIC", "-shared", "-o", str(target))
    return ctypes.CDLL(str(target))


@pytest.fixture
def products(library: ctypes.CDLL, emulator: Emulator) -> CublasProducts:
    return CublasProducts(emulator, library, tf32=False)


def matrices(random: np.random.Generator, rows: int, columns: int, dtype: str) -> list[Any]:
    return matrices_of(random.standard_normal((rows, columns)).astype(dtype))


def matrices_of(values: Any) -> list[Any]:
    """Equal matrices of all layouts: row-major, column-major, and blocks of larger ones of either kind."""
    (rows, columns), dtype = values.shape, values.dtype
    plain, turned = device_array(values), device_array(values.T).T
    wide = device_array(np.full((rows + 2, columns + 3), np.nan, dtype))[1:-1, 2:-1]
    tall = device_array(np.full((columns + 2, rows + 3), np.nan, dtype))[1:-1, 2:-1].T
    wide[...] = tall[...] = values
    return [plain, turned, wide, tall]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_products_of_matrices_of_all_layouts(products: CublasProducts, m: int, k: int, n: int, dtype: str) -> None:
    random = np.random.default_rng(m + k + n)
    factors = matrices(random, m, k, dtype), matrices(random, k, n, dtype)
    expected = np.einsum("ik,kj->ij", *(np.asarray(matrix[0], "d") for matrix in factors))
    for a in factors[0]:
        for b in factors[1]:
            for out in matrices(random, m, n, dtype):
                around = out.base
                kept = np.isnan(around).sum()
                out[...] = 9
                products.multiply(a, b, out)
                scale = np.abs(expected).max() + 1
                error = {"rtol": 0, "atol": scale * (1e-5 if dtype == "float32" else 1e-13)}
                np.testing.assert_allclose(out, expected, **error)
                assert np.isnan(around).sum() == kept, "written outside the result"


def test_the_products_of_a_layer(products: CublasProducts, emulator: Emulator) -> None:
    kernels, random = CupyKernels(emulator, products), np.random.default_rng(0)
    samples = device_array(random.standard_normal((6, 5)))
    weight, dz = device_array(random.standard_normal((4, 5))), device_array(random.standard_normal((4, 6)))
    y, dw, dx = kernels.empty((4, 6), "d"), kernels.empty((4, 5), "d"), kernels.empty((5, 6), "d")
    kernels.matmul(weight, samples.T, y)
    kernels.matmul(dz, samples, dw)
    kernels.matmul_transposed(weight, dz, dx, None)
    for found, expected in ((y, "oi,ni->on"), (dw, "on,ni->oi"), (dx, "oi,on->in")):
        operands = {"oi,ni->on": (weight, samples), "on,ni->oi": (dz, samples), "oi,on->in": (weight, dz)}[expected]
        np.testing.assert_allclose(found, np.einsum(expected, *operands), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 4, 0)])
def test_empty_products(products: CublasProducts, library: ctypes.CDLL, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    counter = ctypes.c_int.in_dll(library, "products")
    before = counter.value
    products.multiply(device_array(np.ones((m, k))), device_array(np.ones((k, n))), device_array(np.ones((m, n))))
    assert counter.value == before


def test_a_sum_of_nothing_is_zero(products: CublasProducts) -> None:
    out = device_array(np.ones((2, 3)))
    nothing = device_array(np.ones((2, 0))), device_array(np.ones((0, 3)))
    out[0] = np.nan
    products.multiply(*nothing, out)
    assert not out.any()


@pytest.mark.parametrize(
    ("dtype", "tf32", "compute"),
    [("float32", False, 68), ("float32", True, 77), ("float64", False, 70), ("float64", True, 70)],
)
def test_tf32_is_a_setting(library: ctypes.CDLL, emulator: Emulator, dtype: str, tf32: bool, compute: int) -> None:
    # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_COMPUTE_64F of cublas_api.h.
    square = device_array(np.ones((2, 2), dtype))
    CublasProducts(emulator, library, tf32).multiply(square, square, square.copy())
    assert ctypes.c_int.in_dll(library, "last_compute_type").value == compute


def test_the_workspace_is_set_again_for_another_stream(
    products: CublasProducts, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    square, counter = device_array(np.ones((2, 2))), ctypes.c_int.in_dll(library, "workspaces_set")
    before = counter.value
    for stream, times in ((7, 1), (7, 1), (8, 2)):
        monkeypatch.setattr(Emulator.cuda, "get_current_stream", lambda pointer=stream: _Stream(pointer))
        products.multiply(square, square, square.copy())
        assert counter.value == before + times


def test_every_recording_sets_its_stream_and_workspace(
    products: CublasProducts, library: ctypes.CDLL, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a recording ends with it, and the next one may have its address."""

    class Recorded(_Stream):
        def __init__(self, non_blocking: bool) -> None:
            super().__init__(9)

        def __enter__(self) -> None:
            monkeypatch.setattr(Emulator.cuda, "get_current_stream", lambda: self)

        def __exit__(self, *_: object) -> None:
            monkeypatch.setattr(Emulator.cuda, "get_current_stream", lambda: _Stream(7))

        def begin_capture(self) -> None: ...

        def end_capture(self) -> Any: ...

    monkeypatch.setattr(Emulator.cuda, "Stream", Recorded, raising=False)
    kernels, square = CupyKernels(emulator, products), device_array(np.ones((2, 2)))
    counter = ctypes.c_int.in_dll(library, "workspaces_set")
    for _ in range(2):
        before = counter.value
        kernels.record(lambda: kernels.matmul(square, square, square.copy()))
        assert counter.value == before + 1


class _Stream:
    def __init__(self, pointer: int) -> None:
        self.ptr = pointer


def test_shapes_that_do_not_match_are_refused(products: CublasProducts) -> None:
    square, single = device_array(np.ones((4, 4))), device_array(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="is not"):
        products.multiply(square, square[:3], square)
    with pytest.raises(ValueError, match="is not"):
        products.multiply(square, single, square)
    with pytest.raises(ValueError, match="neither axis"):
        products.multiply(square[::2, ::2], square[:2], square[:2].copy())


def test_the_handle_ends_with_the_object(library: ctypes.CDLL, emulator: Emulator) -> None:
    destroyed = ctypes.c_int.in_dll(library, "destroyed")
    before, products = destroyed.value, CublasProducts(emulator, library, tf32=False)
    assert destroyed.value == before
    del products
    assert destroyed.value == before + 1


def test_the_stream_is_set_again_after_a_recorded_one_has_ended(products: CublasProducts, library: ctypes.CDLL) -> None:
    """A new stream may have its address."""
    square, counter = device_array(np.ones((2, 2))), ctypes.c_int.in_dll(library, "workspaces_set")
    products.multiply(square, square, square.copy())
    before = counter.value
    products.forget_stream()
    products.multiply(square, square, square.copy())
    assert counter.value == before + 1
