"""Activations and losses against closed forms."""

import warnings
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP
from hybridnn.errors import SettingError
from hybridnn.nn.activations import ACTIVATIONS
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import resolve_loss
from reference import network as net
from reference.cases import assert_close
from reference.network import Array, Network


def computed(name: str, outputs: Array, targets: Array, samples: int) -> tuple[float, Array]:
    """Sum of the losses and gradient, of outputs (samples, outputs); warnings are errors."""
    gradient, loss = np.full(outputs.T.shape, np.nan, outputs.dtype), np.full(1, np.nan, outputs.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, columns = np.ascontiguousarray(outputs.T), np.arange(len(outputs))
        if name == "mse":
            NUMPY.mean_squared_error(rows, targets.T, 1 / samples, gradient, loss)
        else:
            NUMPY.cross_entropy(rows, targets, columns, 1 / samples, gradient, loss)
    return float(loss[0]), gradient.T


@pytest.mark.parametrize("name", ["mse", "cross_entropy"])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_loss_and_gradient_of_a_part_of_a_minibatch(name: str, n: int) -> None:
    random = np.random.default_rng(n)
    outputs = random.standard_normal((n, 4))
    targets: Array = random.integers(0, 4, n) if name == "cross_entropy" else random.standard_normal((n, 4))
    network = Network((1, 4), loss=name)
    loss, gradient = computed(name, outputs, targets, samples=12)
    assert loss == pytest.approx(n * net.loss(network, outputs, targets), rel=1e-13)
    assert_close(gradient, net.loss_slope(network, outputs, targets) * n / 12, name, 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy_of_large_logits(dtype: str) -> None:
    outputs = np.array([[1000, -1000, 0], [-1000, 1000, 1000], [-1000, -1000, -1000]], dtype)
    labels = np.array([0, 0, 2])
    loss, gradient = computed("cross_entropy", outputs, labels, 3)
    # Losses by hand: 0, 2000 + log 2, log 3.
    assert loss == pytest.approx(2000 + np.log(2) + np.log(3), rel=1e-6)
    expected = np.array([[0, 0, 0], [-1, 0.5, 0.5], [1 / 3, 1 / 3, -2 / 3]]) / 3
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_small_cross_entropy_is_precise() -> None:
    loss, _ = computed("cross_entropy", np.array([[30.0, 0.0]]), np.array([0]), 1)
    assert loss == pytest.approx(np.log1p(np.exp(-30.0)), rel=1e-2)


@pytest.mark.parametrize(("name", "targets"), [("mse", np.zeros((0, 3))), ("cross_entropy", np.zeros(0, np.int64))])
def test_loss_of_no_samples(name: str, targets: Array) -> None:
    loss, gradient = computed(name, np.zeros((0, 3)), targets, 7)
    assert loss == 0.0
    assert gradient.shape == (0, 3)


@pytest.mark.parametrize(("loss", "task"), [("mse", "regression"), ("cross_entropy", "classification")])
def test_auto_takes_the_loss_of_the_task(loss: str, task: str) -> None:
    assert resolve_loss(MLP([2, 3]), task) == loss
    assert resolve_loss(MLP([2, 3], loss=loss), task) == loss


@pytest.mark.parametrize(("loss", "task"), [("mse", "classification"), ("cross_entropy", "regression")])
def test_a_loss_of_the_other_task_is_refused(loss: str, task: Any) -> None:
    with pytest.raises(SettingError, match=r"model\.loss"):
        resolve_loss(MLP([2, 3], loss=loss), task)


LIMITS = {
    "identity": ((-1e4, 1e4), (1.0, 1.0)),
    "relu": ((0.0, 1e4), (0.0, 1.0)),
    "tanh": ((-1.0, 1.0), (0.0, 0.0)),
    "sigmoid": ((0.0, 1.0), (0.0, 0.0)),
    "selu": ((-net.SELU_SCALE * net.SELU_ALPHA, net.SELU_SCALE * 1e4), (0.0, net.SELU_SCALE)),
}
"""Values and slopes at -10,000 and 10,000."""


def activated(name: str, z: Array) -> tuple[Array, Array]:
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
    y, slopes = activated(name, z)
    np.testing.assert_allclose(y, net.value(name, z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(slopes, net.slope(name, z), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_arguments(name: str, dtype: str) -> None:
    y, slopes = activated(name, np.array([[-1e4, 1e4]], dtype))
    assert y.dtype == slopes.dtype == np.dtype(dtype)
    np.testing.assert_allclose(y[0], LIMITS[name][0], rtol=1e-6)
    np.testing.assert_allclose(slopes[0], LIMITS[name][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "selu"])
def test_slopes_near_zero_keep_their_precision(name: str) -> None:
    z = np.array([[-1e-9, 1e-9]])
    y, slopes = activated(name, z)
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
    y, _ = activated(name, np.array([[np.nan, 1.0]]))
    assert np.isnan(y[0, 0])
    assert np.isfinite(y[0, 1])
