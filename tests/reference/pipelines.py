"""Serial replay of the asynchronous pipeline methods by their definitions, with all weight versions of an epoch.

The version of a stage is its number of updates since the pipeline was last empty: since the epoch began, or the first
of several epochs without a drain between them. Every minibatch makes one update at every stage, and no pass of
minibatch t reads a version above t. So one process that computes the minibatches in order, forward, backward and
update, gets the same results as a pipeline.
"""

from dataclasses import dataclass, replace

import numpy as np

from reference import network as net
from reference.network import Array, Network, Weights
from reference.serial import SGD, Adam, Outcome, PipeMare, Plan, Rule, SpikeSGD, clip, sample_order

DELAYED = ("ddg", "fr", "pipedream", "pipedream-2bw", "vanilla", "spectrain", "lwp", "pipemare", "pipedream-vsync")
"""Asynchronous methods; the others are exact and equal `reference.serial.train`."""


PARTS = ("weight", "bias")


@dataclass(frozen=True)
class Pipeline:
    """A method, and the number of layers of each stage."""

    method: str
    layers: tuple[int, ...]
    drain_every: int = 1  # epochs

    @property
    def stages(self) -> int:
        return len(self.layers)

    def layers_of(self, stage: int) -> range:
        first = sum(self.layers[:stage])
        return range(first, first + self.layers[stage])

    def forward_read(self, k: int, t: int, minibatches: int) -> tuple[int, int]:
        """Version that the forward pass of minibatch t reads on stage k, and number of predicted updates."""
        K = self.stages
        if self.method == "pipedream-vsync":
            return max(0, t - (K - 1)), 0
        if self.method == "pipedream-2bw":
            return max(0, t - 1), 0
        version = max(0, t - (K - 1 - k))
        if self.method == "lwp":
            return version, t - version
        return version, self.aim(k, t, minibatches) - version if self.method == "spectrain" else 0

    def backward_read(self, k: int, t: int, minibatches: int) -> tuple[int, int]:
        """The same for the backward pass."""
        if self.method in ("ddg", "pipedream", "pipedream-vsync", "pipedream-2bw"):
            return self.forward_read(k, t, minibatches)
        if self.method == "pipemare":
            return t, self.forward_read(k, t, minibatches)[0] - t
        return t, self.aim(k, t, minibatches) - t if self.method == "spectrain" else 0

    def aim(self, k: int, t: int, minibatches: int) -> int:
        """Version that SpecTrain predicts: updates by other minibatches when the round trip of minibatch t ends.

        Counted on a clock of passes that take one unit: the backward pass of minibatch i on stage k ends at
        2i + 2K - k, that on stage 0 ends the round trip.
        """
        ends = [2 * i + 2 * self.stages - k for i in range(minibatches) if i != t]
        return sum(end <= 2 * t + 2 * self.stages for end in ends)


def uniform(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage; the first stages have one more if the number is not divisible."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


@dataclass
class Versions:
    """Weights at every version since the pipeline was empty, with the change that predictions take for one update.

    That of other rules than PipeMare's is the change at rate 1.
    """

    rule: Rule
    weights: list[Weights]
    changes: list[Weights]
    rates: list[float]

    def read(self, version: int, ahead: float, layers: range) -> Weights:
        """Weights of some layers, predicted `ahead` updates beyond a version, or before it.

        Later ones are as far away as the rate of the next update says, earlier ones as those of the updates between.
        """
        weights, changes = self.weights[version], self.changes[version]
        if not isinstance(self.rule, PipeMare):
            between = self.rates[version + ahead : version] if ahead < 0 else ()
            ahead = -sum(between) if ahead < 0 else ahead * self.rates[version]
        names = [f"layers.{layer}.{part}" for layer in layers for part in PARTS]
        return {name: weights[name] + ahead * changes[name] for name in names}

    def add(self, weights: Weights, slots: dict[str, Weights], updates: int, rate: float) -> None:
        self.weights.append(weights)
        self.rates.append(rate)
        if isinstance(self.rule, PipeMare):
            self.changes.append(dict(slots["difference"]))
        else:
            directions = {name: direction(self.rule, slots, name, w, updates) for name, w in weights.items()}
            self.changes.append({name: -along for name, along in directions.items()})


def predicts(rule: Rule) -> bool:
    """Whether weights can be predicted: momentum, Adam and PipeMare have a direction, other rules are refused."""
    return isinstance(rule, Adam | PipeMare) or bool(isinstance(rule, SGD | SpikeSGD) and rule.slots())


def direction(rule: Rule, slots: dict[str, Weights], name: str, weights: Array, updates: int) -> Array:
    """Direction of prediction: the velocity, or for Adam the step at rate 1 without a new gradient."""
    if updates == 0 or not predicts(rule):
        return np.zeros_like(weights)
    if isinstance(rule, SGD | SpikeSGD):
        return slots["velocity"][name]
    assert isinstance(rule, Adam)
    b1, b2 = rule.betas
    m_hat, v_hat = slots["first"][name] / (1 - b1**updates), slots["second"][name] / (1 - b2**updates)
    return np.asarray(m_hat / (np.sqrt(v_hat) + rule.eps))


def passes(
    network: Network, pipeline: Pipeline, versions: Versions, position: tuple[int, int], x: Array, y: Array
) -> tuple[float, Weights]:
    """Loss and gradient of minibatch t of so many, `position`; each stage reads the weights that the method defines."""
    stages = [pipeline.layers_of(k) for k in range(pipeline.stages)]
    inputs, saved = [], []
    for k, layers in enumerate(stages):
        inputs.append(x)
        x, steps = net.forward(network, versions.read(*pipeline.forward_read(k, *position), layers), x, layers)
        saved.append(steps)
    loss, dy = net.loss(network, x, y), net.loss_slope(network, x, y)
    gradients: Weights = {}
    for k, layers in reversed(list(enumerate(stages))):
        weights = versions.read(*pipeline.backward_read(k, *position), layers)
        if pipeline.method == "fr":
            _, saved[k] = net.forward(network, weights, inputs[k], layers)
        dy, of_stage = net.backward(network, weights, saved[k], dy)
        gradients |= of_stage
    return loss, gradients


def train(
    network: Network, plan: Plan, pipeline: Pipeline, x: Array, y: Array, weights: Weights | None = None
) -> Outcome:
    """Train with one of the `DELAYED` methods; a stage clips its own gradient, as it updates before the others."""
    assert pipeline.method in DELAYED
    assert sum(pipeline.layers) == network.layers
    weights = dict(net.initial_weights(network, plan.seed) if weights is None else weights)
    slots = {slot: {name: np.zeros_like(w) for name, w in weights.items()} for slot in plan.rule.slots()}
    out = Outcome(weights, slots, [], [], [], {})
    starts = range(0, len(x), plan.batch_size)
    updates = plan.epochs * len(starts)
    for epoch in range(1, plan.epochs + 1):
        order = sample_order(len(x), plan.seed, epoch) if plan.shuffle else np.arange(len(x))
        if (epoch - 1) % pipeline.drain_every == 0:
            versions = Versions(plan.rule, [], [], [])
            length = len(starts) * min(pipeline.drain_every, plan.epochs - epoch + 1)  # until the pipeline is empty
        total = 0.0
        for t, start in enumerate(starts, len(versions.weights)):
            picked = order[start : start + plan.batch_size]
            step = len(out.rates)
            rate = plan.rule.lr * plan.schedule.at(step, len(starts), updates)
            versions.add(dict(weights), slots, step, rate)
            loss, out.gradients = passes(network, pipeline, versions, (t, length), x[picked], y[picked])
            total += loss * len(picked)
            for k in range(pipeline.stages):
                names = [f"layers.{layer}.{part}" for layer in pipeline.layers_of(k) for part in PARTS]
                out.gradients |= clip({name: out.gradients[name] for name in names}, plan.clip_norm)
                delay = t - pipeline.forward_read(k, t, length)[0]
                for name in names:
                    kept = {slot: slots[slot][name] for slot in slots}
                    late = isinstance(plan.rule, SpikeSGD | PipeMare)
                    rule = replace(plan.rule, delay=delay) if late else plan.rule
                    weights[name] = rule.step(weights[name], out.gradients[name], kept, step + 1, rate)
                    for slot in slots:
                        slots[slot][name] = kept[slot]
            out.step_weights.append(dict(weights))
            out.step_losses.append(loss)
            out.rates.append(rate)
        out.epoch_losses.append(total / len(x))
        out.epoch_weights.append(dict(weights))
    return out
