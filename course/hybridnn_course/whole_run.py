"""Trainings on digits with the student's code, on ranks of this process, and their outcome as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process import run_ranks
from hybridnn_course.answers import Values

SAMPLES = 438  # with minibatches of 100 the last one has 38: no divisibility hides a mistake
LIMIT = 60.0


@lru_cache(maxsize=1)
def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The first `SAMPLES` training images of digits, shape (samples, 64), and their labels."""
    from hybridnn.data import load_dataset

    rows = load_dataset("digits").train
    x, y = np.empty((SAMPLES, rows.features)), np.empty(SAMPLES, np.int64)
    rows.take(np.arange(SAMPLES), x, y)
    return x, y


def train_digits(
    ranks: int = 1,
    sizes: Sequence[int] = (64, 24, 10),
    epochs: int = 2,
    lr: float = 0.2,
    grid: Mapping[str, Any] | None = None,
    network: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Values:
    """Train on digits, and return the weights and the loss of every epoch.

    Parameters
    ----------
    ranks : int
    sizes : sequence of int
        Widths of the network.
    lr : float
        Learning rate of SGD without momentum, unless `optimizer` is among the settings.
    grid : mapping
        Arguments of `ProcessGrid`, for example ``{"batch": 2, "model": 2}``.
    network : mapping
        Further arguments of `MLP`, for example ``{"residual": True}``.
    settings
        Arguments of `Trainer`.
    """
    x, y = digits()

    def program(comm: Any) -> dict[str, Any]:
        from hybridnn import MLP, SGD, ProcessGrid, Trainer

        options: dict[str, Any] = {"dtype": "float64", "batch_size": 100, "stall_seconds": 0, "partition": "uniform"}
        options |= {"shared_replicas": False, **settings}  # gradients are summed by messages, not in shared memory
        optimizer = options.pop("optimizer", None) or SGD(lr=lr, momentum=0.0)
        trainer = Trainer(
            MLP(list(sizes), **(network or {})), optimizer, grid=ProcessGrid(comm, **(grid or {})), **options
        )
        history = trainer.fit(x, y, epochs=epochs)
        weights = trainer.weights()
        trainer.free()
        return {"losses": [float(epoch.train_loss) for epoch in history.epochs], **weights}

    result: Values = run_ranks(ranks, program, limit=LIMIT).results[0]
    return result
