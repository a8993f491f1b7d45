"""The gradient against autograd, finite differences, and the mean of weighted losses."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hybridnn
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import SettingError
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


NETWORK = Network((3, 5, 4, 4, 3), "tanh", loss="cross_entropy")
RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((23, 3))
Y = np.repeat([0, 1, 2], [16, 5, 2])[RANDOM.permutation(23)]
BALANCED = {0: 23 / (3 * 16), 1: 23 / (3 * 5), 2: 23 / (3 * 2)}


def trained(x: Any = X, y: Any = Y, **settings: Any) -> Trainer:
    """After one update on all samples."""
    settings = {"batch_size": len(X), "dtype": "float64", "class_weight": "balanced", **settings}
    trainer = Trainer(MLP(NETWORK.sizes, "tanh"), SGD(lr=0.1), **settings)
    trainer.fit(x, y, epochs=1, validation=(X, Y))
    return trainer


GRIDS: dict[str, dict[str, Any]] = {
    "batch": {},
    "scattered": {"distribution": "scatter"},
    "model": {"axes": {"model": 2}},
    "gpipe": {"axes": {"pipeline": 2}, "method": "gpipe", "microbatches": 3},
    "zb-h1": {"axes": {"pipeline": 2}, "method": "zb-h1", "microbatches": 4},
}


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("name", GRIDS)
def test_the_gradient_is_that_of_the_mean_of_weighted_losses(comm: MPI.Intracomm, name: str) -> None:
    weights = net.initial_weights(NETWORK, 7)
    settings = dict(GRIDS[name])
    grid = ProcessGrid(comm, **settings.pop("axes", {}))
    first = comm.rank == 0 or "distribution" not in settings
    it = trained(X if first else None, Y if first else None, grid=grid, initial_weights=weights, **settings)
    parts = {label: net.gradients(NETWORK, weights, X[label == Y], Y[label == Y]) for label in BALANCED}
    shares = {label: weight * np.mean(label == Y) for label, weight in BALANCED.items()}  # of the mean of a class
    gradient = {key: sum(shares[label] * part[1][key] for label, part in parts.items()) for key in weights}
    assert_arrays_close(it.gradients(), gradient, name, tolerance=1e-12)
    record = it.history.epochs[0]
    assert record.train_loss == pytest.approx(sum(shares[label] * part[0] for label, part in parts.items()), rel=1e-12)
    outputs = it.predict(X)
    assert record.validation_loss == pytest.approx(net.loss(NETWORK, outputs, Y), rel=1e-12)  # counts every sample once


def test_float32_and_a_class_that_does_not_occur() -> None:
    labels = np.where(Y == 2, 1, Y)
    found = trained(y=labels, dtype="float32").history.epochs[0]
    assert found.train_loss == pytest.approx(trained(y=labels).history.epochs[0].train_loss, rel=1e-6)


def test_what_has_no_classes_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^training.class_weight = 'balanced': needs classes, and this is a regression$"
    ):
        Trainer(MLP(NETWORK.sizes), class_weight="balanced").fit(X, 2.0 * np.eye(3)[Y], epochs=1)
