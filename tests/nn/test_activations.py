"""Activations and their slopes against the definitions, also for extreme arguments."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from hybridnn.nn.activations import ACTIVATIONS
from reference import network as net
from reference.network import Array

LIMITS = {
    "identity": (-1e4, 1e4),
    "relu": (0.0, 1e4),
    "tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "selu": (-net.SELU_SCALE * net.SELU_ALPHA, net.SELU_SCALE * 1e4),
}
"""Values at -10,000 and 10,000."""

LIMIT_SLOPES = {
    "identity": (1.0, 1.0),
    "relu": (0.0, 1.0),
    "tanh": (0.0, 0.0),
    "sigmoid": (0.0, 0.0),
    "selu": (0.0, net.SELU_SCALE),
}


def computed(name: str, z: Array) -> tuple[Array, Array]:
    """Values and slopes; warnings are errors."""
    y, scratch = z.copy(), np.full_like(z, np.nan)
    slopes = np.full_like(z, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ACTIVATIONS[name].apply(y, scratch)
        ACTIVATIONS[name].gradient(y, np.ones_like(z), slopes, scratch)
    return y, slopes


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_slopes(name: str) -> None:
    z = np.random.default_rng(0).normal(scale=3, size=(40, 50))
    y, slopes = computed(name, z)
    np.testing.assert_allclose(y, net.value(name, z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(slopes, net.slope(name, z), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_arguments(name: str, dtype: str) -> None:
    y, slopes = computed(name, np.array([[-1e4, 1e4]], dtype))
    assert y.dtype == slopes.dtype == np.dtype(dtype)
    np.testing.assert_allclose(y[0], LIMITS[name], rtol=1e-6)
    np.testing.assert_allclose(slopes[0], LIMIT_SLOPES[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "selu"])
def test_slopes_near_zero_keep_their_precision(name: str) -> None:
    z = np.array([[-1e-9, 1e-9]])
    y, slopes = computed(name, z)
    np.testing.assert_allclose(slopes, net.slope(name, z), rtol=1e-8)
    if name == "selu":  # exp(z) - 1 would have lost eight digits
        np.testing.assert_allclose(y, net.SELU_SCALE * np.array([[-1e-9 * net.SELU_ALPHA, 1e-9]]), rtol=1e-8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_in_place(name: str) -> None:
    random = np.random.default_rng(1)
    y, dy = random.standard_normal((6, 5)), random.standard_normal((6, 5))
    ACTIVATIONS[name].apply(y, np.empty_like(y))
    expected, scratch = np.empty_like(dy), np.empty_like(dy)
    ACTIVATIONS[name].gradient(y, dy, expected, scratch)
    ACTIVATIONS[name].gradient(y, dy, dy, scratch)
    assert np.array_equal(expected, dy)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_stays_nan(name: str) -> None:
    # An activation that maps NaN to a finite value would hide a failed training.
    y, _ = computed(name, np.array([[np.nan, 1.0]]))
    assert np.isnan(y[0, 0])
    assert np.isfinite(y[0, 1])
