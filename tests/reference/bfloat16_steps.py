"""Mixed precision by definition, and a step in which no sum is rounded: equal to the last bit on every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from reference import network as net
from reference.network import Array, Network, Weights
from reference.rounding import rounded


def in_bfloat16(values: Array) -> Array:
    return rounded("bfloat16", values)


def rounding(network: Network) -> Network:
    """The network with factors of products rounded to bfloat16."""
    return replace(network, factors="bfloat16")


ALIKE = 0.25
"""Largest error of a training in bfloat16, over the largest difference that the rounding makes to it.

Where sums of float32 and float64, or of two devices, differ in their last bits, a factor may be rounded the other way:
of few elements, whereas the rounding changes them all.
"""

LAST_BITS = 2.0**-21
"""Error, relative to the largest element, of the roundings to float32 in twelve to fifteen updates."""


def assert_rounded_alike(found: Weights, expected: Weights, plain: Weights, what: str = "") -> None:
    """Compare weights of trainings in bfloat16, given those of the same training in float32."""
    for name, array in expected.items():
        error, difference = (np.abs(other[name] - array).max() for other in (found, plain))
        assert difference > 0, f"{what}, {name}: rounding changes nothing"
        bound = ALIKE * difference + LAST_BITS * np.abs(array).max()
        assert error < bound, f"{what}, {name}: error {error:.3g}, rounding makes {difference:.3g}"


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


def one_step(grid: ProcessGrid, dtype: str, *, times: int = 1, **settings: Any) -> dict[str, Array]:
    """Weights after the last of several steps, each from the same weights."""
    weights, x, y = exact_training()
    optimizer = SGD(lr=RATE, momentum=0.0)
    trainer = Trainer(
        MLP(EXACT.sizes, "relu"), optimizer, grid=grid, batch_size=8, dtype=dtype, shuffle=False, **settings
    )
    for _ in range(times):
        trainer.load_weights(weights)
        trainer.fit(x, y, epochs=1)
    return trainer.weights()


def expected_step() -> dict[str, Array]:
    weights, x, y = exact_training()
    _, gradients = net.gradients(rounding(EXACT), weights, x, y)
    for gradient in gradients.values():
        assert np.array_equal(gradient.astype(np.float32), gradient)
    return {name: (weights[name] - RATE * gradients[name]).astype(np.float32) for name in weights}
