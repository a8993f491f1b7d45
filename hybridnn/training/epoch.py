"""Training of an epoch, or of several without a drain between them, with records and time by kind of instruction."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from time import perf_counter

import numpy as np

from hybridnn.errors import NonFiniteLossError
from hybridnn.nn.kernels import Array
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Recompute, Update, WeightGradient
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Engine
from hybridnn.training.progress import Progress, StepPosition
from hybridnn.training.records import EvaluationRecord, MeasuredStep, Meter, Speed, StepRecord

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


@dataclass(frozen=True)
class EpochResult:
    """Result of an epoch: progress with its losses, and speed and times of the steps that were done here."""

    progress: Progress
    learning_rate: float  # of the last update
    speed: Speed
    measured: MeasuredStep  # means over all epochs without a drain between them


Event = StepRecord | EvaluationRecord | StepPosition | EpochResult


def train_epochs(
    engine: Engine,
    grid: ProcessGrid,
    split: DataSplit,
    epochs: Sequence[Sequence[Minibatch]],
    before: Progress,
    test: DataSplit | None = None,
    *,
    pauses: bool = False,
) -> Generator[Event, None, None]:
    """Train on the remaining minibatches of an epoch, once each, and on those of later ones; collective.

    The minibatches of all epochs are one program: the pipeline of an asynchronous method drains only after the last.
    Its stages end an epoch, or reach a step that is evaluated, at different times: each copies its own weights then.
    Records, evaluations and results of the epochs follow in order when the pipeline has drained.

    Parameters
    ----------
    epochs : sequence of sequence of Minibatch
        At least one, of at least one; of an exact method only one.
    before : Progress
        Progress before the first of them.

    Yields
    ------
    StepRecord
        Of every logged step.
    EvaluationRecord
        Of the samples `test`, every `evaluate_every_steps` steps.
    StepPosition
        With `pauses`, after each step of an exact method but the last. Who ends the training there closes the iterator.
    EpochResult
        While the weights are those after the epoch.
    """
    start = perf_counter()
    clock = StepClock(grid)
    since_start, since_record = Meter(grid), Meter(grid)
    minibatches = [minibatch for epoch in epochs for minibatch in epoch]
    inner_ends = set(accumulate(map(len, epochs[:-1]), initial=before.step))
    last = minibatches[-1].number + 1
    losses, exact, log_every = engine.new_losses(minibatches), engine.layout.exact, engine.config.log_every
    evaluate_every = engine.config.evaluate_every_steps if test is not None else 0
    pauses &= exact
    progress, done, samples, unmarked = before, 0, 0, 0
    diverged = None
    copies: dict[int, list[Array]] = {}  # weights after steps, of an asynchronous method

    def record(minibatch: Minibatch, loss: float) -> StepRecord:
        speed = asdict(since_record.read())
        return StepRecord(minibatch.number + 1, progress.epoch, loss, minibatch.rate, **speed)

    def is_evaluated(step: int) -> bool:
        return evaluate_every > 0 and step % evaluate_every == 0

    def evaluation(step: int) -> EvaluationRecord:
        assert test is not None
        with engine.other_weights(copies.get(step)):
            found = engine.evaluate(test)
        return EvaluationRecord(step, progress.epoch, found.loss, found.accuracy, found.r2)

    try:
        for minibatch in engine.train(split, minibatches, losses):
            step = minibatch.number + 1
            done += 1
            samples += minibatch.size
            unmarked += minibatch.size
            if not exact and step < last:
                if step in inner_ends:
                    since_start.mark(samples)
                    samples = 0
                if step in inner_ends or is_evaluated(step):
                    with clock.paused(since_start, since_record):
                        copies[step] = engine.copy_weights()
            if step % log_every == 0:
                if exact:
                    losses.fetch(done)  # waits for the device, so that the mark is at the end of the step
                since_record.mark(unmarked)
                unmarked = 0
                if exact:
                    yield record(minibatch, losses.means[-1])
            if exact and is_evaluated(step):
                with clock.paused(since_start, since_record):
                    yield evaluation(step)
            if pauses and done < len(minibatches):
                reached = partial(losses.progress, before, done)
                yield StepPosition(step, before.minibatches + done, minibatch.rate, reached)
        try:
            losses.fetch(done)
        except NonFiniteLossError as error:  # raised after the records of the steps before
            diverged = error
    finally:
        grid.recorder.end_phase("training", start, before.epoch)
    since_start.mark(samples)
    clock.stop()
    measured = clock.read(before.epoch, done)
    for epoch in epochs:
        end = epoch[-1].number + 1
        if not exact:
            for minibatch, loss in zip(epoch, losses.means[progress.step - before.step :], strict=False):
                if (minibatch.number + 1) % log_every == 0:
                    yield record(minibatch, loss)
        if diverged is not None and len(losses.means) < end - before.step:
            raise diverged
        after = losses.progress(progress, len(epoch))
        if not exact:
            yield from map(evaluation, filter(is_evaluated, range(epoch[0].number + 1, end + 1)))
        result = EpochResult(after, epoch[-1].rate, since_start.read(), replace(measured, epoch=after.epoch))
        with engine.other_weights(copies.get(end)):
            yield result
        progress = after.next_epoch()
