"""How fast training goes: samples, seconds and bytes between two moments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.recorder import Totals

__all__ = ["Meter", "Speed"]


@dataclass(frozen=True)
class Speed:
    """Figures of a span of training.

    Attributes
    ----------
    samples_per_second : float
        Of all ranks together.
    compute_seconds, communication_seconds : float
        This rank's time outside and inside communication calls.
    bytes_sent : int
        By all ranks, counted by the rule of ``comm/accounting.py``.
    waiting_seconds : float
        The part of `communication_seconds` that was spent waiting for messages of other stages and at barriers.
    """

    samples_per_second: float
    compute_seconds: float
    communication_seconds: float
    bytes_sent: int
    waiting_seconds: float


class Meter:
    """Measures spans of training: `mark` ends one on this rank alone, `read` tells its figures.

    Parameters
    ----------
    grid : ProcessGrid
        Whose messages are counted.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._totals, self._start = grid.recorder.totals, perf_counter()
        self._spans: deque[tuple[int, float, Totals]] = deque()

    def mark(self, samples: int) -> None:
        """End a span, in which `samples` were trained, and begin the next; not collective."""
        now, totals = perf_counter(), self._grid.recorder.totals
        self._spans.append((samples, now - self._start, totals - self._totals))
        self._start, self._totals = now, totals

    def read(self) -> Speed:
        """Figures of the oldest span that was not read; collective over the grid."""
        samples, seconds, spent = self._spans.popleft()
        sent = np.array([spent.bytes_sent], np.int64)
        self._grid.world.allreduce(sent)
        inside = spent.communication_seconds
        return Speed(samples / seconds, seconds - inside, inside, int(sent[0]), spent.waiting_seconds)
