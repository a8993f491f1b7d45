"""Training of an epoch, or of several without a drain between them, with records and time by kind of instruction."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
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

    def __init__(self, grid: ProcessGrid, *meters: Meter) -> None:
        self._grid, self._meters = grid, meters
        self._start = self._now()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context of work that is no training, which this clock and its meters leave out; not collective."""
        before, totals = self._now(), self._grid.recorder.totals
        yield
        spent = self._now() - before
        self._start += spent
        for meter in self._meters:
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
    run, start = _Run(engine, grid, epochs, before, test), perf_counter()
    try:
        if engine.layout.exact:
            yield from run.train(split, pauses=pauses)
        else:
            run.train_until_drained(split)
        run.fetch_losses()
    finally:
        grid.recorder.end_phase("training", start, before.epoch)
    yield from run.results()


class _Run:
    """The minibatches of some epochs, one program, with their losses and the meters of their records."""

    def __init__(
        self,
        engine: Engine,
        grid: ProcessGrid,
        epochs: Sequence[Sequence[Minibatch]],
        before: Progress,
        test: DataSplit | None,
    ) -> None:
        self._engine, self._epochs, self._before, self._test = engine, epochs, before, test
        self._since_start, self._since_record = Meter(grid), Meter(grid)
        self._clock = StepClock(grid, self._since_start, self._since_record)
        self._minibatches = [minibatch for epoch in epochs for minibatch in epoch]
        self._losses = engine.new_losses(self._minibatches)
        self._diverged: NonFiniteLossError | None = None
        self._log_every = engine.config.log_every
        self._evaluate_every = 0 if test is None else engine.config.evaluate_every_steps
        self._copies: dict[int, list[Array]] = {}  # weights after steps, of an asynchronous method

    def train(self, split: DataSplit, *, pauses: bool) -> Iterator[Event]:
        """Train with an exact method, whose pipeline is empty between steps."""
        losses, before, unmarked = self._losses, self._before, 0
        for done, minibatch in enumerate(self._engine.train(split, self._minibatches, losses), 1):
            step = minibatch.number + 1
            unmarked += minibatch.size
            if step % self._log_every == 0:
                losses.fetch(done)  # waits for the device, so that the mark is at the end of the step
                self._since_record.mark(unmarked)
                unmarked = 0
                yield self._record(minibatch, losses.means[-1], before.epoch)
            if self._is_evaluated(step):
                with self._clock.paused():
                    yield self._evaluation(step, before.epoch)
            if pauses and done < len(self._minibatches):
                reached = partial(losses.progress, before, done)
                # What ranks agree on there, such as a checkpoint that is due, depends on the clock and is no training.
                with self._clock.paused():
                    yield StepPosition(step, before.minibatches + done, minibatch.rate, reached)

    def train_until_drained(self, split: DataSplit) -> None:
        """Train with an asynchronous method, and keep copies of the weights after epochs and steps to be evaluated."""
        ends, last = {epoch[-1].number + 1 for epoch in self._epochs[:-1]}, self._minibatches[-1].number + 1
        samples = unmarked = 0
        for minibatch in self._engine.train(split, self._minibatches, self._losses):
            step = minibatch.number + 1
            samples += minibatch.size
            unmarked += minibatch.size
            if step in ends:
                self._since_start.mark(samples)
                samples = 0
            if step in ends or (self._is_evaluated(step) and step < last):
                with self._clock.paused():
                    self._copies[step] = self._engine.copy_weights()
            if step % self._log_every == 0:
                self._since_record.mark(unmarked)
                unmarked = 0

    def fetch_losses(self) -> None:
        """Fetch all losses; one that is not finite is raised by `results`, after the records of the steps before."""
        try:
            self._losses.fetch(len(self._minibatches))
        except NonFiniteLossError as error:
            self._diverged = error

    def results(self) -> Iterator[Event]:
        """End the measurement; the results of the epochs in order, with the records of an asynchronous method."""
        self._since_start.mark(sum(minibatch.size for minibatch in self._epochs[-1]))
        self._clock.stop()
        measured = self._clock.read(self._before.epoch, len(self._minibatches))
        progress, means = self._before, self._losses.means
        for epoch in self._epochs:
            first, end = progress.step, epoch[-1].number + 1
            if not self._engine.layout.exact:
                for minibatch, loss in zip(epoch, means[first - self._before.step :], strict=False):
                    if (minibatch.number + 1) % self._log_every == 0:
                        yield self._record(minibatch, loss, progress.epoch)
            if self._diverged is not None and len(means) < end - self._before.step:
                raise self._diverged
            progress = self._losses.progress(progress, len(epoch))
            if not self._engine.layout.exact:
                for step in filter(self._is_evaluated, range(first + 1, end + 1)):
                    yield self._evaluation(step, progress.epoch)
            times = self._since_start.read(), replace(measured, epoch=progress.epoch)
            with self._engine.other_weights(self._copies.get(end)):
                yield EpochResult(progress, epoch[-1].rate, *times)
            progress = progress.next_epoch()

    def _record(self, minibatch: Minibatch, loss: float, epoch: int) -> StepRecord:
        return StepRecord(minibatch.number + 1, epoch, loss, minibatch.rate, **asdict(self._since_record.read()))

    def _is_evaluated(self, step: int) -> bool:
        return self._evaluate_every > 0 and step % self._evaluate_every == 0

    def _evaluation(self, step: int, epoch: int) -> EvaluationRecord:
        assert self._test is not None
        with self._engine.other_weights(self._copies.get(step)):
            found = self._engine.evaluate(self._test)
        return EvaluationRecord(step, epoch, found.loss, found.accuracy, found.r2)
