"""Where the time of steps goes: every kind of instruction, communication, waiting; the mean over the ranks."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from hybridnn.comm.grid import ProcessGrid
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.training.history import MeasuredStep

__all__ = ["StepClock"]

KINDS = (*(kind.name for kind in (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)), "loss", "step")
"""All that is recorded as computing, in an order that the ranks share."""


class StepClock:
    """Measures the steps between its making and `stop`.

    Parameters
    ----------
    grid : ProcessGrid
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._begun = self._now()

    def stop(self) -> None:
        """End the span; not collective."""
        self._seconds = self._now() - self._begun

    def read(self, epoch: int, steps: int) -> MeasuredStep:
        """Figures of a span of so many steps; collective over the grid."""
        total = self._seconds.copy()
        self._grid.world.allreduce(total)
        seconds, communication, waiting, *computing = (total / (self._grid.size * steps)).tolist()
        kinds = {kind: spent for kind, spent in zip(KINDS, computing, strict=True) if spent}
        return MeasuredStep(epoch, seconds, kinds, communication - waiting, waiting)

    def _now(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        totals, computing = self._grid.recorder.totals, self._grid.recorder.computing_seconds
        spent = [computing.get(kind, 0.0) for kind in KINDS]
        return np.array([perf_counter(), totals.communication_seconds, totals.waiting_seconds, *spent])
