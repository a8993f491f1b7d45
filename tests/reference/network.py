"""Reference network: layers, losses, gradients and metrics by definition, with arrays of shape (samples, features)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import erfc, exp, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, Array]
Steps = dict[int, tuple[Array, Array]]
"""Input and pre-activation of layers, by layer."""

_Q1, _Q2 = erfc(1 / sqrt(2)), erfc(sqrt(2))
SELU_ALPHA = -sqrt(2 / pi) / (_Q1 * exp(0.5) - 1)
"""For the fixed point of mean 0 and variance 1, in closed form (Klambauer et al. 2017, equation 14)."""
SELU_SCALE = (1 - _Q1 * sqrt(exp(1))) * sqrt(2 * pi)
SELU_SCALE /= sqrt(2 * _Q2 * exp(2) + pi * _Q1**2 * exp(1) - 2 * (2 + pi) * _Q1 * sqrt(exp(1)) + pi + 2)


@dataclass(frozen=True)
class Network:
    sizes: tuple[int, ...]
    activation: str = "relu"
    residual: bool = False
    loss: str = "mse"
    initializer: str = "auto"

    @property
    def layers(self) -> int:
        return len(self.sizes) - 1

    def activation_of(self, layer: int) -> str:
        return self.activation if layer < self.layers - 1 else "identity"

    def is_residual(self, layer: int) -> bool:
        return self.residual and layer < self.layers - 1 and self.sizes[layer] == self.sizes[layer + 1]

    def initializer_of(self, layer: int) -> str:
        if self.initializer != "auto":
            return self.initializer
        return {"relu": "he", "selu": "lecun"}.get(self.activation_of(layer), "glorot")


def value(activation: str, z: Array) -> Array:
    if activation == "relu":
        return np.where(z > 0, z, 0.0)
    if activation == "tanh":
        return np.asarray(np.tanh(z))
    if activation == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-z)))
    if activation == "selu":
        return SELU_SCALE * np.where(z > 0, z, SELU_ALPHA * (np.exp(z) - 1))
    return z


def slope(activation: str, z: Array) -> Array:
    if activation == "relu":
        return np.where(z > 0, 1.0, 0.0)
    if activation == "tanh":
        return 1 / np.cosh(z) ** 2
    if activation == "sigmoid":
        return np.exp(-z) / (1 + np.exp(-z)) ** 2
    if activation == "selu":
        return SELU_SCALE * np.where(z > 0, 1.0, SELU_ALPHA * np.exp(z))
    return np.ones_like(z)


def initial_weights(network: Network, seed: int) -> Weights:
    weights: Weights = {}
    for layer in range(network.layers):
        inputs, outputs = network.sizes[layer], network.sizes[layer + 1]
        rows = []
        for row in range(outputs):
            random = np.random.Generator(np.random.Philox(key=[seed, layer], counter=[0, 0, 0, row]))
            if network.initializer_of(layer) == "glorot":
                bound = sqrt(6 / (inputs + outputs))
                rows.append(random.uniform(-bound, bound, inputs))
            else:
                gain = 2 if network.initializer_of(layer) == "he" else 1
                rows.append(random.standard_normal(inputs) * sqrt(gain / inputs))
        weights[f"layers.{layer}.weight"] = np.array(rows)
        weights[f"layers.{layer}.bias"] = np.zeros(outputs)
    return weights


def forward(network: Network, weights: Weights, x: Array, layers: range | None = None) -> tuple[Array, Steps]:
    """Outputs of some or all layers, with the input and the pre-activation of each of them."""
    steps: Steps = {}
    for layer in range(network.layers) if layers is None else layers:
        weight = weights[f"layers.{layer}.weight"]
        z = x @ weight.T + weights[f"layers.{layer}.bias"]
        steps[layer] = (x, z)
        y = value(network.activation_of(layer), z)
        x = x + y if network.is_residual(layer) else y
    return x, steps


def loss(network: Network, outputs: Array, targets: Array) -> float:
    if network.loss == "mse":
        return float(np.mean((outputs - targets) ** 2))
    return float(np.mean([-log_softmax(row)[label] for row, label in zip(outputs, targets, strict=True)]))


def log_softmax(row: Array) -> Array:
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def loss_slope(network: Network, outputs: Array, targets: Array) -> Array:
    if network.loss == "mse":
        return 2 * (outputs - targets) / outputs.size
    softmax = np.exp([log_softmax(row) for row in outputs])
    one_hot = np.eye(outputs.shape[1])[targets]
    return (softmax - one_hot) / len(outputs)


def backward(network: Network, weights: Weights, steps: Steps, dy: Array) -> tuple[Array, Weights]:
    """Gradients of the input and of the weights of the layers in `steps`."""
    result: Weights = {}
    for layer in sorted(steps, reverse=True):
        inputs, z = steps[layer]
        dz = dy * slope(network.activation_of(layer), z)
        result[f"layers.{layer}.weight"] = dz.T @ inputs
        result[f"layers.{layer}.bias"] = dz.sum(axis=0)
        dx = dz @ weights[f"layers.{layer}.weight"]
        dy = dx + dy if network.is_residual(layer) else dx
    return dy, result


def gradients(network: Network, weights: Weights, x: Array, targets: Array) -> tuple[float, Weights]:
    """Mean loss over the samples, and its gradient."""
    outputs, steps = forward(network, weights, x)
    _, result = backward(network, weights, steps, loss_slope(network, outputs, targets))
    return loss(network, outputs, targets), result


def accuracy(outputs: Array, labels: Array) -> float:
    return sum(int(np.argmax(row) == label) for row, label in zip(outputs, labels, strict=True)) / len(labels)


def r2(outputs: Array, targets: Array) -> float:
    scores = []
    for output, target in zip(outputs.T, targets.T, strict=True):
        scores.append(1 - np.sum((target - output) ** 2) / np.sum((target - target.mean()) ** 2))
    return float(np.mean(scores))


def norm(arrays: Iterable[Array]) -> float:
    return sqrt(sum(float(np.sum(array**2)) for array in arrays))
