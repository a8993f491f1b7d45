"""Mixed precision by definition, and a step in which no sum is rounded: equal to the last bit on every device."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from reference import network as net
from reference.network import Array, Network, Weights
from reference.rounding import rounded


def in_bfloat16(values: Array) -> Array:
    return rounded("bfloat16", values)


def bfloat16_gradients(network: Network, weights: Weights, x: Array, targets: Array) -> tuple[float, Weights]:
    """Mean loss and gradient by definition, with rounded factors of products, else in float64."""
    steps, y = [], x
    for layer in range(network.layers):
        weight, bias = weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"]
        z = in_bfloat16(y) @ in_bfloat16(weight).T + bias
        steps.append((y, z))
        y = net.value(network.activation_of(layer), z)
    dy, result = net.loss_slope(network, y, targets), {}
    for layer in reversed(range(network.layers)):
        inputs, z = steps[layer]
        dz = dy * net.slope(network.activation_of(layer), z)
        result[f"layers.{layer}.weight"] = in_bfloat16(dz).T @ in_bfloat16(inputs)
        result[f"layers.{layer}.bias"] = dz.sum(axis=0)
        dy = in_bfloat16(dz) @ in_bfloat16(weights[f"layers.{layer}.weight"])
    return net.loss(network, y, targets), result


EXACT = Network((6, 7, 1), "relu")
RATE = 2.0**-40


def exact_training() -> tuple[Weights, Array, Array]:
    """Weights, inputs and targets for one step of 8 samples, in which no sum is rounded, in whatever order.

    Inputs and weights are integers of nine bits, of which bfloat16 keeps eight; the sums of the rounded products have
    at most 24 bits, which float32 represents. Targets are chosen so that the errors have few bits as well.
    """
    random = np.random.default_rng(2)
    x = random.integers(256, 512, (8, 6)).astype(float)
    signs = random.choice([-1, 1], (1, 7))
    weights = {
        "layers.0.weight": random.integers(256, 512, (7, 6)).astype(float),
        "layers.0.bias": np.zeros(7),
        "layers.1.weight": signs * random.integers(256, 512, (1, 7)).astype(float),
        "layers.1.bias": np.zeros(1),
    }
    hidden = in_bfloat16(x) @ in_bfloat16(weights["layers.0.weight"]).T
    outputs = in_bfloat16(hidden) @ in_bfloat16(weights["layers.1.weight"]).T
    errors = random.choice([-1, 1], (8, 1)) * random.integers(1 << 8, 1 << 10, (8, 1)) * 2.0**18
    return weights, x, outputs - errors


def one_step(grid: ProcessGrid, dtype: str, **settings: Any) -> dict[str, Array]:
    weights, x, y = exact_training()
    optimizer = SGD(lr=RATE, momentum=0.0)
    trainer = Trainer(
        MLP(EXACT.sizes, "relu"), optimizer, grid=grid, batch_size=8, dtype=dtype, shuffle=False, **settings
    )
    trainer.load_weights(weights)
    trainer.fit(x, y, epochs=1)
    return trainer.weights()


def expected_step() -> dict[str, Array]:
    weights, x, y = exact_training()
    _, gradients = bfloat16_gradients(EXACT, weights, x, y)
    for gradient in gradients.values():
        assert np.array_equal(gradient.astype(np.float32), gradient)
    return {name: (weights[name] - RATE * gradients[name]).astype(np.float32) for name in weights}
