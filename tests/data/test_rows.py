"""Rows of arrays and generated ones, their split and standardization."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import kstest

from hybridnn.data import (
    ArrayRows,
    StandardizedRows,
    Standardizer,
    SyntheticRows,
    SyntheticSpec,
    as_rows,
    load_dataset,
    split,
)
from hybridnn.data.dataset import PixelRows
from hybridnn.data.preparation import SubsetRows, require_finite_rows
from hybridnn.data.rows import require_finite
from hybridnn.data.synthetic import HIDDEN, NOISE, SEPARATION
from hybridnn.errors import DataError, SettingError

AllOf = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
X = np.arange(12.0).reshape(4, 3)
LABELS = np.array([2, 0, 1, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_take_fills_the_callers_arrays(dtype: type, all_of: AllOf) -> None:
    for source in (np.float32, np.float64, np.uint8):
        x, y = all_of(ArrayRows(X.astype(source), LABELS.astype(np.uint8)), dtype, [3, 1, 1])
        assert x.dtype == dtype
        np.testing.assert_array_equal(x, X[[3, 1, 1]])
        np.testing.assert_array_equal(y, [2, 0, 0])
    x, y = all_of(as_rows(X, LABELS), dtype, [])
    assert (x.shape, y.shape) == ((0, 3), (0,))
    pixels = PixelRows(np.arange(256, dtype=np.uint8).reshape(1, 256), np.array([1]), 255)
    np.testing.assert_array_equal(all_of(pixels, dtype)[0][0], np.arange(256, dtype=dtype) / dtype(255))


@pytest.mark.parametrize(
    "rows",
    [
        ArrayRows(X, LABELS),
        PixelRows(X.astype(np.uint8), LABELS, 255),
        SubsetRows(ArrayRows(np.tile(X, (2, 1)), np.tile(LABELS, 2)), np.arange(4)),
    ],
    ids=["array", "pixels", "subset"],
)
def test_index_out_of_range(rows: Any, all_of: AllOf) -> None:
    for bad in ([-1], [4], [0, 4, 1]):
        with pytest.raises(IndexError, match="0 to 3"):
            all_of(rows, np.float64, bad)


def test_arrays_of_any_layout_are_held_contiguous_and_copied_only_if_needed(all_of: AllOf) -> None:
    rows = as_rows(np.asfortranarray(X), X[::-1, 1:])
    assert rows.x.flags.c_contiguous
    assert rows.y.flags.c_contiguous
    np.testing.assert_array_equal(all_of(rows)[1], X[::-1, 1:])
    rows = as_rows(X, X)
    assert rows.x is X
    assert rows.y is X


@given(
    x=hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.floats(-1e9, 1e9)),
    seed=st.integers(0, 99),
)
def test_subset_of_a_subset(x: NDArray[np.float64], seed: int, all_of: AllOf) -> None:
    random = np.random.default_rng(seed)
    first = random.integers(0, len(x), 6)
    second = random.integers(0, 6, 4)
    taken, _ = all_of(SubsetRows(SubsetRows(as_rows(x, x), first), second))
    np.testing.assert_array_equal(taken, x[first][second])


def test_dtype_of_the_targets_decides_the_task() -> None:
    assert as_rows(X, [0, 1, 2, 0]).targets_shape == ()
    assert as_rows(X, [0.0, 1.0, 2.0, 0.0]).targets_shape == (1,)
    assert as_rows(X, X[:, :2]).targets_shape == (2,)
    assert as_rows(X, [False, True, True, False]).y.tolist() == [0, 1, 1, 0]
    rows = as_rows(X, [-5, 1, 2, 0], "regression")
    assert rows.y.dtype == np.float64
    assert rows.y.tolist() == [[-5], [1], [2], [0]]


def with_value(value: float, row: int, column: int) -> NDArray[np.float64]:
    x = X.copy()
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, LABELS[:3], "x has 4 samples and y has 3: they must be as many"),
        (X, 3, "x has 4 samples and y has no"),
        (X[0], LABELS[:3], r"x has shape \(3,\): it must be \(samples, features\)"),
        (X[:0], LABELS[:0], r"x has shape \(0, 3\): at least one sample"),
        (X[:, :0], LABELS, r"x has shape \(4, 0\): at least one sample and one feature"),
        (X, X[:, :0], r"y has shape \(4, 0\): it must be"),
        (X, X[:, :, None], r"y has shape \(4, 3, 1\): it must be"),
        (with_value(np.nan, 2, 1), LABELS, "x is nan in row 2, column 1"),
        (with_value(-np.inf, 0, 2), LABELS, "x is -inf in row 0, column 2"),
        (X, with_value(np.inf, 3, 0), "y is inf in row 3, column 0"),
        (X, [1.0, np.nan, 0.0, 0.0], "y is nan in row 1: "),
        (X, [0, 1, -2, -3], "y: label -2 in row 2: labels must be >= 0"),
        (X, LABELS[:, None], r"y has shape \(4, 1\): integer labels must be \(samples,\)"),
        (X.astype(str), LABELS, "x has dtype <U32: it must hold real numbers"),
        (X, X.astype(complex), "y has dtype complex128: it must hold real numbers"),
        (np.ma.masked_greater(X, 9), LABELS, r"x has 2 masked values: leave out their rows, or .* x\.filled\(0\)"),
        (X, np.ma.masked_equal(LABELS, 2), "y has 2 masked values"),
        (sparse.csr_array(with_value(np.nan, 2, 1)), LABELS, "x is nan in row 2, column 1"),
        (sparse.coo_matrix(X.astype(complex)), LABELS, "x has dtype complex128"),
        (sparse.csc_array(X), LABELS[:3], "x has 4 samples and y has 3"),
        (X, sparse.csr_array(X), r"y is sparse: y\.toarray\(\) makes it dense"),
    ],
)
def test_bad_arrays(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_rows(x, y)


@pytest.mark.parametrize("value", [1e39, -1e39])
def test_values_that_the_dtype_of_the_training_cannot_hold(value: float) -> None:
    large = with_value(value, 2, 1)
    for x, y, name in ((large, LABELS, "x"), (X, large, "y"), (sparse.csr_array(large), LABELS, "x")):
        where = f"{name} is {value:g} in row 2, column 1: too large for float32: training.dtype = 'float64', or scale"
        with pytest.raises(DataError, match=re.escape(where)):
            as_rows(x, y, dtype="float32")
        assert as_rows(x, y, dtype="float64").samples == 4
    many = np.zeros((40_000, 3))
    many[39_999, 2] = np.inf
    with pytest.raises(DataError, match="x is inf in row 39999, column 2: all values must be finite"):
        require_finite(many, "x", np.float32)


def test_rows_of_files_are_checked_for_the_dtype_of_the_training() -> None:
    rows = SubsetRows(as_rows(with_value(1e39, 2, 1), LABELS), np.array([3, 2]))
    require_finite_rows(rows, "float64", "mine.npz")
    with pytest.raises(DataError, match=r"^mine\.npz: x is 1e\+39 in row 2, column 1: too large for float32"):
        require_finite_rows(rows, "float32", "mine.npz")
    scaled = StandardizedRows(rows, Standardizer(np.zeros(3), np.full(3, 1e10)))
    require_finite_rows(scaled, "float32", "mine.npz")


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_sparse_inputs_are_made_dense_when_they_are_taken(kind: Any, all_of: AllOf) -> None:
    rows = as_rows(kind(X), LABELS, dtype="float32")
    assert (rows.samples, rows.features, rows.targets_shape) == (4, 3, ())
    x, y = all_of(rows, np.float32, [3, 1, 1])
    np.testing.assert_array_equal(x, X[[3, 1, 1]])
    np.testing.assert_array_equal(y, LABELS[[3, 1, 1]])
    assert sum(array.nbytes for array in rows.arrays) > 0
    with pytest.raises(IndexError, match="0 to 3"):
        all_of(rows, np.float32, [4])


def test_masked_arrays_without_masked_elements_are_arrays() -> None:
    np.testing.assert_array_equal(as_rows(np.ma.masked_greater(X, 99), LABELS).x, X)


def test_labels_and_classes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"y_test: label 2 in row 0: with 2 classes labels are 0 to 1"):
        as_rows(X, LABELS, classes=2, part="_test")
    with pytest.raises(DataError, match="y is float64: classification needs integer labels"):
        as_rows(X, X[:, 0], "classification")


REGRESSION = SyntheticSpec(test_samples=40, inputs=5, outputs=3)
CLASSES = SyntheticSpec("classification", test_samples=40, inputs=5, outputs=4)
both_tasks = pytest.mark.parametrize("spec", [REGRESSION, CLASSES], ids=["regression", "classification"])


def test_default_size() -> None:
    dataset = load_dataset("synthetic")
    assert (dataset.task, dataset.train.samples, dataset.test.samples) == ("regression", 10_000, 2_000)
    assert (dataset.features, dataset.outputs, dataset.train.targets_shape) == (16, 2, (2,))
    assert load_dataset("synthetic", synthetic=SyntheticSpec(test_samples=0)).test is None


@both_tasks
@given(indices=st.lists(st.integers(0, 299), max_size=20))
def test_a_sample_does_not_depend_on_its_neighbours(spec: SyntheticSpec, indices: list[int], all_of: AllOf) -> None:
    x, y = all_of(SyntheticRows(spec, 0, 300))
    some_x, some_y = all_of(SyntheticRows(spec, 0, 300), np.float64, indices)
    np.testing.assert_array_equal(some_x, x[indices])
    np.testing.assert_array_equal(some_y, y[indices])


@both_tasks
def test_parts_of_the_whole(spec: SyntheticSpec, all_of: AllOf) -> None:
    whole = all_of(SyntheticRows(spec, 0, 340))
    dataset = load_dataset("synthetic", rows=300, synthetic=spec)
    for part, where in ((dataset.train, slice(300)), (dataset.test, slice(300, 340))):
        for got, expected in zip(all_of(part), whole, strict=True):
            np.testing.assert_array_equal(got, expected[where])


@both_tasks
def test_float32_gives_the_rounded_samples(spec: SyntheticSpec, all_of: AllOf) -> None:
    rows = SyntheticRows(spec, 0, 300)
    wide, narrow = (all_of(rows, dtype) for dtype in (np.float64, np.float32))
    np.testing.assert_array_equal(narrow[0], wide[0].astype(np.float32))
    np.testing.assert_allclose(narrow[1], wide[1], rtol=1e-6, atol=1e-6)
    with pytest.raises(IndexError):
        all_of(rows, np.float64, [300])


def test_samples_far_beyond_any_memory(all_of: AllOf) -> None:
    rows = SyntheticRows(SyntheticSpec(inputs=4), 0, 10**15)
    x, y = all_of(rows, np.float64, [10**15 - 1, 0])
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    assert not np.isin(x[0], x[1]).any()


def test_regression_inputs_are_standard_normal_and_uncorrelated(all_of: AllOf) -> None:
    x, _ = all_of(SyntheticRows(SyntheticSpec(), 0, 20_000))
    assert kstest(x.ravel(), "norm").pvalue > 0.01
    np.testing.assert_allclose(np.cov(x.T), np.eye(16), atol=0.05)
    neighbours = np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]
    assert abs(neighbours) < 0.01


def test_regression_targets_are_the_teachers_plus_noise(all_of: AllOf) -> None:
    x, y = all_of(SyntheticRows(SyntheticSpec(inputs=6, outputs=2), 0, 4000))
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([0, 3])))
    first = generator.standard_normal((6, HIDDEN)) / np.sqrt(6)
    second = generator.standard_normal((HIDDEN, 2)) / np.sqrt(HIDDEN)
    noise = y - np.tanh(x @ first) @ second
    assert kstest((noise / NOISE).ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(noise[:, 0], x[:, 0])[0, 1]) < 0.05


def test_clusters_have_unit_variance_and_equal_shares(all_of: AllOf) -> None:
    spec = SyntheticSpec("classification", outputs=4, inputs=16)
    x, y = all_of(SyntheticRows(spec, 0, 20_000))
    np.testing.assert_allclose(np.bincount(y) / 20_000, 0.25, atol=0.015)
    for label in range(4):
        cluster = x[y == label]
        assert kstest((cluster - cluster.mean(axis=0)).ravel(), "norm").pvalue > 0.01
        assert 0.5 * SEPARATION < np.linalg.norm(cluster.mean(axis=0)) < 1.5 * SEPARATION


def test_clusters_are_learnable_but_not_trivial(all_of: AllOf) -> None:
    dataset = load_dataset("synthetic", synthetic=SyntheticSpec("classification", outputs=10))
    (x, y), (test_x, test_y) = all_of(dataset.train), all_of(dataset.test)
    means = np.array([x[y == label].mean(axis=0) for label in range(10)])
    nearest = np.argmin(((test_x[:, None] - means) ** 2).sum(axis=2), axis=1)
    assert 0.8 < np.mean(nearest == test_y) < 0.995


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "clustering"}, "synthetic.task = 'clustering': must be 'regression' or 'classification'"),
        ({"test_samples": -1}, "synthetic.test_samples = -1: must be a whole number, at least 0"),
        ({"inputs": -3}, "synthetic.inputs = -3"),
        ({"outputs": 0}, "synthetic.outputs = 0: must be a whole number, at least 1"),
        ({"outputs": 1, "task": "classification"}, "synthetic.outputs = 1: must be a whole number, at least 2"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=rf"^data\.{message}"):
        SyntheticSpec(**options)


RANDOM = np.random.default_rng(1)
NUMBERS = RANDOM.normal(5, [1, 10, 100], (1000, 3))
Y = RANDOM.normal(-2, [0.1, 7], (1000, 2))


@given(samples=st.integers(2, 300), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 2**31))
def test_split_gives_every_sample_to_one_part(samples: int, fraction: float, seed: int) -> None:
    train, test = split(as_rows(np.ones((samples, 1)), np.zeros(samples)), fraction, seed)
    assert sorted([*train.chosen, *test.chosen]) == list(range(samples))
    assert train.samples > 0
    assert test.samples > 0
    assert abs(test.samples - samples * fraction) <= 1


def test_split_depends_on_the_seed_alone() -> None:
    rows = as_rows(NUMBERS, Y)
    first, again, other = (split(rows, 0.2, seed)[1].chosen for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    # A seed selects the same samples in every version, so that published results can be repeated.
    assert split(as_rows(NUMBERS[:12], Y[:12]), 0.25, 0)[1].chosen.tolist() == [0, 5, 7]


def test_split_keeps_inputs_and_targets_together(all_of: AllOf) -> None:
    train, test = split(load_dataset("digits").train, 0.2, 0)
    assert (train.samples, test.samples) == (1438, 359)
    x, y = all_of(load_dataset("digits").train)
    for part in (train, test):
        part_x, part_y = all_of(part)
        np.testing.assert_array_equal(part_x, x[part.chosen])
        np.testing.assert_array_equal(part_y, y[part.chosen])


def test_split_that_is_not_possible() -> None:
    for fraction in (1.0, -0.2, 20, float("nan")):
        with pytest.raises(SettingError, match=r"data\.test_fraction = "):
            split(as_rows(NUMBERS, Y), fraction, 0)
    with pytest.raises(DataError, match="1 sample cannot be split"):
        split(as_rows(NUMBERS[:1], Y[:1]), 0.5, 0)


@pytest.mark.parametrize("block", [1, 7, 1000, 4096])
def test_statistics_are_those_of_numpy(block: int) -> None:
    standardizer = Standardizer.fit(as_rows(NUMBERS, Y), block)
    for got, expected in (
        (standardizer.x_mean, NUMBERS.mean(axis=0)),
        (standardizer.x_scale, NUMBERS.std(axis=0)),
        (standardizer.y_mean, Y.mean(axis=0)),
        (standardizer.y_scale, Y.std(axis=0)),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_small_variation_about_a_large_mean(all_of: AllOf) -> None:
    x = 1e9 + np.array([[0.0], [1.0], [2.0], [3.0]])
    rows = as_rows(x, [0, 1, 0, 1])
    expected = (np.arange(4) - 1.5) / np.std(np.arange(4))
    narrow, _ = all_of(StandardizedRows(rows, Standardizer.fit(rows)), np.float32)
    np.testing.assert_allclose(narrow[:, 0], expected, rtol=1e-6)


def test_constant_columns_become_zero(all_of: AllOf) -> None:
    x = np.column_stack([np.full(1000, 0.1), NUMBERS[:, 0], np.zeros(1000)])
    rows = as_rows(x, np.full(1000, 0.3))
    standardizer = Standardizer.fit(rows, 64)
    assert standardizer.x_scale[[0, 2]].tolist() == [1, 1]
    got_x, got_y = all_of(StandardizedRows(rows, standardizer))
    assert not got_x[:, [0, 2]].any()
    assert not got_y.any()


def test_classification_leaves_labels_alone(all_of: AllOf) -> None:
    rows = load_dataset("digits").train
    standardizer = Standardizer.fit(rows)
    assert standardizer.y_mean is None
    assert standardizer.y_scale is None
    x, y = all_of(StandardizedRows(rows, standardizer))
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_array_equal(y, all_of(rows)[1])
    np.testing.assert_array_equal(standardizer.restore_y(y), y)
    np.testing.assert_array_equal(standardizer.apply_y(y), y)


def test_test_part_gets_the_training_parts_statistics(all_of: AllOf) -> None:
    train, test = as_rows(NUMBERS[:800], Y[:800]), as_rows(NUMBERS[800:] + 50, Y[800:])
    got, _ = all_of(StandardizedRows(test, Standardizer.fit(train)))
    np.testing.assert_allclose(
        got, (NUMBERS[800:] + 50 - NUMBERS[:800].mean(axis=0)) / NUMBERS[:800].std(axis=0), rtol=1e-10
    )


def test_generated_rows_are_standardized_lazily(all_of: AllOf) -> None:
    rows = SyntheticRows(SyntheticSpec(), 0, 500)
    x, y = all_of(StandardizedRows(rows, Standardizer.fit(rows, 100)))
    np.testing.assert_allclose([x.std(axis=0).min(), x.std(axis=0).max(), *y.std(axis=0)], 1, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_apply_and_restore(dtype: type) -> None:
    standardizer = Standardizer.fit(as_rows(NUMBERS, Y))
    x: NDArray[Any] = NUMBERS.astype(dtype)
    y: NDArray[Any] = Y.astype(dtype)
    before = x.copy()
    assert standardizer.apply_x(x).dtype == dtype
    np.testing.assert_array_equal(x, before)
    restored = standardizer.restore_y(standardizer.apply_y(y))
    assert restored.dtype == dtype
    np.testing.assert_allclose(restored, y, rtol=1e-4 if dtype is np.float32 else 1e-11)


@pytest.mark.parametrize("targets", [Y, np.zeros(1000, int)], ids=["regression", "classification"])
def test_to_arrays_and_back(targets: NDArray[Any]) -> None:
    standardizer = Standardizer.fit(as_rows(NUMBERS, targets))
    arrays = standardizer.to_arrays()
    assert set(arrays) == {"x_mean", "x_scale"} | ({"y_mean", "y_scale"} if targets is Y else set())
    again = Standardizer.from_arrays({**arrays, "layers.0.bias": np.zeros(3)}).to_arrays()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_what_cannot_be_standardized() -> None:
    with pytest.raises(DataError, match=r"lacks x_scale, y_scale; found x_mean, y_mean"):
        Standardizer.from_arrays({"x_mean": np.zeros(1), "y_mean": np.zeros(1)})
    with pytest.raises(DataError, match=r"2 features .* is for 3 and \(2,\)"):
        StandardizedRows(as_rows(NUMBERS[:, :2], Y), Standardizer.fit(as_rows(NUMBERS, Y)))
    with pytest.raises(DataError, match="target column 1 cannot be standardized"):  # the squares overflow
        Standardizer.fit(as_rows(NUMBERS[:2], np.array([[0.0, 1e200], [1.0, -1e200]])))
