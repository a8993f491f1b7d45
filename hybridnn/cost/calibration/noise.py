"""How much longer computing takes than its median, for the last of ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean, median

__all__ = ["fit_noise"]

SLOWER_OF_TWO = 1 + 1 / 2 - log(2)
"""Mean of the larger of two exponential delays less the median of one, in mean delays."""


def fit_noise(networks: Sequence[Sequence[float]]) -> float:
    """Mean delay of a computation relative to its median, with delays taken as exponential.

    Found from the slower of two rounds, averaged over all pairs of a network's rounds: what two ranks that wait for
    each other would take.

    Parameters
    ----------
    networks : sequence of sequence of float
        Seconds of a computation, two times or more, for each of several.
    """
    return max(0.0, fmean(_slower_of_two(rounds) / median(rounds) - 1 for rounds in networks)) / SLOWER_OF_TWO


def _slower_of_two(rounds: Sequence[float]) -> float:
    """Mean of the larger of two different rounds: the one of rank i, from 0, is the larger of i pairs."""
    count = len(rounds)
    return sum(place * seconds for place, seconds in enumerate(sorted(rounds))) / (count * (count - 1) / 2)
