"""Between two steps: whether to write a checkpoint, whether to stop; all ranks alike.

What only one rank may know, a signal or the time, the ranks agree on with a small all-reduce, which is not done after
every step but about as often as `AGREEMENT_SECONDS` says.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter

import numpy as np

from hybridnn.checkpoints.manifest import Progress
from hybridnn.checkpoints.writing import CheckpointWriter
from hybridnn.config.settings import TrainingSettings
from hybridnn.errors import StoppedBySignal
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.runs.stop_signals import StopSignals
from hybridnn.training.epoch import StepPosition
from hybridnn.training.trainer import Trainer
from hybridnn.utils.settings_models import seconds_of

Busy = Callable[[str], AbstractContextManager[object]]
"""``busy(what)`` is a context in which nobody takes the ranks for stalled."""

AGREEMENT_SECONDS = 0.02
"""Between two agreements, about, but for the end of an epoch, where there always is one."""

MOST_STEPS = 1 << 16


class CheckpointHook:
    """Asked after every step; see `Trainer.fit`.

    Parameters
    ----------
    grid : ProcessGrid
    writer : CheckpointWriter
    signals : StopSignals
    every : int, str or None
        Steps, or seconds, between two checkpoints.
    beside : bool
        Write beside the training.
    step : int
        Steps done before, of which a run that was resumed has a checkpoint.
    busy : Busy
        Entered while a checkpoint is written.

    Attributes
    ----------
    stopped_by : int
        Number of the signal that stopped the training, or 0.
    checkpoint : Path or None
        What was written last because of it.
    reached : StepPosition or None
        How far the training was when it was last asked.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        writer: CheckpointWriter,
        signals: StopSignals,
        *,
        every: int | str | None,
        beside: bool,
        step: int,
        busy: Busy,
    ) -> None:
        self._group, self._writer, self._signals, self._beside, self._busy = grid.world, writer, signals, beside, busy
        self._every_seconds = None if every is None else seconds_of(every)
        self._every_steps = every if isinstance(every, int) else None
        self._last_written = self._last_agreed = perf_counter()
        self._last_step = self._last_checkpoint = step
        self._stride = self._until_agreement = 1
        self.stopped_by = 0
        self.checkpoint: Path | None = None
        self.reached: StepPosition | None = None

    @classmethod
    def of(
        cls,
        settings: TrainingSettings,
        trainer: Trainer,
        writer: CheckpointWriter,
        signals: StopSignals,
        busy: Busy,
    ) -> CheckpointHook:
        """As the settings of a run say."""
        return cls(
            trainer.grid,
            writer,
            signals,
            every=settings.checkpoint_every,
            beside=settings.checkpoint_async,
            step=trainer.step,
            busy=busy,
        )

    def __call__(self, reached: StepPosition) -> bool:
        """Write a checkpoint where it is time; whether to stop. Collective."""
        self.reached = reached
        due = self._is_due(reached.step)
        self._until_agreement -= 1
        if self._until_agreement <= 0 or reached.minibatches == 0:
            due |= self._agree()
        if self.stopped_by:
            self.finish()
            with self._busy("writing a checkpoint"):
                self.checkpoint = self._writer.write(reached.progress())
            return True
        if due:
            self._write(reached.progress())
        return False

    def finish(self) -> None:
        """Return when a checkpoint that is being written is on disk; collective."""
        if self._writer.busy:
            with self._busy("writing a checkpoint"):
                self._writer.finish()

    def end(self, progress: Progress) -> None:
        """Write a checkpoint of the end of the training, unless the newest one is of this step; collective.

        Raises
        ------
        EnvironmentProblem
            As for `CheckpointWriter.finish`.
        """
        self.finish()
        if self._last_checkpoint != progress.step:
            with self._busy("writing a checkpoint"):
                self._writer.write(progress)

    def _is_due(self, step: int) -> bool:
        """Whether a multiple of `every` steps was passed; an asynchronous method comes here with many steps at once."""
        before, self._last_step = self._last_step, step
        return self._every_steps is not None and step // self._every_steps > before // self._every_steps

    def _agree(self) -> bool:
        """Learn of signals and of time gone by; whether a checkpoint is due."""
        now = perf_counter()
        elapsed, since_written = now - self._last_agreed, now - self._last_written
        pending = 0.0 if self._writer.written() else 1.0
        told = np.array([self._signals.received, elapsed, since_written, pending])
        self._group.allreduce(told, "max")
        number, elapsed, since_written, pending = told.tolist()
        self.stopped_by = int(number)
        if self._writer.busy and not pending:
            self._writer.finish()
        faster = AGREEMENT_SECONDS / max(elapsed, 1e-6)
        self._stride = min(max(1, int(self._stride * min(faster, 2.0))), MOST_STEPS)
        self._until_agreement, self._last_agreed = self._stride, perf_counter()
        return self._every_seconds is not None and since_written >= self._every_seconds

    def _write(self, progress: Progress) -> None:
        self.finish()
        if self._beside:
            self._writer.begin(progress)
        else:
            with self._busy("writing a checkpoint"):
                self._writer.write(progress)
        self._last_written, self._last_checkpoint = perf_counter(), progress.step


def stopped_by_signal(boundary: CheckpointHook, step: int, folder: Path) -> StoppedBySignal:
    """The error that ends a run after a signal."""
    name = signal.Signals(boundary.stopped_by).name
    return StoppedBySignal(
        f"stopped by {name} after step {step}; wrote {boundary.checkpoint}; "
        f"go on with: hybridnn train --resume {folder}",
        interrupted=boundary.stopped_by == signal.SIGINT,
    )
