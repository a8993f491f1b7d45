"""The weights of the best evaluated epoch of a run, kept beside those of its end."""

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
    """Writes ``best-weights.npz`` after every epoch whose test metric is above that of all weights kept before.

    Parameters
    ----------
    trainer : Trainer
        With the records of the epochs before, where the run was resumed.
    folder : RunFolder or None
        None on ranks other than 0.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder | None) -> None:
        self._trainer, self._folder = trainer, folder
        self._metric = -inf
        agree(trainer.grid.world, self._look_at_file)

    def _look_at_file(self) -> None:
        """Go on from the weights that are kept; those of an epoch that the run no longer has are removed."""
        if self._folder is None:
            return
        self._metric = _kept_metric(self._folder.path, self._trainer.history.epochs)
        if self._metric == -inf:
            try:
                (self._folder.path / BEST_WEIGHTS).unlink(missing_ok=True)
            except OSError as error:
                raise EnvironmentProblem(f"{error.filename}: cannot be removed: {error.strerror}") from error

    def __call__(self, record: EpochRecord) -> None:
        """Keep the current weights if the epoch that has just ended is the best so far; collective.

        Raises
        ------
        EnvironmentProblem
            On every rank: the file cannot be written.
        """
        if record.metric is None:
            return
        world = self._trainer.grid.world
        improves = np.array([self._folder is not None and record.metric > self._metric], np.int64)
        world.broadcast(improves)  # rank 0 decides, since it alone has read the file
        if not improves[0]:
            return
        self._metric = record.metric
        with self._trainer.busy("writing the best weights"):
            weights = self._trainer.weights()
            agree(world, lambda: None if self._folder is None else self._folder.write_best_weights(weights, record))


def _kept_metric(folder: Path, epochs: Sequence[EpochRecord]) -> float:
    """Test metric of the weights in the file; minus infinity where they are not of an epoch of the history."""
    path = folder / BEST_WEIGHTS
    if not path.exists():
        return -inf
    try:
        arrays = read_npz(path)
        marks = (int(arrays["epoch"]), int(arrays["step"]), float(arrays["metric"]))
    except (DataError, LookupError, TypeError, ValueError):
        return -inf
    found = next((record for record in epochs if (record.epoch, record.step, record.metric) == marks), None)
    return -inf if found is None or found.metric is None else found.metric
