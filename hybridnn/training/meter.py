"""How fast training goes: samples, seconds and bytes between two moments."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from hybridnn.comm.grid import ProcessGrid

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
    """

    samples_per_second: float
    compute_seconds: float
    communication_seconds: float
    bytes_sent: int


class Meter:
    """Measures from its making to `read`, any number of times.

    Parameters
    ----------
    grid : ProcessGrid
        Whose messages are counted.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._totals, self._start = grid.recorder.totals, perf_counter()

    def read(self, samples: int) -> Speed:
        """Figures since the meter was made, in which `samples` were trained; collective over the grid."""
        seconds = perf_counter() - self._start
        spent = self._grid.recorder.totals - self._totals
        sent = np.array([spent.bytes_sent], np.int64)
        self._grid.world.allreduce(sent)
        waited = spent.communication_seconds
        return Speed(samples / seconds, seconds - waited, waited, int(sent[0]))
