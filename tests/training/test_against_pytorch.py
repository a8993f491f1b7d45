"""Three epochs of training against PyTorch, with a short last minibatch: float64, to 1e-10."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import hybridnn
from reference import cases
from reference import network as net
from reference.cases import TOLERANCE, assert_arrays_close, assert_close
from reference.network import Network
from reference.serial import SGD, Plan

torch = pytest.importorskip("torch")
rates = torch.optim.lr_scheduler

Maker = Callable[..., Any]


OPTIMIZERS = {
    name: ours
    for name, (ours, _) in cases.OPTIMIZERS.items()
    if hasattr(torch.optim, type(ours).__name__) and not getattr(ours, "dampening", 0.0)
}
"""Those that PyTorch has, with the same names of fields; it dampens the first gradient otherwise."""

SCHEDULES: dict[str, tuple[Any, Maker]] = {
    "constant": (hybridnn.Constant(), lambda optimizer, *_: rates.ConstantLR(optimizer, factor=1.0)),
    "step": (
        hybridnn.Step((1, 2), 0.2),
        lambda optimizer, per_epoch, _: rates.MultiStepLR(optimizer, [per_epoch, 2 * per_epoch], gamma=0.2),
    ),
    "cosine": (hybridnn.Cosine(), lambda optimizer, _, updates: rates.CosineAnnealingLR(optimizer, T_max=updates - 1)),
}


def compare(
    network: Network, optimizer: str, schedule: str, clip_norm: float | None = None, tolerance: float = TOLERANCE
) -> None:
    from reference import torch_network

    ours, random = OPTIMIZERS[optimizer], np.random.default_rng(2)

    def theirs(leaves: Any) -> Any:
        decoupled = {"decoupled_weight_decay": True} if isinstance(ours, hybridnn.NAdam) else {}
        return getattr(torch.optim, type(ours).__name__)(leaves, **asdict(ours), **decoupled)

    x = random.standard_normal((37, network.sizes[0]))
    outputs = network.sizes[-1]
    y = random.integers(0, outputs, 37) if network.loss == "cross_entropy" else random.standard_normal((37, outputs))
    plan = Plan(SGD(0.0), epochs=3, batch_size=10, seed=4, clip_norm=clip_norm)
    weights = net.initial_weights(network, plan.seed)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of NAdam's product of momenta
    expected = torch_network.train(network, weights, theirs, SCHEDULES[schedule][1], plan, x, y)
    torch.set_default_dtype(usual)
    model = hybridnn.MLP(network.sizes, network.activation, residual=network.residual)
    how = {"batch_size": 10, "seed": 4, "dtype": "float64", "clip_norm": clip_norm}
    trainer = hybridnn.Trainer(model, ours, schedule=SCHEDULES[schedule][0], **how)
    trainer.fit(x, y, epochs=3)
    assert_arrays_close(trainer.weights(), expected, f"{network}, {optimizer}, {schedule}", tolerance)
    moved = [np.abs(expected[name] - weights[name]).max() for name in weights]
    assert min(moved) > 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_weights_after_three_epochs(loss: str, optimizer: str, schedule: str) -> None:
    compare(Network((5, 13, 7, 11, 4), "tanh", loss=loss), optimizer, schedule)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "selu", "identity"])
@pytest.mark.parametrize("residual", [False, True])
def test_weights_with_every_activation(activation: str, residual: bool) -> None:
    compare(Network((6, 6, 9, 9, 4), activation, residual, "cross_entropy"), "momentum", "constant")


def test_weights_with_clipping() -> None:
    # PyTorch scales by clip / (norm + 1e-6), hybridnn by clip / norm.
    compare(Network((5, 13, 4), "tanh"), "momentum", "constant", clip_norm=0.05, tolerance=1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "selu", "identity"])
def test_float32_outputs_are_close(activation: str) -> None:
    from reference import torch_network

    network = Network((20, 50, 50, 30, 6), activation, residual=True)
    weights = {name: w.astype(np.float32) for name, w in net.initial_weights(network, 1).items()}
    x = np.random.default_rng(0).standard_normal((40, 20)).astype(np.float32)
    expected = torch_network.forward(network, torch_network.parameters(weights), x).detach().numpy()
    found = hybridnn.Trainer(hybridnn.MLP(network.sizes, activation, residual=True), seed=1).predict(x)
    assert found.dtype == expected.dtype == np.float32
    assert_close(found, expected, activation, tolerance=2e-6)
