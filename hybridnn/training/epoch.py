"""Training of an epoch, or of several without a drain between them, with records and time by kind of instruction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from math import isfinite
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hybridnn.errors import NonFiniteLossError
from hybridnn.nn.kernels import Array
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.executor import Minibatch
from hybridnn.pipeline.schedules.instructions import Backward, Forward, InputGradient, Recompute, Update, WeightGradient
from hybridnn.training.data_split import DataSplit
from hybridnn.training.engine import Engine
from hybridnn.training.records import (
    EvaluationRecord,
    MeasuredStep,
    Progress,
    Speed,
    StepPosition,
    StepRecord,
    TrainingState,
)

KINDS = (*(kind.name for kind in (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)), "loss", "step")
"""Kinds of computation in the recorder, in the same order on all ranks."""

INCOMPLETE = "restore a checkpoint, or begin anew with load_weights(weights, reset_optimizer=True)"
IN_FLIGHT = "its messages may be in flight; restore a checkpoint with another ProcessGrid and Trainer"
"""What to do about a step that an exception has interrupted."""


class MinibatchLosses:
    """Mean losses of minibatches, in their order: `means` has those that are fetched.

    `note` is asynchronous on a device; `fetch` synchronizes with it. `totals` are the sums, of float64; steps on a
    device that write them to another array set it, and do not call `note`.
    """

    def __init__(self, engine: Engine, minibatches: Sequence[Minibatch]) -> None:
        self._engine, self._minibatches = engine, minibatches
        self._first = minibatches[0].number
        self.totals = engine.kernels.zeros((len(minibatches),), np.float64)
        self.means: list[float] = []

    def note(self, minibatch: Minibatch, total: Array) -> None:
        """Store the sum of a minibatch's losses, shape (1,); asynchronous on a device."""
        index = minibatch.number - self._first
        self._engine.kernels.copy(total, self.totals[index : index + 1])

    def add(self, minibatch: Minibatch, total: Array) -> None:
        """Store and fetch the loss of the next minibatch, which has been computed.

        Raises `NonFiniteLossError` on every rank.
        """
        if self._engine.grid.pipeline > 1:
            self.note(minibatch, total)
            self.fetch(len(self.means) + 1)
        else:
            self._append(minibatch, total.item())

    def fetch(self, count: int) -> None:
        """Fetch the means of the first `count` minibatches; collective over a grid with several stages.

        Raises `NonFiniteLossError` on every rank.
        """
        fetched = len(self.means)
        if count <= fetched:
            return
        totals = self._engine.kernels.to_host(self.totals[fetched:count])
        self._engine.broadcast_from_last_stage(totals)
        for minibatch, total in zip(self._minibatches[fetched:count], totals.tolist(), strict=True):
            self._append(minibatch, total)

    def _append(self, minibatch: Minibatch, total: float) -> None:
        mean = total / minibatch.size
        if not isfinite(mean):
            step = minibatch.number + 1
            self._engine.stop(f"the loss became {mean} in step {step} at learning rate {minibatch.rate:g}", step)
        self.means.append(mean)

    def progress(self, before: Progress, count: int) -> Progress:
        """Progress `count` minibatches after `before`, which is at the first one or later; calls `fetch`."""
        self.fetch(before.step - self._first + count)
        return self.known_progress(before, count)

    def known_progress(self, before: Progress, count: int) -> Progress:
        """As `progress`, with the losses that have been fetched; not collective."""
        first, loss_sum, samples = before.step - self._first, before.loss_sum, before.samples
        done = slice(first, first + count)
        for minibatch, mean in zip(self._minibatches[done], self.means[done], strict=False):
            loss_sum += mean * minibatch.size
            samples += minibatch.size
        step, minibatches = before.step + count, before.minibatches + count
        return replace(before, step=step, minibatches=minibatches, loss_sum=loss_sum, samples=samples)


EPOCH, RECORD = "epoch", "record"
"""Kinds of intervals of a `StepClock`: epochs, and the steps from one record to the next."""


class StepClock:
    """Measures intervals of training on this rank: time by kind of instruction, communication, waiting and traffic.

    Attributes
    ----------
    samples : int
        Samples, over all ranks, on which the caller has trained since the start.
    """

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid, self.samples = grid, 0
        self._spans: dict[str, deque[NDArray[np.float64]]] = {EPOCH: deque(), RECORD: deque()}
        self._starts = dict.fromkeys(self._spans, self._now())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context of work that is no training, which the current intervals leave out; not collective."""
        before = self._now()
        yield
        spent = self._now() - before
        self._starts = {interval: start + spent for interval, start in self._starts.items()}

    def mark(self, interval: str) -> None:
        """End an interval of a kind, and start the next; not collective."""
        now = self._now()
        self._spans[interval].append(now - self._starts[interval])
        self._starts[interval] = now

    def measured_step(self, epoch: int, steps: int) -> MeasuredStep:
        """Seconds per step as means over the ranks, of all epochs since the start, `steps` steps; collective."""
        own, size = np.sum(list(self._spans[EPOCH]), axis=0)[:-2], self._grid.size
        total = np.concatenate([own / size, np.zeros(size)])
        total[len(own) + self._grid.world.rank] = own[3:].sum()  # computing time of every rank, in its own place
        self._grid.world.allreduce(total)
        total /= steps
        seconds, communication, waiting, *computing = total[: len(own)].tolist()
        kinds = {kind: spent for kind, spent in zip(KINDS, computing, strict=True) if spent}
        return MeasuredStep(epoch, seconds, kinds, communication - waiting, waiting, float(total[len(own) :].max()))

    def read(self, interval: str) -> Speed:
        """Speed in the oldest interval of a kind that has not been read; collective over the grid."""
        seconds, communication, waiting, *_, sent, samples = self._spans[interval].popleft().tolist()
        all_sent = np.array([sent], np.int64)
        self._grid.world.allreduce(all_sent)
        return Speed(samples / seconds, seconds - communication, communication, int(all_sent[0]), waiting)

    def _now(self) -> NDArray[np.float64]:
        """Seconds, those in communication and in waiting, those of each of `KINDS`, bytes sent, and samples."""
        recorder = self._grid.recorder
        communication, spent = recorder.communication_seconds, map(recorder.computing_seconds.get, KINDS, repeat(0.0))
        own = communication, recorder.waiting_seconds, *spent, recorder.bytes_sent
        return np.array([perf_counter(), *own, self.samples])


@dataclass(frozen=True)
class EpochResult:
    """Result of an epoch: progress with its losses, and speed and times of the steps that were done here."""

    progress: Progress
    learning_rate: float  # of the last update
    speed: Speed
    measured: MeasuredStep  # means over all epochs without a drain between them


Event = StepRecord | EvaluationRecord | StepPosition | EpochResult


class EpochSteps:
    """Training on the remaining minibatches of an epoch, once each, and on those of later ones; collective.

    The minibatches of all epochs are one program: the pipeline of an asynchronous method drains only after the last.
    Its stages end an epoch, or reach a step that is evaluated, at different times: each copies its own weights then.
    Its records, evaluations and results of epochs follow in order when the pipeline has drained.

    `state` counts the steps from the progress before the first of them. While results of epochs are emitted it has the
    progress after these epochs, and otherwise that after the last update.

    `emit` is called with the `StepRecord` of every logged step, with an `EvaluationRecord` of the samples `test` every
    `evaluate_every_steps` steps, and with an `EpochResult` while the weights are those after the epoch. It returns
    whether the training ends, of interest for the result of the last epoch and for positions: see `train`.
    """

    def __init__(
        self,
        engine: Engine,
        epochs: Sequence[Sequence[Minibatch]],
        state: TrainingState,
        emit: Callable[[Event], bool],
        test: DataSplit | None = None,
    ) -> None:
        self._engine, self._epochs, self._state, self._emit, self._test = engine, epochs, state, emit, test
        self._before = state.progress
        self._exact, self._clock = engine.layout.exact, StepClock(engine.grid)
        self._minibatches = [minibatch for epoch in epochs for minibatch in epoch]
        self._losses = MinibatchLosses(engine, self._minibatches)
        self._diverged: NonFiniteLossError | None = None
        self._log_every = engine.config.log_every
        self._evaluate_every = 0 if test is None else engine.config.evaluate_every_steps
        self._copies: dict[int, list[Array]] = {}  # weights after steps, of an asynchronous method

    def train(self, split: DataSplit, *, pauses: bool = False) -> bool:
        """Train, once; whether an emitted event ends the training.

        With `pauses`, the `StepPosition` after each step of an exact method but the last is emitted too.
        """
        grid, state, start = self._engine.grid, self._state, perf_counter()
        with state.steps(self._reached):
            try:
                if self._do_steps(split, pauses=pauses and self._exact):
                    return True
            except BaseException as error:
                in_flight = grid.size > 1 or self._engine.is_updating
                if state.in_step and in_flight and not isinstance(error, NonFiniteLossError):
                    state.incomplete = IN_FLIGHT if grid.pipeline > 1 else INCOMPLETE
                raise
            finally:
                grid.recorder.end_phase("training", start, self._before.epoch)
            return self._emit_results()

    def _reached(self, done: int) -> Progress:
        """Progress after so many updates, with the losses that have been fetched; not collective."""
        progress, first, *others = self._before, *self._epochs
        for epoch in others:
            if done <= len(first):
                break
            progress, done = self._losses.known_progress(progress, len(first)).next_epoch(), done - len(first)
            first = epoch
        return self._losses.known_progress(progress, done)

    def _do_steps(self, split: DataSplit, *, pauses: bool) -> bool:
        """Do all steps; whether the training was ended between two of them.

        The pipeline of an exact method is empty between steps: records and evaluations are emitted there. With an
        asynchronous method the weights after epochs, and after steps to be evaluated, are copied.
        """
        losses, before, last, state = self._losses, self._before, self._minibatches[-1].number + 1, self._state
        ends = {epoch[-1].number + 1 for epoch in self._epochs[:-1]}
        examined = ends.union(self._evaluated(self._minibatches[0].number + 1, last))
        state.in_step = True
        for done, minibatch in enumerate(self._engine.train(split, self._minibatches, losses), 1):
            # The steps of an asynchronous method overlap.
            state.done, state.in_step = done, not self._exact
            step = minibatch.number + 1
            self._clock.samples += minibatch.size
            if step % self._log_every == 0:
                if self._exact:
                    losses.fetch(done)  # waits for the device, so that the mark is at the end of the step
                self._clock.mark(RECORD)
                if self._exact:
                    self._emit(self._record(minibatch, losses.means[-1], before.epoch))
            if step in ends:
                self._clock.mark(EPOCH)
            if step in examined:
                with self._clock.paused():
                    if self._exact:
                        self._emit(self._evaluation(step, before.epoch))
                    elif step < last:
                        self._copies[step] = self._engine.copy_weights()
            if pauses and step < last:
                progress = partial(losses.progress, before, done)
                # What ranks agree on there, such as a checkpoint that is due, depends on the clock and is no training.
                with self._clock.paused():
                    if self._emit(StepPosition(step, before.minibatches + done, minibatch.rate, progress)):
                        return True
            if self._exact:
                state.end_step()
            state.in_step = True
        state.end_step()
        try:
            losses.fetch(len(self._minibatches))
        except NonFiniteLossError as error:  # raised by `_emit_results`, after the records of earlier steps
            self._diverged = error
        return False

    def _emit_results(self) -> bool:
        """End the measurement, and emit the results of the epochs, with the records of an asynchronous method."""
        self._clock.mark(EPOCH)
        measured = self._clock.measured_step(self._before.epoch, len(self._minibatches))
        progress, means, stops = self._before, self._losses.means, False
        for epoch in self._epochs:
            first, end = progress.step, epoch[-1].number + 1
            if not self._exact:
                for minibatch, loss in zip(epoch, means[first - self._before.step :], strict=False):
                    if (minibatch.number + 1) % self._log_every == 0:
                        self._emit(self._record(minibatch, loss, progress.epoch))
            if self._diverged is not None and len(means) < end - self._before.step:
                raise self._diverged
            progress = self._losses.progress(progress, len(epoch))
            if not self._exact:
                for step in self._evaluated(first + 1, end):
                    self._emit(self._evaluation(step, progress.epoch))
            times = self._clock.read(EPOCH), replace(measured, epoch=progress.epoch)
            with self._engine.other_weights(self._copies.get(end)), self._state.shown_as_of(end):
                stops = self._emit(EpochResult(progress, epoch[-1].rate, *times))
            progress = progress.next_epoch()
        return stops

    def _record(self, minibatch: Minibatch, loss: float, epoch: int) -> StepRecord:
        return StepRecord(minibatch.number + 1, epoch, loss, minibatch.rate, **asdict(self._clock.read(RECORD)))

    def _evaluated(self, first: int, last: int) -> range:
        """The steps from `first` to `last` that are evaluated."""
        every = self._evaluate_every
        return range(-(-first // every) * every, last + 1, every) if every else range(0)

    def _evaluation(self, step: int, epoch: int) -> EvaluationRecord:
        assert self._test is not None
        with self._engine.other_weights(self._copies.get(step)):
            found = self._engine.evaluate(self._test)
        return EvaluationRecord(step, epoch, found.loss, found.accuracy, found.r2)
