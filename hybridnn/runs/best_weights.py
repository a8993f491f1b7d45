"""Best weights: those of the evaluated epoch with the best test metric, in addition to those of the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.runs.folder import BEST_WEIGHTS, RunFolder
from hybridnn.training.records import EpochRecord
from hybridnn.training.trainer import Trainer
from hybridnn.utils.files import read_npz


class BestWeights:
    """Writes ``best-weights.npz`` after every epoch with a better test metric than all before.

    Parameters
    ----------
    trainer : Trainer
        With the records of earlier epochs if the run was resumed.
    folder : RunFolder or None
        None on ranks other than 0.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder | None) -> None:
        self._trainer, self._folder = trainer, folder
        self._metric = -inf
        agree(trainer.grid.world, self._resume_file)

    def _resume_file(self) -> None:
        """Start from the metric of the file; a file of an epoch that is not in the history is removed."""
        if self._folder is None:
            return
        self._metric = _metric_of_file(self._folder.path, self._trainer.history.epochs)
        if self._metric == -inf:
            try:
                (self._folder.path / BEST_WEIGHTS).unlink(missing_ok=True)
            except OSError as error:
                raise EnvironmentProblem(f"{error.filename}: cannot be removed: {error.strerror}") from error

    def __call__(self, record: EpochRecord) -> None:
        """Write the current weights if the epoch that has just ended is the best so far; collective.

        Raises
        ------
        EnvironmentProblem
            On every rank: the file cannot be written.
        """
        if record.metric is None:
            return
        world = self._trainer.grid.world
        improves = np.array([self._folder is not None and record.metric > self._metric], np.int64)
        world.broadcast(improves)  # rank 0 alone has read the file
        if not improves[0]:
            return
        self._metric = record.metric
        with self._trainer.busy("writing the best weights"):
            weights = self._trainer.weights()
            agree(world, lambda: None if self._folder is None else self._folder.write_best_weights(weights, record))


def _metric_of_file(folder: Path, epochs: Sequence[EpochRecord]) -> float:
    """Test metric of the weights in the file; minus infinity if they are of no epoch in the history."""
    path = folder / BEST_WEIGHTS
    if not path.exists():
        return -inf
    try:
        arrays = read_npz(path)
        epoch_key = (int(arrays["epoch"]), int(arrays["step"]), float(arrays["metric"]))
    except (DataError, LookupError, TypeError, ValueError):
        return -inf
    found = next((record for record in epochs if (record.epoch, record.step, record.metric) == epoch_key), None)
    return -inf if found is None or found.metric is None else found.metric
