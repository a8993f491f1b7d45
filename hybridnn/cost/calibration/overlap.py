"""Measuring what an all-reduce during computation costs: how much of it hides, and how it slows the computation."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.cost.calibration.samples import ITEMSIZE
from hybridnn.parallel.gradient_reduction import BUCKET_BYTES, GradientReducer

__all__ = ["measure_overlap"]

LAYERS = 16
"""Buckets of the measured gradient, of one layer each."""
WIDTH = 128
"""Rows and columns of the matrices; their product takes about a tenth of a millisecond."""
LEAST_OVERLAP_ROUNDS = 3


def measure_overlap(group: Group, seconds: float) -> tuple[float, float]:
    """All-reduce a gradient in buckets beside matrix products that take about as long, as a backward pass does.

    Parameters
    ----------
    group : Group
        Two ranks or more; collective.
    seconds : float
        Time for it.

    Returns
    -------
    hidden_fraction : float
        Part of the time of the all-reduce alone that passes behind the products when they are computed meanwhile.
    compute_slowdown : float
        Time of the products with messages under way over their time without, at least 1. Where nothing hides and the
        messages take even longer than alone, that is counted here, so that the whole time is met.
    """
    trial = _Trial(group)
    trial.balance(*_slowest(group, trial.alone()))
    start = perf_counter()
    rounds: list[list[float]] = []
    while len(rounds) < LEAST_OVERLAP_ROUNDS or rounds[-1][-1] < seconds:
        # The clock travels along, so that all ranks agree when to stop.
        rounds.append(_slowest(group, (*trial.alone(), *trial.together(), perf_counter() - start)))
    compute, messages, compute_beside, total, _ = np.median(rounds, axis=0).tolist()
    # Of the slowest rank each: what a rank waits because another computes for longer is not the messages'.
    hidden = 1 - (total - compute_beside) / messages
    slowed = compute_beside if hidden >= 0 else total - messages
    return min(max(hidden, 0.0), 1.0), max(slowed / compute, 1.0)


def _slowest(group: Group, times: tuple[float, ...]) -> list[float]:
    slowest = np.array(times)
    group.allreduce(slowest, "max")
    return [float(time) for time in slowest]


class _Trial:
    """A gradient of several layers, and products to compute after each becomes ready."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._gradient = np.zeros(LAYERS * BUCKET_BYTES // ITEMSIZE, np.float32)
        self._ends = [(layer + 1) * BUCKET_BYTES // ITEMSIZE for layer in range(LAYERS)]
        generator = np.random.default_rng(0)
        self._left, self._right = generator.standard_normal((2, WIDTH, WIDTH), np.float32)
        self._product = np.empty_like(self._left)
        self._products = 1
        self.alone()  # opens connections and touches memory

    def balance(self, compute_seconds: float, message_seconds: float) -> None:
        """Compute so many products for each layer that all together take about as long as the messages."""
        self._products = max(1, round(self._products * message_seconds / compute_seconds))

    def alone(self) -> tuple[float, float]:
        """Seconds of the products, and of the messages, one after the other."""
        self._group.barrier()
        start = perf_counter()
        for _ in range(LAYERS):
            self._compute()
        compute = perf_counter() - start
        self._group.barrier()
        start = perf_counter()
        reducer = self._reducer()
        for layer in reversed(range(LAYERS)):
            reducer.ready(layer)
        reducer.finish()
        return compute, perf_counter() - start

    def together(self) -> tuple[float, float]:
        """Seconds in the products, and in all, with messages under way."""
        self._group.barrier()
        start = perf_counter()
        compute = 0.0
        reducer = self._reducer()
        for layer in reversed(range(LAYERS)):
            reducer.ready(layer)
            begun = perf_counter()
            self._compute()
            compute += perf_counter() - begun
        reducer.finish()
        return compute, perf_counter() - start

    def _reducer(self) -> GradientReducer:
        return GradientReducer(self._group, self._gradient, self._ends, overlap=True)

    def _compute(self) -> None:
        for _ in range(self._products):
            np.matmul(self._left, self._right, out=self._product)
