"""The training loop by its definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from reference import network as net
from reference.network import Array, Network, Weights
from reference.updates import Rule, Schedule, clip


@dataclass(frozen=True)
class Plan:
    rule: Rule
    epochs: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    clip_norm: float | None = None
    schedule: Schedule = field(default_factory=Schedule)


@dataclass
class Outcome:
    """What a run leaves: `gradients` are those of the last step as applied, after clipping."""

    weights: Weights
    slots: dict[str, Weights]
    step_losses: list[float]
    epoch_losses: list[float]
    rates: list[float]
    gradients: Weights


def sample_order(samples: int, seed: int, epoch: int) -> Array:
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, 0])).permutation(samples)


def train(
    network: Network,
    plan: Plan,
    x: Array,
    y: Array,
    weights: Weights | None = None,
    gradients_of: Callable[[Network, Weights, Array, Array], tuple[float, Weights]] = net.gradients,
) -> Outcome:
    weights = dict(net.initial_weights(network, plan.seed) if weights is None else weights)
    slots = {slot: {name: np.zeros_like(w) for name, w in weights.items()} for slot in plan.rule.slots()}
    out = Outcome(weights, slots, [], [], [], {})
    starts = range(0, len(x), plan.batch_size)
    updates = plan.epochs * len(starts)
    for epoch in range(1, plan.epochs + 1):
        order = sample_order(len(x), plan.seed, epoch) if plan.shuffle else np.arange(len(x))
        total = 0.0
        for start in starts:
            picked = order[start : start + plan.batch_size]
            loss, gradients = gradients_of(network, weights, x[picked], y[picked])
            total += loss * len(picked)
            step = len(out.rates)
            rate = plan.rule.lr * plan.schedule.at(step, len(starts), updates)
            out.gradients = clip(gradients, plan.clip_norm)
            for name, gradient in out.gradients.items():
                kept = {slot: slots[slot][name] for slot in slots}
                weights[name] = plan.rule.step(weights[name], gradient, kept, step + 1, rate)
                for slot in slots:
                    slots[slot][name] = kept[slot]
            out.step_losses.append(loss)
            out.rates.append(rate)
        out.epoch_losses.append(total / len(x))
    return out
