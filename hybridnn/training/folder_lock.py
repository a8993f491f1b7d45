"""A run folder belongs to one live job, whose first rank holds a lock; the system releases it when the process ends."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from hybridnn.errors import SettingError

__all__ = ["FolderLock"]

LOCK = ".lock"


class FolderLock:
    """A lock on a folder, held until `release` or the end of the process.

    Parameters
    ----------
    path : Path
        The locked file.
    descriptor : int
        Of it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, folder: Path) -> FolderLock:
        """Lock the folder.

        Raises
        ------
        SettingError
            If another process holds the lock.
        OSError
            If the folder cannot be written.
        """
        path = folder / LOCK
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "which has just begun"
                os.close(descriptor)
                raise SettingError("output.folder", str(folder), f"is in use by another live job, {holder}") from None
            except OSError:  # a file system without locks: nothing is protected, and nothing is lost
                break
            if _is_open_file(path, descriptor):
                break
            os.close(descriptor)  # its last holder removed the file between the two calls
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _is_open_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
