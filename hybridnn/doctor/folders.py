"""Folders that hybridnn writes to, the shared memory of the node, and the room that is left there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hybridnn.comm.node_memory import SHARED_MEMORY
from hybridnn.doctor.finding import Finding
from hybridnn.doctor.words import size_of

__all__ = ["check_cache_folder", "check_shared_memory_room", "check_working_folder"]

LITTLE_DISK = 1 << 30
LITTLE_SHARED_MEMORY = 256 << 20
WINDOWS = Path(SHARED_MEMORY)

Free = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Bytes that are free where a path lies."""
    return shutil.disk_usage(path).free


def _at_least(room: int) -> str:
    """The room in words that stay the same while other programs write: rounded down to a power of two."""
    return f"at least {size_of(1 << room.bit_length() - 1 if room else 0)} free"


def check_cache_folder(folder: Path, free: Free = free_bytes) -> Finding:
    """Whether data sets can be downloaded to their folder, which need not be there yet."""
    return _check_folder("cache folder", folder, "export HYBRIDNN_CACHE=FOLDER with one that you can write to", free)


def check_working_folder(folder: Path, free: Free = free_bytes) -> Finding:
    """Whether runs and checkpoints can be written where hybridnn was started."""
    return _check_folder("working folder", folder, "go to a folder that you can write to, or set output.folder", free)


def check_shared_memory_room(folder: Path = WINDOWS, free: Free = free_bytes) -> Finding | None:
    """Whether the ranks of a node have room for what they share; None where shared memory is no folder."""
    if not folder.is_dir():
        return None
    room = free(folder)
    what = f"{_at_least(room)} in {folder}"
    if room < LITTLE_SHARED_MEMORY:
        advice = "messages and data of a node's ranks pass there: enlarge it (docker run --shm-size=2g), or empty it"
        return Finding("shared memory room", "warning", what, advice)
    return Finding("shared memory room", "ok", what)


def _check_folder(name: str, folder: Path, advice: str, free: Free) -> Finding:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is not a folder")
        # A file that is really written: permissions do not tell of quotas and read-only mounts.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"hybridnn")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(name, "failure", f"{folder} cannot be written to: {error.strerror or error}", advice)
    room = free(place)
    what = f"{folder} can be written to, {_at_least(room)}"
    if room < LITTLE_DISK:
        return Finding(name, "warning", what, f"make room, or {advice}")
    return Finding(name, "ok", what)
