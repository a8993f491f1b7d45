"""Pipelines by the definitions of their methods: minibatch after minibatch, with every weight version kept.

A stage's version is its number of updates since the epoch began, for the pipeline drains at the end of each epoch.
Every minibatch makes one update at every stage, and no pass of minibatch t reads a version above t; so one process that
takes the minibatches in their order, forward, backward and update, computes what any overlap in time computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference import network as net
from reference.network import Array, Network, Weights
from reference.serial import SGD, Outcome, Plan, Rule, sample_order

DELAYED = ("ddg", "fr", "pipedream", "vanilla", "spectrain")
"""The methods whose gradients are stale; the others are exact, which is `reference.serial.train`."""

Steps = dict[int, tuple[Array, Array]]
"""Input and pre-activation of layers, by layer."""


@dataclass(frozen=True)
class Pipeline:
    """A method on stages of so many layers each."""

    method: str
    layers: tuple[int, ...]
    vertical_sync: bool = False

    @property
    def stages(self) -> int:
        return len(self.layers)

    def layers_of(self, stage: int) -> range:
        first = sum(self.layers[:stage])
        return range(first, first + self.layers[stage])

    def forward_read(self, k: int, t: int) -> tuple[int, int]:
        """The version that the forward of minibatch t reads on stage k, and the updates to predict beyond it."""
        K = self.stages
        if self.vertical_sync:
            return max(0, t - (K - 1)), 0
        ahead = k // 2 + K - k - 1 if self.method == "spectrain" else 0
        return max(0, t - (K - 1 - k)), ahead

    def backward_read(self, k: int, t: int) -> tuple[int, int]:
        """The same of its backward."""
        if self.method in ("ddg", "pipedream"):
            return self.forward_read(k, t)
        return t, k // 2 if self.method == "spectrain" else 0


def uniform(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: the first ones get one more where they do not divide."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


@dataclass
class Versions:
    """Weights at every version of the epoch, with the rate and the direction of the update that comes next."""

    rule: Rule
    weights: list[Weights]
    directions: list[Weights]
    rates: list[float]

    def read(self, version: int, ahead: int, layers: range) -> Weights:
        """Weights of some layers, moved by `ahead` updates along the direction of that version."""
        weights, directions = self.weights[version], self.directions[version]
        names = [f"layers.{layer}.{part}" for layer in layers for part in ("weight", "bias")]
        return {name: weights[name] - ahead * self.rates[version] * directions[name] for name in names}

    def add(self, weights: Weights, slots: dict[str, Weights], updates: int, rate: float) -> None:
        self.weights.append(weights)
        self.directions.append({name: direction(self.rule, slots, name, w, updates) for name, w in weights.items()})
        self.rates.append(rate)


def direction(rule: Rule, slots: dict[str, Weights], name: str, weights: Array, updates: int) -> Array:
    """The velocity; of Adam, whose slots are moments, the step at rate 1 that they make without a new gradient."""
    if not slots or updates == 0:
        return np.zeros_like(weights)
    if isinstance(rule, SGD):
        return slots["velocity"][name]
    b1, b2 = rule.betas
    m_hat, v_hat = slots["first"][name] / (1 - b1**updates), slots["second"][name] / (1 - b2**updates)
    return np.asarray(m_hat / (np.sqrt(v_hat) + rule.eps))


def forward(network: Network, layers: range, weights: Weights, x: Array) -> tuple[Array, Steps]:
    steps: Steps = {}
    for layer in layers:
        z = x @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
        steps[layer] = (x, z)
        y = net.value(network.activation_of(layer), z)
        x = x + y if network.is_residual(layer) else y
    return x, steps


def backward(network: Network, layers: range, weights: Weights, steps: Steps, dy: Array) -> tuple[Array, Weights]:
    """Gradient of the stage's input, and of its weights."""
    gradients: Weights = {}
    for layer in reversed(layers):
        inputs, z = steps[layer]
        dz = dy * net.slope(network.activation_of(layer), z)
        gradients[f"layers.{layer}.weight"] = dz.T @ inputs
        gradients[f"layers.{layer}.bias"] = dz.sum(axis=0)
        dx = dz @ weights[f"layers.{layer}.weight"]
        dy = dx + dy if network.is_residual(layer) else dx
    return dy, gradients


def passes(
    network: Network, pipeline: Pipeline, versions: Versions, t: int, x: Array, y: Array
) -> tuple[float, Weights]:
    """Loss and gradient of minibatch t, each stage with the weights that the method lets it read."""
    stages = [pipeline.layers_of(k) for k in range(pipeline.stages)]
    inputs, saved = [], []
    for k, layers in enumerate(stages):
        inputs.append(x)
        x, steps = forward(network, layers, versions.read(*pipeline.forward_read(k, t), layers), x)
        saved.append(steps)
    loss, dy = net.loss(network, x, y), net.loss_slope(network, x, y)
    gradients: Weights = {}
    for k, layers in reversed(list(enumerate(stages))):
        weights = versions.read(*pipeline.backward_read(k, t), layers)
        if pipeline.method == "fr":
            _, saved[k] = forward(network, layers, weights, inputs[k])
        dy, part = backward(network, layers, weights, saved[k], dy)
        gradients |= part
    return loss, gradients


def train(
    network: Network, plan: Plan, pipeline: Pipeline, x: Array, y: Array, weights: Weights | None = None
) -> Outcome:
    """Train with one of the `DELAYED` methods; there is no clipping, as stages update at different times."""
    assert pipeline.method in DELAYED
    assert sum(pipeline.layers) == network.layers
    assert plan.clip_norm is None
    weights = dict(net.initial_weights(network, plan.seed) if weights is None else weights)
    slots = {slot: {name: np.zeros_like(w) for name, w in weights.items()} for slot in plan.rule.slots()}
    out = Outcome(weights, slots, [], [], [], {})
    starts = range(0, len(x), plan.batch_size)
    updates = plan.epochs * len(starts)
    for epoch in range(1, plan.epochs + 1):
        order = sample_order(len(x), plan.seed, epoch) if plan.shuffle else np.arange(len(x))
        versions = Versions(plan.rule, [], [], [])
        total = 0.0
        for t, start in enumerate(starts):
            picked = order[start : start + plan.batch_size]
            step = len(out.rates)
            rate = plan.rule.lr * plan.schedule.at(step, len(starts), updates)
            versions.add(dict(weights), slots, step, rate)
            loss, out.gradients = passes(network, pipeline, versions, t, x[picked], y[picked])
            total += loss * len(picked)
            for name, gradient in out.gradients.items():
                kept = {slot: slots[slot][name] for slot in slots}
                weights[name] = plan.rule.step(weights[name], gradient, kept, step + 1, rate)
                for slot in slots:
                    slots[slot][name] = kept[slot]
            out.step_losses.append(loss)
            out.rates.append(rate)
        out.epoch_losses.append(total / len(x))
    return out
