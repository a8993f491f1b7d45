"""A run as others need to know it when one of its ranks is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.runs.folder import CHECKPOINTS

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.checkpoints.manifest import Progress
    from hybridnn.checkpoints.writing import CheckpointWriter
    from hybridnn.runs.checkpoint_hook import CheckpointHook
    from hybridnn.training.trainer import Trainer


@dataclass
class RecoveryState:
    """The ranks of a run, and what it has come to on this rank; the run itself fills it in.

    Attributes
    ----------
    comm : MPI.Intracomm or None
        The ranks to train on; None for all of the job.
    outlives_losses : bool
        Whether the caller goes on when a rank is lost; else the loss ends the job.
    folder : Path or None
        Of the run, once it is known.
    trainer : Trainer or None
    boundary : CheckpointHook or None
    writer : CheckpointWriter or None
        Those of the run, once it trains.
    new_writer : callable or None
        Makes another such writer for the grid that it is given.
    on_begin : callable
        Called then.
    """

    comm: MPI.Intracomm | None = None
    outlives_losses: bool = False
    folder: Path | None = None
    trainer: Trainer | None = None
    boundary: CheckpointHook | None = None
    writer: CheckpointWriter | None = None
    new_writer: Callable[..., CheckpointWriter] | None = None
    on_begin: Callable[[], None] | None = None

    @property
    def progress(self) -> Progress | None:
        """How far this rank came, where its weights are those of a moment between two steps; else None."""
        reached = None if self.boundary is None else self.boundary.reached
        if self.trainer is None or reached is None or reached.step != self.trainer.step:
            return None
        return reached.progress()

    def begin(
        self,
        trainer: Trainer,
        boundary: CheckpointHook,
        writer: CheckpointWriter,
        new_writer: Callable[..., CheckpointWriter],
    ) -> None:
        """Note that the training begins."""
        self.trainer, self.boundary, self.writer, self.new_writer = trainer, boundary, writer, new_writer
        if self.on_begin is not None:
            self.on_begin()


def resume_advice(folder: Path | None) -> str:
    """What to do after a loss, in one line."""
    newest = [] if folder is None else checkpoint_folders(folder / CHECKPOINTS)[:1]
    if not newest:
        return (
            "No checkpoint was written yet; start again, with training.checkpoint_every where that would cost too much."
        )
    return f"The newest checkpoint is {newest[0].name}; go on with: hybridnn train --resume {folder}"
