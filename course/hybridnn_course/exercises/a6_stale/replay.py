"""Serial replay of stale training: one process that keeps all weight versions of an epoch.

Every minibatch makes one update on every stage, and no pass of minibatch t reads a version above t. So one process
that computes the minibatches in order, forward, backward and update, has the same results as a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.training.data_split import epoch_order, minibatches
from hybridnn_course.answers import Values
from hybridnn_course.whole_run import digits

Array = NDArray[np.float64]

SIZES = (64, 16, 16, 16, 10)
STAGES = len(SIZES) - 1
EPOCHS, BATCH, RATE, MOMENTUM = 2, 50, 0.1, 0.6
MINIBATCHES = 9  # of an epoch; the last one has 38 samples


class StageReads(NamedTuple):
    """Weights that a stage uses for a minibatch: versions, and updates predicted beyond them."""

    forward: int
    activations: int
    backward: int
    forward_ahead: int = 0
    backward_ahead: int = 0


Rule = Callable[[int, int], StageReads]  # from (stage, minibatch)


@dataclass(frozen=True)
class Replay:
    """A training on digits with one layer per stage.

    Parameters
    ----------
    reads : callable
        ``reads(stage, minibatch)``, the stage from 0.
    momentum : float
    distance : callable
        Distance of a prediction in multiples of the learning rate times the velocity, from the number of updates.
    stale_rate : callable
        Learning rate from the number of updates between forward and backward pass.
    """

    reads: Rule
    momentum: float = 0.0
    distance: Callable[[int], float] = float
    stale_rate: Callable[[int], float] = lambda staleness: RATE

    def train(self) -> Values:
        """Weights and losses as `hybridnn_course.whole_run.train_digits` returns them."""
        weights = initial_layers()
        velocities = [np.zeros_like(layer) for layer in weights]
        losses = []
        for epoch in range(1, EPOCHS + 1):
            versions = [[(layer, velocity)] for layer, velocity in zip(weights, velocities, strict=True)]
            total = 0.0
            for t, (x, labels) in enumerate(epoch_batches(epoch)):
                total += self._step(versions, t, x, labels) * len(labels)
            weights, velocities = ([stage[-1][part] for stage in versions] for part in (0, 1))
            losses.append(total / len(digits()[1]))
        return outcome(losses, weights)

    def _step(self, versions: list[list[tuple[Array, Array]]], t: int, x: Array, labels: NDArray[np.int64]) -> float:
        """Loss of minibatch t; appends the next version of every stage."""
        reads = [self.reads(stage, t) for stage in range(STAGES)]
        saved = []
        for stage, read in enumerate(reads):
            x = with_ones(x)
            y = activate(stage, self._read(versions[stage], read.forward, read.forward_ahead) @ x)
            again = read.activations != read.forward
            saved.append((x, activate(stage, versions[stage][read.activations][0] @ x) if again else y))
            x = y
        loss, dy = loss_and_gradient(x, labels)
        for stage in reversed(range(STAGES)):
            read, (x, y) = reads[stage], saved[stage]
            used = self._read(versions[stage], read.backward, read.backward_ahead)
            dz = dy if stage == STAGES - 1 else dy * (1 - y**2)
            dy = used[:, :-1].T @ dz
            current, velocity = versions[stage][t]
            velocity = self.momentum * velocity + dz @ x.T
            versions[stage].append((current - self.stale_rate(t - read.forward) * velocity, velocity))
        return loss

    def _read(self, versions: list[tuple[Array, Array]], version: int, ahead: int) -> Array:
        weights, velocity = versions[version]
        return weights - self.distance(ahead) * RATE * velocity


def initial_layers() -> list[Array]:
    """Initial weights of every layer, with the biases as the last column."""
    random = np.random.default_rng(6)
    shapes = zip(SIZES[1:], SIZES[:-1], strict=True)
    return [random.normal(scale=inputs**-0.5, size=(outputs, inputs + 1)) for outputs, inputs in shapes]


def named_layers(layers: list[Array]) -> dict[str, Array]:
    """The arrays by the library's names."""
    found: dict[str, Array] = {}
    for number, layer in enumerate(layers):
        found |= {f"layers.{number}.weight": layer[:, :-1].copy(), f"layers.{number}.bias": layer[:, -1].copy()}
    return found


def outcome(losses: list[float], layers: list[Array]) -> Values:
    """Losses of the epochs and weights, as `hybridnn_course.whole_run.train_digits` returns them."""
    return {"losses": losses, **named_layers(layers)}


def epoch_batches(epoch: int) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Inputs, shape (features, samples), and labels of every minibatch of an epoch."""
    x, y = digits()
    for batch in minibatches(epoch_order(len(x), 0, epoch, True), BATCH):
        yield x[batch].T, y[batch]


def with_ones(x: Array) -> Array:
    """Inputs with a row of ones, so that the last column of the weights are the biases."""
    return np.vstack([x, np.ones((1, x.shape[1]))])


def activate(stage: int, z: Array) -> Array:
    """Outputs of a stage: the last one has no activation."""
    return z if stage == STAGES - 1 else np.tanh(z)


def loss_and_gradient(logits: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Mean cross-entropy of a minibatch and its gradient with respect to the logits, shape (classes, samples)."""
    columns = np.arange(len(labels))
    exponentials = np.exp(logits - logits.max(axis=0))
    probabilities = exponentials / exponentials.sum(axis=0)
    loss = -float(np.log(probabilities[labels, columns]).mean())
    probabilities[labels, columns] -= 1
    return loss, probabilities / len(labels)
