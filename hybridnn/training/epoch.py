"""One pass over the training samples, with its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.training.engine import Engine
from hybridnn.training.history import MeasuredStep, StepRecord
from hybridnn.training.meter import Meter, Speed
from hybridnn.training.part import Part
from hybridnn.training.step_clock import StepClock

__all__ = ["train_epoch"]


def train_epoch(
    engine: Engine,
    grid: ProcessGrid,
    part: Part,
    epoch: int,
    batches: Sequence[NDArray[np.int64]],
    rates: Sequence[float],
    log_every: int,
    logged: Callable[[StepRecord], None],
) -> tuple[float, Speed, MeasuredStep]:
    """Train on every minibatch once; collective.

    Parameters
    ----------
    engine : Engine
    grid : ProcessGrid
    part : Part
    epoch : int
        Its number, for the records.
    batches : sequence of ndarray of int64
        Samples of every minibatch.
    rates : sequence of float
        Learning rates of their updates.
    log_every : int
        Steps between two records.
    logged : callable
        Takes each record; where an asynchronous method knows its losses late, all at the end.

    Returns
    -------
    float
        Mean loss over all samples, each minibatch's before its update.
    Speed
        Of the whole epoch.
    MeasuredStep
        Where the time of its steps went.
    """
    first, start = engine.updates, perf_counter()
    clock = StepClock(grid)
    whole, since_record = Meter(grid), Meter(grid)
    loss_sum, unmarked = 0.0, 0

    def updated(number: int) -> None:
        nonlocal unmarked
        unmarked += len(batches[number])
        if (first + number + 1) % log_every == 0:
            since_record.mark(unmarked)
            unmarked = 0

    for number, loss in enumerate(engine.train(part, batches, rates.__getitem__, updated)):
        loss_sum += loss * len(batches[number])
        step = first + number + 1
        if step % log_every == 0:
            logged(StepRecord(step, epoch, loss, rates[number], **asdict(since_record.read())))
    grid.recorder.end_phase("training", start, epoch)
    samples = sum(map(len, batches))
    whole.mark(samples)
    clock.stop()
    return loss_sum / samples, whole.read(), clock.read(epoch, len(batches))
