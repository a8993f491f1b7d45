"""Class weights: factors of the training loss with which all classes count alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.errors import SettingError
from hybridnn.nn.kernels import HostArray
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.data_split import DataSplit

LABELS_READ = 2**20  # labels that are read at a time


def balanced_weights(grid: ProcessGrid, split: DataSplit, classes: int, dtype: DTypeLike) -> NDArray[Any]:
    """Samples / (classes that occur * samples of the class), shape (classes,), by rank 0's labels; collective."""
    if split.task != "classification":
        raise SettingError("training.class_weight", "balanced", "needs classes, and this is a regression")
    counts = np.zeros(classes, np.int64)
    if grid.rank == 0 and split.rows is not None:
        for start in range(0, split.samples, LABELS_READ):
            labels = np.empty(min(LABELS_READ, split.samples - start), np.int64)
            split.rows.take(np.arange(start, start + len(labels)), None, labels)
            counts += np.bincount(labels, minlength=classes)
    grid.world.broadcast(counts)
    weights = np.divide(split.samples / np.count_nonzero(counts), counts, out=np.zeros(classes), where=counts > 0)
    return weights.astype(dtype)


def weighted_cross_entropy(
    weights: HostArray,
    logits: HostArray,
    labels: HostArray,
    columns: HostArray,
    scale: float,
    gradient: HostArray,
    loss: HostArray,
) -> None:
    """`Kernels.cross_entropy` with each loss times the weight of its class, shape (classes,); on the host only."""
    loss[0] = 0
    if logits.shape[1]:
        np.subtract(logits, logits.max(axis=0), out=gradient)
        label_logits = gradient[labels, columns]
        np.exp(gradient, out=gradient)
        sums, of_samples = gradient.sum(axis=0), weights[labels]
        np.multiply(gradient, of_samples * scale / sums, out=gradient)
        gradient[labels, columns] -= of_samples * scale
        loss[0] = np.sum(of_samples * (np.log(sums) - label_logits))
