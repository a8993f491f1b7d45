"""The reference against autograd of PyTorch, and slopes where activations bend."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import hybridnn
from hybridnn.nn.activations import ACTIVATIONS
from reference import network as net
from reference.cases import assert_arrays_close
from reference.network import Array, Network, Weights

SIZES = {False: (3, 5, 7, 4, 2), True: (4, 4, 4, 6, 6, 3)}
"""By whether layers are residual: uneven widths, or pairs that agree at the start, in the middle and at the end."""

SETTINGS = [
    (Network(SIZES[residual], activation, residual, loss), samples)
    for activation, loss, residual, samples in product(ACTIVATIONS, ("mse", "cross_entropy"), (False, True), (1, 6))
]


def name(setting: tuple[Network, int]) -> str:
    network, samples = setting
    return f"{network.activation}-{network.loss}-{'residual' if network.residual else 'plain'}-n{samples}"


def problem(network: Network, samples: int) -> tuple[Weights, Array, Array]:
    """Weights with biases that are not zero, samples and targets."""
    random = np.random.default_rng(11)
    weights = {name: w + 0.1 * random.standard_normal(w.shape) for name, w in net.initial_weights(network, 5).items()}
    x = random.standard_normal((samples, network.sizes[0]))
    outputs = network.sizes[-1]
    y = (
        random.integers(0, outputs, samples)
        if network.loss == "cross_entropy"
        else random.standard_normal((samples, outputs))
    )
    return weights, x, y


def one_step(network: Network, weights: Weights, x: Array, y: Array) -> hybridnn.Trainer:
    """A trainer after one update from `weights` on all samples."""
    model = hybridnn.MLP(network.sizes, network.activation, residual=network.residual, loss=network.loss)
    trainer = hybridnn.Trainer(model, batch_size=len(x), dtype="float64", initial_weights=weights)
    trainer.fit(x, y, epochs=1)
    return trainer


@pytest.mark.sweep
@pytest.mark.parametrize("setting", SETTINGS, ids=name)
def test_the_reference_itself_agrees_with_autograd(setting: tuple[Network, int]) -> None:
    pytest.importorskip("torch")
    from reference import torch_network

    network, samples = setting
    weights, x, y = problem(network, samples)
    loss, found = net.gradients(network, weights, x, y)
    assert_arrays_close(found, torch_network.gradients(network, weights, x, y), name(setting), tolerance=1e-12)
    assert loss == pytest.approx(torch_network.loss(network, torch_network.parameters(weights), x, y).item(), rel=1e-12)


def test_inputs_where_relu_and_selu_bend_take_the_left_slope() -> None:
    # As in PyTorch: relu has slope 0 at 0, selu has the slope of its exponential part.
    weights = {"layers.0.weight": np.zeros((1, 1)), "layers.0.bias": np.zeros(1)}
    weights |= {"layers.1.weight": np.ones((1, 1)), "layers.1.bias": np.zeros(1)}
    x, y = np.ones((1, 1)), np.ones((1, 1))
    for activation, slope in (("relu", 0.0), ("selu", net.SELU_SCALE * net.SELU_ALPHA)):
        gradients = one_step(Network((1, 1, 1), activation), weights, x, y).gradients()
        assert gradients["layers.0.weight"].item() == pytest.approx(-2 * slope, rel=1e-14)
