"""How much longer computing takes than its median, for the last of ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

__all__ = ["fit_noise"]

QUARTILES = 0.25, 0.75

TRIMMED = 0.1
"""Share of the networks left out at both ends."""


def fit_noise(networks: Sequence[Sequence[float]]) -> float:
    """Mean delay of a computation relative to its median, with delays taken as exponential.

    The distance between the quartiles of a network's rounds is divided by what it is expected to be for exponential
    delays of mean 1; the trimmed mean over the networks counts. So neither a few slow rounds nor a few networks that
    met another job decide it.

    Parameters
    ----------
    networks : sequence of sequence of float
        Seconds of a computation, two times or more, for each of several.

    Notes
    -----
    Of n exponential delays of mean 1 the i-th smallest is expected to be 1/n + 1/(n-1) + ... + 1/(n-i+1) (Renyi 1953).
    Quartiles are interpolated linearly between delays, and their expectations between these.
    """
    found = sorted(_spread(rounds) / (_expected_spread(len(rounds)) * float(np.median(rounds))) for rounds in networks)
    cut = int(TRIMMED * len(found))
    return float(np.mean(found[cut : len(found) - cut]))


def _spread(seconds: Sequence[float]) -> float:
    low, high = np.quantile(seconds, QUARTILES)
    return float(high - low)


@lru_cache
def _expected_spread(count: int) -> float:
    return _spread(np.cumsum(1 / np.arange(count, 0, -1)).tolist())
