"""Three epochs of training against PyTorch, with a short last minibatch: float64, to 1e-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridnn
from hybridnn.nn import activations
from reference import network as net
from reference.cases import TOLERANCE, assert_arrays_close, assert_close
from reference.network import Network
from reference.serial import SGD, Plan

torch = pytest.importorskip("torch")

Maker = Callable[..., Any]


def sgd(**settings: Any) -> tuple[Any, Maker]:
    return hybridnn.SGD(lr=0.05, **settings), lambda leaves: torch.optim.SGD(leaves, lr=0.05, **settings)


OPTIMIZERS: dict[str, tuple[Any, Maker]] = {
    "sgd": sgd(momentum=0.0),
    "sgd-decay": sgd(momentum=0.0, weight_decay=0.03),
    "sgd-momentum": sgd(momentum=0.9),
    "sgd-nesterov": sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": (hybridnn.Adam(lr=0.01), lambda leaves: torch.optim.Adam(leaves, lr=0.01)),
    "adam-decay": (
        hybridnn.Adam(lr=0.01, betas=(0.7, 0.9), eps=1e-7, weight_decay=0.05),
        lambda leaves: torch.optim.Adam(leaves, lr=0.01, betas=(0.7, 0.9), eps=1e-7, weight_decay=0.05),
    ),
    "adamw": (hybridnn.AdamW(lr=0.01), lambda leaves: torch.optim.AdamW(leaves, lr=0.01)),
    "nadam": (
        hybridnn.NAdam(lr=0.01),
        lambda leaves: torch.optim.NAdam(leaves, lr=0.01, betas=(0.99, 0.999)),
    ),
    "nadam-decay": (
        hybridnn.NAdam(lr=0.01, betas=(0.8, 0.9), eps=1e-7, momentum_decay=3.0),
        lambda leaves: torch.optim.NAdam(leaves, lr=0.01, betas=(0.8, 0.9), eps=1e-7, momentum_decay=3.0),
    ),
    "rmsprop": (
        hybridnn.RMSprop(lr=0.01, alpha=0.9),
        lambda leaves: torch.optim.RMSprop(leaves, lr=0.01, alpha=0.9),
    ),
    "adamw-decay": (
        hybridnn.AdamW(lr=0.02, weight_decay=0.3),
        lambda leaves: torch.optim.AdamW(leaves, lr=0.02, weight_decay=0.3),
    ),
}

SCHEDULES: dict[str, tuple[Any, Maker]] = {
    "constant": (
        hybridnn.Constant(),
        lambda optimizer, per_epoch, updates: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
    ),
    "step": (
        hybridnn.Step((1, 2), 0.2),
        lambda optimizer, per_epoch, updates: torch.optim.lr_scheduler.MultiStepLR(
            optimizer, [per_epoch, 2 * per_epoch], gamma=0.2
        ),
    ),
    "cosine": (
        hybridnn.Cosine(),
        lambda optimizer, per_epoch, updates: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates - 1),
    ),
}


def compare(
    network: Network, optimizer: str, schedule: str, clip_norm: float | None = None, tolerance: float = TOLERANCE
) -> None:
    from reference import torch_network

    random = np.random.default_rng(2)
    x = random.standard_normal((37, network.sizes[0]))
    outputs = network.sizes[-1]
    y = random.integers(0, outputs, 37) if network.loss == "cross_entropy" else random.standard_normal((37, outputs))
    plan = Plan(SGD(0.0), epochs=3, batch_size=10, seed=4, clip_norm=clip_norm)
    weights = net.initial_weights(network, plan.seed)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of NAdam's product of momenta
    expected = torch_network.train(network, weights, OPTIMIZERS[optimizer][1], SCHEDULES[schedule][1], plan, x, y)
    torch.set_default_dtype(usual)
    trainer = hybridnn.Trainer(
        hybridnn.MLP(network.sizes, network.activation, residual=network.residual),
        OPTIMIZERS[optimizer][0],
        batch_size=10,
        schedule=SCHEDULES[schedule][0],
        seed=4,
        dtype="float64",
        clip_norm=clip_norm,
    )
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
    compare(Network((6, 6, 9, 9, 4), activation, residual, "cross_entropy"), "sgd-momentum", "constant")


def test_weights_with_clipping() -> None:
    # PyTorch scales by clip / (norm + 1e-6), hybridnn by clip / norm.
    compare(Network((5, 13, 4), "tanh"), "sgd-momentum", "constant", clip_norm=0.05, tolerance=1e-5)


def test_selu_constants() -> None:
    assert pytest.approx(torch.selu(torch.tensor(1.0, dtype=torch.float64)).item(), rel=1e-15) == activations.SELU_SCALE
    below = torch.selu(torch.tensor(-1e9, dtype=torch.float64)).item()
    assert pytest.approx(below, rel=1e-15) == -activations.SELU_SCALE * activations.SELU_ALPHA
    assert pytest.approx(net.SELU_ALPHA, rel=1e-13) == activations.SELU_ALPHA
    assert pytest.approx(net.SELU_SCALE, rel=1e-13) == activations.SELU_SCALE


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
