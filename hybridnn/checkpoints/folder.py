"""Folders of checkpoints: their names, publication, pruning, and removal of leftovers.

``step-00001234`` is a checkpoint. All temporary names begin with a dot and are removed by `clean`:
``.step-00001234.partial`` is being written, ``.step-00001234.removed`` is being deleted, and
``.step-00001234.replaced`` is replaced by a new checkpoint of the same step; until that has its name, it is the
checkpoint. A file or a broken link with such a name is a damaged checkpoint: skipped, and removed like the others.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from hybridnn.checkpoints.file_io import sync
from hybridnn.utils.files import folder_names

_NAME = re.compile(r"(?:step-(\d{8,18})|\.step-(\d{8,18})\.(partial|removed|replaced))", re.ASCII)


def step_folder(folder: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def partial_folder(folder: Path, step: int) -> Path:
    """Temporary folder in which the checkpoint of a step is written."""
    return _hidden(step_folder(folder, step), "partial")


def step_of(path: Path) -> int:
    """Step of the folder of a checkpoint, finished or not; ``ValueError`` if it has another name."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise ValueError(f"{path} is not the folder of a checkpoint")
    return int(found[1] or found[2])


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; none if it does not exist.

    Raises `DataError` if it is no folder or cannot be read.
    """
    finished = {step_of(path): path for path in _paths(folder, "replaced")}
    finished |= {step_of(path): path for path in _paths(folder, None)}
    return [finished[step] for step in sorted(finished, reverse=True)]


def clean(folder: Path) -> None:
    """Remove leftovers of an interrupted run; only for the one job that writes to `folder`."""
    for path in _paths(folder, "replaced"):
        finished = step_folder(folder, step_of(path))
        if not os.path.lexists(finished):
            path.rename(finished)
        else:
            _delete(path)
    for kind in ("partial", "removed"):
        for path in _paths(folder, kind):
            _delete(path)


def publish(partial: Path, finished: Path) -> None:
    """Rename a checkpoint that is complete and on disk to its final name, replacing an older one of the same step."""
    sync(partial)
    replaced = _hidden(finished, "replaced")
    if os.path.lexists(finished):
        _rename_over(finished, replaced)
    partial.rename(finished)
    sync(finished.parent)
    if os.path.lexists(replaced):
        _delete(replaced)


def prune(folder: Path, keep: int, newest: int) -> None:
    """Remove all but the `keep` newest checkpoints.

    Those of steps after `newest`, the step just written, are removed too: the training continued from before them.
    """
    paths = checkpoint_folders(folder)
    abandoned = [path for path in paths if step_of(path) > newest]
    for path in abandoned + paths[len(abandoned) :][keep:]:
        removed = _hidden(path, "removed")  # a partly deleted folder does not have the name of a checkpoint
        _rename_over(path, removed)
        _delete(removed)


def _rename_over(path: Path, target: Path) -> None:
    """Rename a folder, replacing what a failed attempt may have left under the new name."""
    if os.path.lexists(target):
        _delete(target)
    path.rename(target)


def _delete(path: Path) -> None:
    """Delete a folder with its contents, a file, or a link but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".step-{step_of(path):08d}.{kind}")


def _paths(folder: Path, kind: str | None) -> list[Path]:
    """Paths in `folder` with a temporary name of one kind; None: with the name of a checkpoint."""
    matches = ((name, _NAME.fullmatch(name)) for name in folder_names(folder))
    return [folder / name for name, found in matches if found is not None and found[3] == kind]
