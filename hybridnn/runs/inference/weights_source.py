"""Where the weights of a run are: in the file it wrote at its end, or in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.checkpoints.reading import Checkpoint, newest_valid, open_checkpoint
from hybridnn.comm.agreement import agree
from hybridnn.comm.group import Group
from hybridnn.errors import DataError, SettingError
from hybridnn.runs.folder import BEST_WEIGHTS, CHECKPOINTS, WEIGHTS
from hybridnn.runs.history_file import read_history, read_valid_history, run_status
from hybridnn.training.records import best_epoch
from hybridnn.utils.files import read_npz


@dataclass(frozen=True)
class WeightsSource:
    """The file, or the folder of a checkpoint, that weights are read from.

    Attributes
    ----------
    path : Path
    step : int or None
        Updates that made the weights; None where the history of the run cannot tell.
    damaged : tuple of str
        Newer checkpoints that were passed over, and why.
    checkpoint : Checkpoint or None
        None where `path` is a weights file.
    arrays : mapping or None
        Of the file, where they have been read already.
    """

    path: Path
    step: int | None
    damaged: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    arrays: Mapping[str, NDArray[Any]] | None = field(default=None, repr=False)

    def read(self) -> Mapping[str, NDArray[Any]]:
        """Global arrays ``layers.<i>.weight`` and ``layers.<i>.bias``.

        Raises
        ------
        DataError
            If a file cannot be read.
        """
        if self.arrays is not None:
            return self.arrays
        return read_npz(self.path) if self.checkpoint is None else self.checkpoint.weights()


def find_weights(
    folder: Path, checkpoint: str | None = None, group: Group | None = None, *, best: bool = False
) -> WeightsSource:
    """The weights that a run ended with, else those of its newest valid checkpoint.

    Parameters
    ----------
    folder : Path
        The run's.
    checkpoint : str, optional
        Name of the checkpoint to take instead, such as ``step-00001234``.
    group : Group, optional
        Ranks that share the work of verifying checkpoints; collective over it, and the same on all.
    best : bool
        Take the weights of the epoch with the best test metric instead.

    Raises
    ------
    SettingError
        If there is no checkpoint of that name, or both it and the best weights are named.
    DataError
        If the run has no weights, or only damaged ones.
    """
    is_first = group is None or group.rank == 0
    checkpoints = folder / CHECKPOINTS
    if best and checkpoint is not None:
        raise SettingError("--best", True, "does not go with --checkpoint")
    if best:
        return _best_weights(folder) if group is None else agree(group, lambda: _best_weights(folder))
    if checkpoint is not None:
        return _named_checkpoint(checkpoints, checkpoint, group, is_first=is_first)
    written = is_first and os.path.lexists(folder / WEIGHTS)
    facts = np.array([written, written and run_status(folder) == "finished"], np.int64)
    if group is not None:
        group.broadcast(facts)
    has_file, ended = facts
    if ended:
        return WeightsSource(folder / WEIGHTS, _last_step(folder))
    newest, damaged = newest_valid(checkpoints, group)
    if newest is None:
        if has_file:  # of a run that goes on, from before
            return WeightsSource(folder / WEIGHTS, None, tuple(damaged))
        no_weights = f"{folder}: no {WEIGHTS}, which a run writes at its end"
        raise DataError(f"{no_weights}, and no valid checkpoint{': ' if damaged else ''}{'; '.join(damaged)}")
    return _of_checkpoint(newest, damaged)


def _best_weights(folder: Path) -> WeightsSource:
    """The weights of the best epoch, with a warning where the history has a better one."""
    path = folder / BEST_WEIGHTS
    if not path.exists():
        raise DataError(
            f"{folder}: no {BEST_WEIGHTS}, which a run with training.keep_best writes after an evaluated epoch"
        )
    arrays = read_npz(path)
    try:
        epoch, step, metric = int(arrays["epoch"]), int(arrays["step"]), float(arrays["metric"])
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: does not name its epoch, step and metric") from error
    epochs = read_valid_history(folder)[0].epochs
    best = best_epoch(epochs)
    damaged: tuple[str, ...] = ()
    if epoch not in [record.epoch for record in epochs]:
        damaged = (f"{path}: of epoch {epoch}, which the history of the run does not have",)
    elif best is not None and best.metric is not None and best.metric > metric:
        better = f"epoch {best.epoch} with {best.metric:.4f} was better"
        damaged = (f"{path}: of epoch {epoch} with {metric:.4f}; {better}; its weights are not kept",)
    return WeightsSource(path, step, damaged, arrays=arrays)


def _named_checkpoint(folder: Path, name: str, group: Group | None, *, is_first: bool) -> WeightsSource:
    def require_it() -> None:
        names = [path.name for path in checkpoint_folders(folder)] if is_first else [name]
        if name not in names:
            raise SettingError("--checkpoint", name, f"not in {folder}, which holds {', '.join(names) or 'none'}")

    require_it() if group is None else agree(group, require_it)
    found = open_checkpoint(folder / name, group)
    if isinstance(found, str):
        raise DataError(found)
    return _of_checkpoint(found, [])


def _of_checkpoint(found: Checkpoint, damaged: list[str]) -> WeightsSource:
    return WeightsSource(found.path, found.manifest.progress.step, tuple(damaged), found)


def _last_step(folder: Path) -> int | None:
    try:
        epochs = read_history(folder).epochs
    except DataError:
        return None
    return epochs[-1].step if epochs else None
