"""Splitting and standardization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.data import StandardizedRows, Standardizer, SyntheticRows, SyntheticSpec, as_rows, load_dataset, split
from hybridnn.errors import DataError, SettingError

AllOf = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(5, [1, 10, 100], (1000, 3))
Y = RANDOM.normal(-2, [0.1, 7], (1000, 2))


@given(samples=st.integers(2, 300), fraction=st.floats(0.001, 0.999), seed=st.integers(0, 2**31))
def test_split_gives_every_sample_to_one_part(samples: int, fraction: float, seed: int) -> None:
    train, test = split(as_rows(np.ones((samples, 1)), np.zeros(samples)), fraction, seed)
    assert sorted([*train.chosen, *test.chosen]) == list(range(samples))
    assert train.samples > 0
    assert test.samples > 0
    assert abs(test.samples - samples * fraction) <= 1


def test_split_depends_on_the_seed_alone() -> None:
    rows = as_rows(X, Y)
    first, again, other = (split(rows, 0.2, seed)[1].chosen for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    # A seed selects the same samples in every version, so that published results can be repeated.
    assert split(as_rows(X[:12], Y[:12]), 0.25, 0)[1].chosen.tolist() == [0, 5, 7]


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
            split(as_rows(X, Y), fraction, 0)
    with pytest.raises(DataError, match="1 sample cannot be split"):
        split(as_rows(X[:1], Y[:1]), 0.5, 0)


@pytest.mark.parametrize("block", [1, 7, 1000, 4096])
def test_statistics_are_those_of_numpy(block: int) -> None:
    standardizer = Standardizer.fit(as_rows(X, Y), block)
    for got, expected in (
        (standardizer.x_mean, X.mean(axis=0)),
        (standardizer.x_scale, X.std(axis=0)),
        (standardizer.y_mean, Y.mean(axis=0)),
        (standardizer.y_scale, Y.std(axis=0)),
    ):
        assert got is not None
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_small_variation_about_a_large_mean(all_of: AllOf) -> None:
    x = 1e9 + np.array([[0.0], [1.0], [2.0], [3.0]])
    rows = as_rows(x, [0, 1, 0, 1])
    expected = (np.arange(4) - 1.5) / np.std(np.arange(4))
    narrow, _ = all_of(StandardizedRows(rows, Standardizer.fit(rows)), np.float32)
    np.testing.assert_allclose(narrow[:, 0], expected, rtol=1e-6)


def test_constant_columns_become_zero(all_of: AllOf) -> None:
    x = np.column_stack([np.full(1000, 0.1), X[:, 0], np.zeros(1000)])
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
    train, test = as_rows(X[:800], Y[:800]), as_rows(X[800:] + 50, Y[800:])
    got, _ = all_of(StandardizedRows(test, Standardizer.fit(train)))
    np.testing.assert_allclose(got, (X[800:] + 50 - X[:800].mean(axis=0)) / X[:800].std(axis=0), rtol=1e-10)


def test_generated_rows_are_standardized_lazily(all_of: AllOf) -> None:
    rows = SyntheticRows(SyntheticSpec(), 0, 500)
    x, y = all_of(StandardizedRows(rows, Standardizer.fit(rows, 100)))
    np.testing.assert_allclose([x.std(axis=0).min(), x.std(axis=0).max(), *y.std(axis=0)], 1, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_apply_and_restore(dtype: type) -> None:
    standardizer = Standardizer.fit(as_rows(X, Y))
    x: NDArray[Any] = X.astype(dtype)
    y: NDArray[Any] = Y.astype(dtype)
    before = x.copy()
    assert standardizer.apply_x(x).dtype == dtype
    np.testing.assert_array_equal(x, before)
    restored = standardizer.restore_y(standardizer.apply_y(y))
    assert restored.dtype == dtype
    np.testing.assert_allclose(restored, y, rtol=1e-4 if dtype is np.float32 else 1e-11)


@pytest.mark.parametrize("targets", [Y, np.zeros(1000, int)], ids=["regression", "classification"])
def test_to_arrays_and_back(targets: NDArray[Any]) -> None:
    standardizer = Standardizer.fit(as_rows(X, targets))
    arrays = standardizer.to_arrays()
    assert set(arrays) == {"x_mean", "x_scale"} | ({"y_mean", "y_scale"} if targets is Y else set())
    again = Standardizer.from_arrays({**arrays, "layers.0.bias": np.zeros(3)}).to_arrays()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_what_cannot_be_standardized() -> None:
    with pytest.raises(DataError, match=r"lacks x_scale, y_scale; found x_mean, y_mean"):
        Standardizer.from_arrays({"x_mean": np.zeros(1), "y_mean": np.zeros(1)})
    with pytest.raises(DataError, match=r"2 features .* is for 3 and \(2,\)"):
        StandardizedRows(as_rows(X[:, :2], Y), Standardizer.fit(as_rows(X, Y)))
    with pytest.raises(DataError, match="target column 1 cannot be standardized"):  # the squares overflow
        Standardizer.fit(as_rows(X[:2], np.array([[0.0, 1e200], [1.0, -1e200]])))
