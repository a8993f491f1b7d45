"""Checkpoint hook: called on all ranks between two steps, it writes checkpoints and stops the training.

Signals and elapsed time, which differ between ranks, are agreed on by a small all-reduce about every
`AGREEMENT_SECONDS`, not after every step.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter

import numpy as np

from hybridnn.checkpoints.progress import Progress
from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.config.settings import TrainingSettings
from hybridnn.errors import StoppedBySignal
from hybridnn.runs.stop_signals import StopSignals
from hybridnn.training.epoch import StepPosition
from hybridnn.training.trainer import Trainer
from hybridnn.utils.settings_models import seconds_of

AGREEMENT_SECONDS = 0.02
"""Approximate time between two agreements; at the end of an epoch there always is one."""

MOST_STEPS = 1 << 16
"""Upper limit of the steps between two agreements."""


class CheckpointHook:
    """Writes checkpoints between steps and stops the training after a signal; see `should_stop` of `Trainer.fit`.

    Parameters
    ----------
    settings : TrainingSettings
        How often and in which way checkpoints are written.
    trainer : Trainer
        Its current step counts as saved: step 0, or that of the checkpoint it was resumed from.

    Attributes
    ----------
    writer : CheckpointWriter
    stopped_by : int
        Number of the signal that stopped the training, or 0.
    checkpoint : Path or None
        Checkpoint that was written because of the signal.
    reached : StepPosition or None
        Position of the training at the last call.
    """

    def __init__(
        self, settings: TrainingSettings, trainer: Trainer, writer: CheckpointWriter, signals: StopSignals
    ) -> None:
        every = settings.checkpoint_every
        self._every_seconds = None if every is None else seconds_of(every)
        self._every_steps = every if isinstance(every, int) else None
        self._is_async = settings.checkpoint_async
        self._trainer, self.writer, self._signals = trainer, writer, signals
        self._written_at = self._agreed_at = perf_counter()
        self._last_step = self._checkpoint_step = trainer.step
        self._stride = self._steps_to_agreement = 1
        self.stopped_by = 0
        self.checkpoint: Path | None = None
        self.reached: StepPosition | None = None

    def __call__(self, reached: StepPosition) -> bool:
        """Write a checkpoint if one is due; whether to stop the training. Collective."""
        self.reached = reached
        due = self._passed_multiple(reached.step)
        self._steps_to_agreement -= 1
        if self._steps_to_agreement <= 0 or reached.minibatches == 0:
            due |= self._agree()
        if self.stopped_by:
            self.finish()
            with self._writing():
                self.checkpoint = self.writer.write(reached.progress())
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

        Raises
        ------
        EnvironmentProblem
            As for `CheckpointWriter.finish`.
        """
        self.finish()
        if self._checkpoint_step != progress.step:
            with self._writing():
                self.writer.write(progress)

    def _passed_multiple(self, step: int) -> bool:
        """Whether a multiple of `every` steps was passed; asynchronous methods advance by many steps per call."""
        before, self._last_step = self._last_step, step
        return self._every_steps is not None and step // self._every_steps > before // self._every_steps

    def _agree(self) -> bool:
        """Agree on signals and elapsed time; whether a checkpoint is due by time."""
        now = perf_counter()
        pending = 0.0 if self.writer.is_done() else 1.0
        values = np.array([self._signals.received, now - self._agreed_at, now - self._written_at, pending])
        self._trainer.grid.world.allreduce(values, "max")
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
        if self._is_async:
            self.writer.begin(progress)
        else:
            with self._writing():
                self.writer.write(progress)
        self._written_at, self._checkpoint_step = perf_counter(), progress.step

    def _writing(self) -> AbstractContextManager[None]:
        return self._trainer.busy("writing a checkpoint")


def stopped_by_signal(hook: CheckpointHook, step: int, folder: Path) -> StoppedBySignal:
    """The error that ends a run after a signal."""
    name = signal.Signals(hook.stopped_by).name
    return StoppedBySignal(
        f"stopped by {name} after step {step}; wrote {hook.checkpoint}; go on with: hybridnn train --resume {folder}",
        interrupted=hook.stopped_by == signal.SIGINT,
    )
