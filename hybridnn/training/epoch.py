"""One pass over the training samples, or the rest of one, with its records.

Where the time of steps goes: every kind of instruction, communication, waiting; the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.manifest import Progress
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Recompute,
    Update,
    WeightGradient,
)
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Engine
from hybridnn.training.records import MeasuredStep, Meter, Speed, StepRecord

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


class StepPosition(NamedTuple):
    """A moment between two steps.

    Attributes
    ----------
    step : int
        Updates done.
    minibatches : int
        Of them, those of the epoch under way; 0 when one has ended.
    progress : callable
        Tells all of it, as a checkpoint keeps it. Losses that are still on a device are fetched for it, so it is
        collective, and raises `NonFiniteLossError` as that does.
    """

    step: int
    minibatches: int
    progress: Callable[[], Progress]


@dataclass(frozen=True)
class EpochResult:
    """What became of an epoch.

    Attributes
    ----------
    progress : Progress
        How far it came, this epoch's losses included.
    stopped : bool
        Whether it was left before its end.
    speed : Speed
        Of the steps done here.
    measured : MeasuredStep
        Where the time of these steps went.
    """

    progress: Progress
    stopped: bool
    speed: Speed
    measured: MeasuredStep


def train_epoch(
    engine: Engine,
    grid: ProcessGrid,
    part: DataSplit,
    before: Progress,
    batches: Sequence[NDArray[np.int64]],
    rates: Sequence[float],
    log_every: int,
    logged: Callable[[StepRecord], None],
    stops: Callable[[StepPosition], bool] | None = None,
) -> EpochResult:
    """Train on the minibatches of an epoch that are left, once each; collective.

    Parameters
    ----------
    engine : Engine
    grid : ProcessGrid
    part : Part
    before : Progress
        How much of the epoch was done earlier.
    batches : sequence of ndarray of int64
        Samples of every minibatch that is left; one at least.
    rates : sequence of float
        Learning rates of their updates.
    log_every : int
        Steps between two records.
    logged : callable
        Takes each record; where an asynchronous method knows its losses late, all at the end.
    stops : callable, optional
        Asked on every rank after each step but the last whether to leave the epoch there; only with a method whose
        pipeline is then empty.
    """
    first, start = engine.updates, perf_counter()
    clock = StepClock(grid)
    whole, since_record = Meter(grid), Meter(grid)
    losses = engine.new_losses(batches, rates.__getitem__)
    done, unmarked, stopped = 0, 0, False

    def updated(number: int) -> None:
        nonlocal unmarked
        unmarked += len(batches[number])
        if (first + number + 1) % log_every == 0:
            if engine.exact:  # the time of a device's work is not that of putting it in line
                losses.fetch(number + 1)
            since_record.mark(unmarked)
            unmarked = 0

    for number in engine.train(part, batches, rates.__getitem__, losses, updated):
        done, step = number + 1, first + number + 1
        if step % log_every == 0:
            logged(StepRecord(step, before.epoch, losses.means[number], rates[number], **asdict(since_record.read())))
        if stops is not None and done < len(batches):
            reached = StepPosition(step, before.minibatches + done, partial(losses.progress, before, done))
            if stops(reached):
                stopped = True
                break
    progress = losses.progress(before, done)
    grid.recorder.end_phase("training", start, before.epoch)
    whole.mark(progress.samples - before.samples)
    clock.stop()
    return EpochResult(
        progress, stopped, whole.read(), clock.read(before.epoch, progress.minibatches - before.minibatches)
    )
