"""The folders of checkpoints: their names, what is left over, and how one takes its place.

``step-00001234`` is a checkpoint. Everything else that is made here begins with a dot and is removed by `clean`:
``.step-00001234.partial`` is being written, ``.step-00001234.removed`` is being deleted, and
``.step-00001234.replaced`` makes room for a new checkpoint of the same step; should that not come, this is the one.
What bears such a name and is a file or a broken link is a damaged checkpoint: passed over, and removed in its turn.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from hybridnn.comm.file_io import sync
from hybridnn.utils.files import folder_names

_NAME = re.compile(r"(?:step-(\d{8,18})|\.step-(\d{8,18})\.(partial|removed|replaced))", re.ASCII)


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step belongs."""
    return folder / f"step-{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Where it is written."""
    return _hidden(step_folder(folder, step), "partial")


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, finished or not.

    Raises
    ------
    ValueError
        If it is not the name of one.
    """
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path} is not the folder of a checkpoint")
    return int(found[1] or found[2])


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; none where it does not exist.

    Raises
    ------
    DataError
        If it is no folder or cannot be read.
    """
    finished = {step_of(path): path for path in _ours(folder, "replaced")}
    finished |= {step_of(path): path for path in _ours(folder, None)}
    return [finished[step] for step in sorted(finished, reverse=True)]


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def clean(folder: Path) -> None:
    """Remove what a run that was stopped left over; only for the one job that writes to `folder`."""
    for path in _ours(folder, "replaced"):
        finished = step_folder(folder, step_of(path))
        if not os.path.lexists(finished):
            path.rename(finished)
        else:
            _delete(path)
    for kind in ("partial", "removed"):
        for path in _ours(folder, kind):
            _delete(path)


def publish(partial: Path, finished: Path) -> None:
    """Give a checkpoint that is complete and on disk its name, in place of an older one of the same step."""
    sync(partial)
    replaced = _hidden(finished, "replaced")
    if os.path.lexists(finished):
        _rename_over(finished, replaced)
    partial.rename(finished)
    sync(finished.parent)
    if os.path.lexists(replaced):
        _delete(replaced)


def prune(folder: Path, keep: int, newest: int | None = None) -> None:
    """Remove all but the `keep` newest checkpoints.

    Parameters
    ----------
    folder : Path
    keep : int
        At least 1.
    newest : int, optional
        The step just written. What is there of later steps belongs to a training that was given up: it was damaged, or
        this one started again from before it.
    """
    paths = checkpoint_folders(folder)
    given_up = [path for path in paths if newest is not None and step_of(path) > newest]
    for path in given_up + paths[len(given_up) :][keep:]:
        remove(path)


def remove(path: Path) -> None:
    """Delete a checkpoint; one that is half deleted does not bear the name of a checkpoint."""
    removed = _hidden(path, "removed")
    _rename_over(path, removed)
    _delete(removed)


def _rename_over(path: Path, target: Path) -> None:
    """Rename a folder to a name that an attempt which failed may have left behind."""
    if os.path.lexists(target):
        _delete(target)
    path.rename(target)


def _delete(path: Path) -> None:
    """Remove a folder with all that is in it, or a file or a link, and not what the link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".step-{step_of(path):08d}.{kind}")


def _ours(folder: Path, kind: str | None) -> list[Path]:
    """What bears a name of one kind; None: of checkpoints."""
    matches = ((name, _NAME.fullmatch(name)) for name in folder_names(folder))
    return [folder / name for name, found in matches if found is not None and found[3] == kind]
