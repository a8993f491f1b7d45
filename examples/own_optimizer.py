"""Define an optimizer, Lion, and train on four ranks with it.

    python examples/own_optimizer.py

An optimizer is a frozen dataclass with one method, which updates a slice of the parameters. It then works on every
grid: the losses of one rank and of four are the same. Types such as `Positive` say which settings are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.data import load_dataset
from hybridnn.in_process import run_ranks
from hybridnn.nn.optimizers import Optimizer
from hybridnn.utils.checks import BelowOne, Positive


@dataclass(frozen=True)
class Lion(Optimizer):
    """``w -= lr sign(b1 m + (1 - b1) g)``, then ``m = b2 m + (1 - b2) g``.

    Chen et al. 2023, "Symbolic discovery of optimization algorithms", without weight decay.
    """

    name = "lion"

    lr: Positive = 1e-3
    b1: BelowOne = 0.9
    b2: BelowOne = 0.99

    slot_names = ("mean",)

    def update(self, weights: Any, gradient: Any, state: Any, lr: float, out: Any = None) -> None:
        """Update `weights` in place, or write the new ones to `out`."""
        state.updates += 1
        mean = state.slots["mean"]
        direction = np.sign(self.b1 * mean + (1 - self.b1) * gradient)
        mean *= self.b2
        mean += (1 - self.b2) * gradient
        np.subtract(weights, lr * direction, out=weights if out is None else out)


def train(comm: Any) -> list[float]:
    """Return the loss of every epoch; every rank calls this function."""
    grid = ProcessGrid(comm, model=2 if comm.size > 1 else 1)
    trainer = Trainer(MLP([64, 48, 10]), Lion(lr=2e-3), grid=grid, batch_size=50, dtype="float64")
    return [record.train_loss for record in trainer.fit(load_dataset("digits").train, epochs=4).epochs]


for ranks in (1, 4):
    losses = run_ranks(ranks, train).results[0]
    print(f"{ranks} ranks:", "  ".join(f"{loss:.6f}" for loss in losses))
