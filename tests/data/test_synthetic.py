"""Generated data are functions of the sample number, and have the documented distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest

from hybridnn.data import SyntheticRows, SyntheticSpec, load_dataset
from hybridnn.data.synthetic import HIDDEN, NOISE, SEPARATION
from hybridnn.errors import SettingError

AllOf = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
REGRESSION = SyntheticSpec(test_samples=40, inputs=5, outputs=3)
CLASSES = SyntheticSpec("classification", test_samples=40, inputs=5, outputs=4)
both_tasks = pytest.mark.parametrize("spec", [REGRESSION, CLASSES], ids=["regression", "classification"])


def test_default_size() -> None:
    dataset = load_dataset("synthetic")
    assert dataset.test is not None
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
    assert dataset.test is not None
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
