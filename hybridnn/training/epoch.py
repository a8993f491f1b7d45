"""Training of one epoch, or of the rest of one, with its records and its time by kind of instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hybridnn.checkpoints.progress import Progress
from hybridnn.errors import NonFiniteLossError
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
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

if TYPE_CHECKING:
    from hybridnn.training.step_evaluations import StepEvaluations

KINDS = (*(kind.name for kind in (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)), "loss", "step")
"""Kinds of computation in the recorder, in the same order on all ranks."""


class StepClock:
    """Measures the time from its construction to `stop` by kind of instruction, communication and waiting."""

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid
        self._start = self._now()

    @contextmanager
    def paused(self, *meters: Meter) -> Iterator[None]:
        """Context of work that is no training, which this clock and the meters leave out; not collective."""
        before, totals = self._now(), self._grid.recorder.totals
        yield
        spent = self._now() - before
        self._start += spent
        for meter in meters:
            meter.leave_out(float(spent[0]), self._grid.recorder.totals - totals)

    def stop(self) -> None:
        """End the measurement; not collective."""
        self._seconds = self._now() - self._start

    def read(self, epoch: int, steps: int) -> MeasuredStep:
        """Seconds per step as means over the ranks, for a measurement of `steps` steps; collective over the grid."""
        size, own = self._grid.size, self._seconds
        total = np.concatenate([own / size, np.zeros(size)])
        total[len(own) + self._grid.world.rank] = own[3:].sum()  # computing time of every rank, in its own place
        self._grid.world.allreduce(total)
        total /= steps
        seconds, communication, waiting, *computing = total[: len(own)].tolist()
        kinds = {kind: spent for kind, spent in zip(KINDS, computing, strict=True) if spent}
        return MeasuredStep(epoch, seconds, kinds, communication - waiting, waiting, float(total[len(own) :].max()))

    def _now(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        totals, computing = self._grid.recorder.totals, self._grid.recorder.computing_seconds
        spent = [computing.get(kind, 0.0) for kind in KINDS]
        return np.array([perf_counter(), totals.communication_seconds, totals.waiting_seconds, *spent])


class StepPosition(NamedTuple):
    """Position of the training between two steps."""

    step: int
    minibatches: int  # updates done in the current epoch; 0 after the end of an epoch
    # returns the progress that a checkpoint stores. Fetches losses that are still on a device, so it is collective
    # and may raise `NonFiniteLossError`.
    progress: Callable[[], Progress]


@dataclass(frozen=True)
class EpochHooks:
    """Functions that are called during an epoch."""

    # called with each record; with an asynchronous method at the end of the epoch, when the losses are fetched
    log: Callable[[StepRecord], None]
    log_every: int
    # called on every rank after each step but the last; True stops the training there. Only with an exact method,
    # whose pipeline is empty between steps.
    should_stop: Callable[[StepPosition], bool] | None = None
    evaluations: StepEvaluations | None = None


@dataclass(frozen=True)
class EpochResult:
    """Result of an epoch: progress with its losses, and speed and times of the steps that were done here."""

    progress: Progress
    stopped: bool
    speed: Speed
    measured: MeasuredStep


def train_epoch(
    engine: Engine,
    grid: ProcessGrid,
    split: DataSplit,
    minibatches: Sequence[Minibatch],
    before: Progress,
    hooks: EpochHooks,
) -> EpochResult:
    """Train on the remaining minibatches of an epoch, once each; collective.

    Parameters
    ----------
    minibatches : sequence of Minibatch
        At least one.
    before : Progress
        Progress before the first of them.
    """
    start = perf_counter()
    clock = StepClock(grid)
    since_start, since_record = Meter(grid), Meter(grid)
    losses = engine.new_losses(minibatches)
    done, unmarked, stopped = 0, 0, False
    errors: tuple[tuple[float, ...], tuple[float, ...]] = (), ()

    def log(minibatch: Minibatch, loss: float) -> None:
        speed = asdict(since_record.read())
        stale, predicted = errors
        record = StepRecord(minibatch.number + 1, before.epoch, loss, minibatch.rate, **speed)
        hooks.log(replace(record, stale_error=stale, predicted_error=predicted) if stale else record)

    def log_fetched() -> None:
        """Log the steps of an asynchronous method, up to the first loss that is not finite."""
        if not engine.layout.exact:
            for minibatch, loss in zip(minibatches, losses.means, strict=False):
                if (minibatch.number + 1) % hooks.log_every == 0:
                    log(minibatch, loss)

    for minibatch in engine.train(split, minibatches, losses):
        done += 1
        unmarked += minibatch.size
        if engine.weight_errors is not None:
            with clock.paused(since_start, since_record):
                errors = engine.weight_errors.after_update(minibatch.rate)
        if (minibatch.number + 1) % hooks.log_every == 0:
            if engine.layout.exact:
                losses.fetch(done)  # waits for the device, so that the mark is at the end of the step
            since_record.mark(unmarked)
            unmarked = 0
            if engine.layout.exact:
                log(minibatch, losses.means[-1])
        # An asynchronous method does the update of a minibatch after its yield.
        step = minibatch.number + engine.layout.exact
        if hooks.evaluations is not None and step > before.step and hooks.evaluations.is_due(step):
            with clock.paused(since_start, since_record):
                hooks.evaluations.after_step(step, before.epoch)
        if hooks.should_stop is not None and done < len(minibatches):
            position = minibatch.number + 1, before.minibatches + done, partial(losses.progress, before, done)
            if hooks.should_stop(StepPosition(*position)):
                stopped = True
                break
    try:
        progress = losses.progress(before, done)
    except NonFiniteLossError:
        log_fetched()
        raise
    log_fetched()
    grid.recorder.end_phase("training", start, before.epoch)
    since_start.mark(progress.samples - before.samples)
    clock.stop()
    return EpochResult(progress, stopped, since_start.read(), clock.read(before.epoch, done))
