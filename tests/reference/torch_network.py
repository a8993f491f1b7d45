"""Reference network and training by functions of PyTorch, in the dtype of the weights."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional

from reference.network import Array, Network, Weights
from reference.serial import Plan, sample_order

_ACTIVATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "selu": torch.selu,
    "identity": lambda z: z,
}

Parameters = dict[str, torch.Tensor]


def parameters(weights: Mapping[str, Array]) -> Parameters:
    return {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}


def forward(network: Network, parameters: Parameters, x: Array) -> torch.Tensor:
    h = torch.tensor(x)
    for layer in range(network.layers):
        z = functional.linear(h, parameters[f"layers.{layer}.weight"], parameters[f"layers.{layer}.bias"])
        y = _ACTIVATIONS[network.activation_of(layer)](z)
        h = h + y if network.is_residual(layer) else y
    return h


def loss(network: Network, parameters: Parameters, x: Array, y: Array) -> torch.Tensor:
    outputs, targets = forward(network, parameters, x), torch.tensor(y)
    if network.loss == "mse":
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs, targets)


def gradients(network: Network, weights: Mapping[str, Array], x: Array, y: Array) -> Weights:
    leaves = parameters(weights)
    loss(network, leaves, x, y).backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}


def train(
    network: Network, weights: Weights, optimizer: Any, scheduler: Any, plan: Plan, x: Array, y: Array
) -> Weights:
    """Train by a plan, but with an optimizer of ``torch.optim``, made from the list of parameters.

    Its schedule is made from it, the updates per epoch and all updates, and stepped after each update.
    """
    leaves = parameters(weights)
    stepper = optimizer(list(leaves.values()))
    starts = range(0, len(x), plan.batch_size)
    schedule = scheduler(stepper, len(starts), plan.epochs * len(starts))
    for epoch in range(1, plan.epochs + 1):
        order = sample_order(len(x), plan.seed, epoch)
        for start in starts:
            picked = order[start : start + plan.batch_size]
            stepper.zero_grad()
            loss(network, leaves, x[picked], y[picked]).backward()
            if plan.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(leaves.values(), plan.clip_norm)
            stepper.step()
            schedule.step()
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}
