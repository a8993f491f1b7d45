"""Training of an epoch, or of several without a drain between them, with records and time by kind of instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hybridnn.checkpoints.progress import Progress
from hybridnn.errors import NonFiniteLossError
from hybridnn.nn.kernels import Array
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

    # called with each record; with an asynchronous method when the pipeline has drained, and the losses are fetched
    log: Callable[[StepRecord], None]
    log_every: int
    # called on every rank after each step but the last; True stops the training there. Only with an exact method,
    # whose pipeline is empty between steps.
    should_stop: Callable[[StepPosition], bool] | None = None
    evaluations: StepEvaluations | None = None
    begin_epoch: Callable[[int], None] = lambda epoch: None  # called before the records of every epoch but the first
    end_epoch: Callable[[EpochResult], None] = lambda result: None  # called with the weights after the epoch


@dataclass(frozen=True)
class EpochResult:
    """Result of an epoch: progress with its losses, and speed and times of the steps that were done here."""

    progress: Progress
    learning_rate: float  # of the last update
    speed: Speed
    measured: MeasuredStep  # means over all epochs without a drain between them


def train_epochs(
    engine: Engine,
    grid: ProcessGrid,
    split: DataSplit,
    epochs: Sequence[Sequence[Minibatch]],
    before: Progress,
    hooks: EpochHooks,
) -> Progress | None:
    """Train on the remaining minibatches of an epoch, once each, and on those of later ones; collective.

    The minibatches of all epochs are one program: the pipeline of an asynchronous method drains only after the last.
    Its stages end an epoch, or reach a step that is evaluated, at different times: each copies its own weights then.
    Records, evaluations and `EpochHooks.end_epoch` of the epochs follow in order when the pipeline has drained.

    Parameters
    ----------
    epochs : sequence of sequence of Minibatch
        At least one, of at least one; of an exact method only one.
    before : Progress
        Progress before the first of them.

    Returns
    -------
    Progress or None
        Progress within the epoch if `EpochHooks.should_stop` ended the training there.
    """
    start = perf_counter()
    clock = StepClock(grid)
    since_start, since_record = Meter(grid), Meter(grid)
    minibatches = [minibatch for epoch in epochs for minibatch in epoch]
    inner_ends = set(accumulate(map(len, epochs[:-1]), initial=before.step))
    last = minibatches[-1].number + 1
    losses, evaluations, exact = engine.new_losses(minibatches), hooks.evaluations, engine.layout.exact
    progress, done, samples, unmarked = before, 0, 0, 0
    incomplete, diverged = None, None
    copies: dict[int, list[Array]] = {}  # weights after steps, of an asynchronous method
    errors: tuple[tuple[float, ...], tuple[float, ...]] = (), ()

    def log(minibatch: Minibatch, loss: float) -> None:
        speed = asdict(since_record.read())
        stale, predicted = errors
        record = StepRecord(minibatch.number + 1, progress.epoch, loss, minibatch.rate, **speed)
        hooks.log(replace(record, stale_error=stale, predicted_error=predicted) if stale else record)

    for minibatch in engine.train(split, minibatches, losses):
        step = minibatch.number + 1
        done += 1
        samples += minibatch.size
        unmarked += minibatch.size
        if not exact and step < last:
            if step in inner_ends:
                since_start.mark(samples)
                samples = 0
            if step in inner_ends or (evaluations is not None and evaluations.is_due(step)):
                with clock.paused(since_start, since_record):
                    copies[step] = engine.copy_weights()
        if engine.weight_errors is not None:
            with clock.paused(since_start, since_record):
                errors = engine.weight_errors.after_update(minibatch.rate)
        if step % hooks.log_every == 0:
            if exact:
                losses.fetch(done)  # waits for the device, so that the mark is at the end of the step
            since_record.mark(unmarked)
            unmarked = 0
            if exact:
                log(minibatch, losses.means[-1])
        if exact and evaluations is not None and evaluations.is_due(step):
            with clock.paused(since_start, since_record):
                evaluations.evaluate(step, before.epoch)
        if hooks.should_stop is not None and done < len(minibatches):
            position = step, before.minibatches + done, partial(losses.progress, before, done)
            if hooks.should_stop(StepPosition(*position)):
                incomplete = losses.progress(before, done)
                break
    try:
        losses.fetch(done)
    except NonFiniteLossError as error:  # raised after the records of the steps before
        diverged = error
    grid.recorder.end_phase("training", start, before.epoch)
    if incomplete is not None:
        return incomplete
    since_start.mark(samples)
    clock.stop()
    measured = clock.read(before.epoch, done)
    for epoch in epochs:
        if progress is not before:
            hooks.begin_epoch(progress.epoch)
        if not exact:
            for minibatch, loss in zip(epoch, losses.means[progress.step - before.step :], strict=False):
                if (minibatch.number + 1) % hooks.log_every == 0:
                    log(minibatch, loss)
        end = epoch[-1].number + 1
        if diverged is not None and len(losses.means) < end - before.step:
            raise diverged
        progress = losses.progress(progress, len(epoch))
        if evaluations is not None and not exact:
            for step in filter(evaluations.is_due, range(epoch[0].number + 1, end + 1)):
                evaluations.evaluate(step, progress.epoch, copies.get(step))
        result = EpochResult(progress, epoch[-1].rate, since_start.read(), replace(measured, epoch=progress.epoch))
        with engine.other_weights(copies.get(end)):
            hooks.end_epoch(result)
        progress = progress.next_epoch()
    return None
