"""Callbacks of a run: checkpoints and stop signals between two steps, best weights, and patience.

Signals and elapsed time, which differ between ranks, are agreed on by a small all-reduce about every
`AGREEMENT_SECONDS`, not after every step.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import AbstractContextManager, suppress
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from types import FrameType
from typing import Any

import numpy as np

from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.comm.agreement import agree
from hybridnn.comm.mpi import is_in_process
from hybridnn.errors import DataError, EnvironmentProblem, StoppedBySignal
from hybridnn.nn.parameters import parameter_shapes
from hybridnn.runs.folder import RunFolder
from hybridnn.runs.records import best_epoch, epochs_without_improvement, score
from hybridnn.runs.run_files import BEST_WEIGHTS, read_best_weights
from hybridnn.training.records import EpochRecord, Progress, StepPosition
from hybridnn.training.trained_network import Callback, TrainedNetwork
from hybridnn.training.trainer import Trainer
from hybridnn.utils.processes import REPEAT_SECONDS
from hybridnn.utils.settings_models import seconds_of
from hybridnn.utils.text import command_argument

AGREEMENT_SECONDS = 0.02  # approximate time between two agreements; at the end of an epoch there always is one
MOST_STEPS = 1 << 16  # upper limit of the steps between two agreements

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
INTERRUPTED = b"\ninterrupted: a checkpoint is written at the next step boundary; Ctrl-C again ends the run at once\n"


class StopSignals(AbstractContextManager["StopSignals"]):
    """Context that records the first of `SIGNALS`: the run then finishes its step, writes a checkpoint and exits.

    Slurm sends SIGUSR1 before the time limit (``--signal`` in batch scripts) and SIGTERM for ``scancel`` and
    preemption; Ctrl-C sends SIGINT, replaced by SIGUSR2 where a launcher would end the ranks on SIGINT
    (`hybridnn.cli.ranks`). A second signal ends the process immediately, unless it follows within `REPEAT_SECONDS`.
    Without such a context, Ctrl-C raises ``KeyboardInterrupt``, in `Trainer.fit` of a single process after the step.
    `received` is the number of the first signal, or 0.

    In threads other than the main one it does nothing. If SIGINT is ignored, as in background commands of a shell, it
    stays ignored. Of ranks in one process, which leave the context in any order, only the one with `announces` installs
    handlers; it also prints on standard error, once, that an interrupt was received.
    """

    def __init__(self, *, announces: bool = False) -> None:
        self._announces = announces
        self.received = 0
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        installs = self._announces or not is_in_process()
        if installs and threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGINT} if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else set()
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS if number not in ignored}
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        number = signal.SIGINT if number == signal.SIGUSR2 else number
        if self.received and monotonic() - self._when > REPEAT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.received:
            self.received, self._when = number, monotonic()
            if self._announces and number == signal.SIGINT:
                os.write(2, INTERRUPTED)  # the signal may have come in the middle of a print


class Checkpoints(Callback):
    """Writes checkpoints between steps and stops the training after a signal.

    `every` is in steps, or seconds as text. The current step of the trainer counts as saved: step 0, or that of the
    checkpoint it was resumed from. `stopped_by` is the number of the signal that stopped the training, or 0.
    """

    def __init__(
        self, every: int | str | None, trainer: Trainer, writer: CheckpointWriter, signals: StopSignals
    ) -> None:
        self._every_seconds = None if every is None else seconds_of(every)
        self._every_steps = every if isinstance(every, int) else None
        self.trainer, self.writer, self._signals = trainer, writer, signals
        self._written_at = self._agreed_at = perf_counter()
        self._last_step = self._checkpoint_step = trainer.step
        self._stride = self._steps_to_agreement = 1
        self.stopped_by = 0
        self._last_checkpoint: Path | None = None

    def between_steps(self, trainer: TrainedNetwork, reached: StepPosition) -> bool:
        """Write a checkpoint if one is due; whether to stop the training. Collective."""
        due = self._passed_multiple(reached.step)
        self._steps_to_agreement -= 1
        if self._steps_to_agreement <= 0 or reached.minibatches == 0:
            due |= self._agree()
        if self.stopped_by:
            self.finish()
            with self._writing():
                self._last_checkpoint = self.writer.write(reached.progress())
            return True
        if due:
            self._write(reached.progress())
        return False

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is on disk; collective."""
        if self.writer.busy:
            with self._writing():
                self.writer.finish()

    def end(self, progress: Progress) -> None:
        """Write a checkpoint of the end of the training, unless the newest one is of this step; collective.

        Raises `EnvironmentProblem` as for `CheckpointWriter.finish`.
        """
        self.finish()
        if self._checkpoint_step != progress.step:
            with self._writing():
                self.writer.write(progress)

    def stop_error(self, folder: Path) -> StoppedBySignal:
        """The error that ends the run in `folder` after a signal."""
        stopped = f"stopped by {signal.Signals(self.stopped_by).name} after step {self.trainer.step}"
        return StoppedBySignal(
            f"{stopped}; wrote {self._last_checkpoint}; "
            f"continue with: hybridnn train --resume {command_argument(folder)}",
            interrupted=self.stopped_by == signal.SIGINT,
        )

    def _passed_multiple(self, step: int) -> bool:
        """Whether a multiple of `every` steps was passed; asynchronous methods advance by many steps per call."""
        before, self._last_step = self._last_step, step
        return self._every_steps is not None and step // self._every_steps > before // self._every_steps

    def _agree(self) -> bool:
        """Agree on signals and elapsed time; whether a checkpoint is due by time."""
        now = perf_counter()
        pending = 0.0 if self.writer.is_done() else 1.0
        values = np.array([self._signals.received, now - self._agreed_at, now - self._written_at, pending])
        self.trainer.grid.world.allreduce(values, "max")
        number, since_agreed, since_written, pending = values.tolist()
        self.stopped_by = int(number)
        if self.writer.busy and not pending:
            self.writer.finish()
        change = AGREEMENT_SECONDS / max(since_agreed, 1e-6)
        self._stride = min(max(1, int(self._stride * min(change, 2.0))), MOST_STEPS)
        self._steps_to_agreement, self._agreed_at = self._stride, perf_counter()
        return self._every_seconds is not None and since_written >= self._every_seconds

    def _write(self, progress: Progress) -> None:
        self.finish()
        self.writer.begin(progress)
        self._written_at, self._checkpoint_step = perf_counter(), progress.step

    def _writing(self) -> AbstractContextManager[None]:
        return self.trainer.busy("writing a checkpoint")


class Patience(Callback):
    """Ends a training after `patience` evaluated epochs without a better `score`, counted in its history.

    The history is that of a resumed run too, so that it ends after the same epoch as an uninterrupted one.
    """

    def __init__(self, patience: int, monitor: str) -> None:
        self._patience, self._monitor = patience, monitor

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """End the training if that many epochs have brought no improvement."""
        trainer.stop_training = epochs_without_improvement(trainer.history.epochs, self._monitor) >= self._patience


def restore_best_weights(trainer: Trainer, folder: Path, monitor: str) -> int | None:
    """Load the weights of the best epoch of the run in `folder`, and return the epoch; collective.

    It is None if no epoch has a finite score. Raises `DataError` on every rank if the weights cannot be read.
    """
    if best_epoch(trainer.history.epochs, monitor) is None:
        return None
    best = agree(trainer.grid.world, lambda: read_best_weights(folder))
    trainer.load_weights({name: best.arrays[name] for name in parameter_shapes(trainer.model)})
    return best.epoch


class BestWeights(Callback):
    """Writes ``best-weights.npz`` after every epoch with a better `score` than all before, also before a resumption.

    The folder is None on ranks other than 0; `monitor` is ``auto``, or of `MONITORS`.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder | None, monitor: str) -> None:
        self._trainer, self._folder, self._monitor = trainer, folder, monitor
        self._metric = agree(trainer.grid.world, self._metric_of_file)

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        """Write the current weights if the epoch that has just ended is the best so far; collective.

        Raises `EnvironmentProblem` on every rank: the file cannot be written.
        """
        found = score(record, self._monitor)
        if found is None:
            return
        world = trainer.grid.world
        improves = np.array([self._folder is not None and found > self._metric], np.int64)
        world.broadcast(improves)  # rank 0 alone has read the file
        if not improves[0]:
            return
        self._metric = found
        with self._trainer.busy("writing the best weights"):
            arrays = {**trainer.weights(), "epoch": record.epoch, "step": record.step, "metric": found}
            agree(world, lambda: None if self._folder is None else self._folder.write_arrays(BEST_WEIGHTS, arrays))

    def _metric_of_file(self) -> float:
        """Score of the weights in the file; a file of an epoch that is not in the history is removed."""
        if self._folder is None:
            return -inf
        with suppress(DataError):
            best = read_best_weights(self._folder.path)
            records = self._trainer.history.epochs
            epochs = {(record.epoch, record.step, score(record, self._monitor)) for record in records}
            if (best.epoch, best.step, best.metric) in epochs:
                return best.metric
        try:
            (self._folder.path / BEST_WEIGHTS).unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"{error.filename}: cannot be removed: {error.strerror}") from error
        return -inf
