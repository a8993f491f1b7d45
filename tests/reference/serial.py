"""Serial training by definition: optimizers, learning-rate schedules and the training loop."""

from dataclasses import dataclass, field
from math import cos, pi

import numpy as np

from reference import network as net
from reference.network import Array, Network, Weights


@dataclass(frozen=True)
class SGD:
    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        g = g + self.weight_decay * w
        if not self.momentum:
            return w - rate * g
        slots["velocity"] = v = self.momentum * slots["velocity"] + (1 - self.dampening) * g
        return w - rate * (g + self.momentum * v if self.nesterov else v)


@dataclass(frozen=True)
class Adam:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def slots(self) -> tuple[str, ...]:
        return ("first", "second")

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        if self.decoupled:
            w = w - rate * self.weight_decay * w
        else:
            g = g + self.weight_decay * w
        (b1, b2) = self.betas
        slots["first"] = m = b1 * slots["first"] + (1 - b1) * g
        slots["second"] = v = b2 * slots["second"] + (1 - b2) * g**2
        return w - rate * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + self.eps)


@dataclass(frozen=True)
class RMSprop:
    lr: float
    alpha: float = 0.99
    eps: float = 1e-8

    def slots(self) -> tuple[str, ...]:
        return ("square",)

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        slots["square"] = s = self.alpha * slots["square"] + (1 - self.alpha) * g**2
        return w - rate * g / (np.sqrt(s) + self.eps)


@dataclass(frozen=True)
class SpikeSGD:
    """Spike compensation: what the velocity has missed of a gradient that is `delay` updates late comes at once.

    On time, the gradient would have moved the weights by rate · (1 + momentum + … + momentum^(delay - 1)) by now.
    """

    lr: float
    momentum: float
    delay: int = 0

    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        slots["velocity"] = v = self.momentum * slots["velocity"] + g
        missed = sum(self.momentum**update for update in range(self.delay))
        return w - rate * (self.momentum**self.delay * v + missed * g)


@dataclass(frozen=True)
class NAdam:
    """Dozat 2016: Adam's first moment is replaced by that of the next step, with the gradient in place of what comes.

    The momentum of step t is beta1 (1 - 0.96^(t psi) / 2); the bias corrections have the products of all momenta.
    """

    lr: float
    betas: tuple[float, float] = (0.99, 0.999)
    eps: float = 1e-8
    psi: float = 0.004
    weight_decay: float = 0.0  # decoupled

    def slots(self) -> tuple[str, ...]:
        return ("first", "second")

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        b1, b2 = self.betas
        slots["first"] = m = b1 * slots["first"] + (1 - b1) * g
        slots["second"] = v = b2 * slots["second"] + (1 - b2) * g**2
        momenta = b1 * (1 - 0.96 ** (np.arange(1, step + 2) * self.psi) / 2)
        ahead = momenta[-1] * m / (1 - np.prod(momenta)) + (1 - momenta[-2]) * g / (1 - np.prod(momenta[:-1]))
        kept = w - rate * self.weight_decay * w
        return np.asarray(kept - rate * ahead / (np.sqrt(v / (1 - b2**step)) + self.eps))


@dataclass(frozen=True)
class PipeMare:
    """Yang et al. 2021. T1: rate / delay^p, p falls from 1 to 0 in K updates. T2: the running mean of w(t+1) - w(t)."""

    rule: SGD | Adam
    K: int
    D: float
    delay: int = 0

    @property
    def lr(self) -> float:
        return self.rule.lr

    def slots(self) -> tuple[str, ...]:
        return (*self.rule.slots(), "difference")

    def step(self, w: Array, g: Array, slots: dict[str, Array], step: int, rate: float) -> Array:
        p = 1 - min((step - 1) / self.K, 1)
        new = self.rule.step(w, g, slots, step, rate / max(self.delay, 1) ** p)
        keep = self.D ** (1 / self.delay) if self.delay else 0.0
        slots["difference"] = keep * slots["difference"] + (1 - keep) * (new - w)
        return new


Rule = SGD | SpikeSGD | Adam | RMSprop | NAdam | PipeMare


@dataclass(frozen=True)
class Schedule:
    """Factor of the rate of update u (from 0) of `updates`, with `per_epoch` updates in an epoch.

    In a warm-up of W updates it is (u + 1) / (W + 1), so that update W is the first at the full rate. Then ``linear``
    decreases along a straight line, and ``cosine`` along half a cosine, to 0 at the last update of the run.
    """

    name: str = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 1.0
    warmup_epochs: float = 0.0

    def at(self, u: int, per_epoch: int, updates: int) -> float:
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            epochs_done = u // per_epoch
            return self.factor ** sum(milestone <= epochs_done for milestone in self.milestones)
        warmup = round(self.warmup_epochs * per_epoch)
        if u < warmup:
            return (u + 1) / (warmup + 1)
        done = (u - warmup) / (updates - 1 - warmup) if updates - 1 > warmup else 0.0
        if self.name == "linear":
            return 1.0 - done
        return 0.5 * (1.0 + cos(pi * done))


def clip(gradients: dict[str, Array], limit: float | None) -> dict[str, Array]:
    """The gradients, scaled by one factor if their common norm exceeds the limit."""
    length = net.norm(gradients.values())
    if limit is None or length <= limit:
        return gradients
    return {name: g * (limit / length) for name, g in gradients.items()}


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
    """Results of a training; `gradients` are those of the last step, after clipping."""

    weights: Weights
    slots: dict[str, Weights]
    step_losses: list[float]
    epoch_losses: list[float]
    rates: list[float]
    gradients: Weights
    epoch_weights: list[Weights] = field(default_factory=list)  # after each epoch
    step_weights: list[Weights] = field(default_factory=list)  # after each step, of the replay of a pipeline
    step_gradients: list[Weights] = field(default_factory=list)  # of each step after clipping, of serial training


def sample_order(samples: int, seed: int, epoch: int) -> Array:
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, 0])).permutation(samples)


def train(network: Network, plan: Plan, x: Array, y: Array, weights: Weights | None = None) -> Outcome:
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
            loss, gradients = net.gradients(network, weights, x[picked], y[picked])
            total += loss * len(picked)
            step = len(out.rates)
            rate = plan.rule.lr * plan.schedule.at(step, len(starts), updates)
            out.gradients = clip(gradients, plan.clip_norm)
            out.step_gradients.append(out.gradients)
            for name, gradient in out.gradients.items():
                kept = {slot: slots[slot][name] for slot in slots}
                weights[name] = plan.rule.step(weights[name], gradient, kept, step + 1, rate)
                for slot in slots:
                    slots[slot][name] = kept[slot]
            out.step_losses.append(loss)
            out.rates.append(rate)
        out.epoch_losses.append(total / len(x))
        out.epoch_weights.append(dict(weights))
    return out
