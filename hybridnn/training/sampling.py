"""The order of the samples, from the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["epoch_order", "minibatches"]


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """Indices of all samples in the order of an epoch (from 1); the same on every rank, 8 bytes per sample.

    The third word of the counter keeps these draws apart from the initial weights of layer number `epoch`.
    """
    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, 0])).permutation(samples)


def minibatches(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Consecutive slices of `batch_size` samples; the last may be shorter."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
