"""Where the weights of a run are: in the file it wrote at its end, or in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import agree
from hybridnn.comm.group import Group
from hybridnn.errors import DataError, SettingError
from hybridnn.npz_files import read_npz
from hybridnn.training.checkpoints.folder import checkpoint_folders
from hybridnn.training.checkpoints.reading import Checkpoint, newest_sound, open_checkpoint
from hybridnn.training.history_file import read_history, run_status
from hybridnn.training.run_folder import CHECKPOINTS, WEIGHTS

__all__ = ["WeightsSource", "find_weights"]


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
    """

    path: Path
    step: int | None
    damaged: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = field(default=None, repr=False)

    def read(self) -> Mapping[str, NDArray[Any]]:
        """Global arrays ``layers.<i>.weight`` and ``layers.<i>.bias``.

        Raises
        ------
        DataError
            If a file cannot be read.
        """
        return read_npz(self.path) if self.checkpoint is None else self.checkpoint.weights()


def find_weights(folder: Path, checkpoint: str | None = None, group: Group | None = None) -> WeightsSource:
    """The weights that a run ended with, else those of its newest sound checkpoint.

    Parameters
    ----------
    folder : Path
        The run's.
    checkpoint : str, optional
        Name of the checkpoint to take instead, such as ``step-00001234``.
    group : Group, optional
        Ranks that share the work of verifying checkpoints; collective over it, and the same on all.

    Raises
    ------
    SettingError
        If there is no checkpoint of that name.
    DataError
        If the run has no weights, or only damaged ones.
    """
    is_first = group is None or group.rank == 0
    checkpoints = folder / CHECKPOINTS
    if checkpoint is not None:
        return _named_checkpoint(checkpoints, checkpoint, group, is_first=is_first)
    written = is_first and os.path.lexists(folder / WEIGHTS)
    facts = np.array([written, written and run_status(folder) == "finished"], np.int64)
    if group is not None:
        group.broadcast(facts)
    has_file, ended = facts
    if ended:
        return WeightsSource(folder / WEIGHTS, _last_step(folder))
    newest, damaged = newest_sound(checkpoints, group)
    if newest is None:
        if has_file:  # of a run that goes on, from before
            return WeightsSource(folder / WEIGHTS, None, tuple(damaged))
        no_weights = f"{folder}: no {WEIGHTS}, which a run writes at its end"
        raise DataError(f"{no_weights}, and no sound checkpoint{': ' if damaged else ''}{'; '.join(damaged)}")
    return _of_checkpoint(newest, damaged)


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
