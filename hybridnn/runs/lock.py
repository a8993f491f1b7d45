"""Folder lock: held by one live process and released by the operating system when the process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from hybridnn.errors import SettingError

LOCK = ".lock"

PROBE_SECONDS = 0.05  # delay of the second try to lock: longer than `FolderLock.holder` holds a free lock


class FolderInUse(SettingError):  # noqa: N818 - no error if several processes share the work
    """A folder is locked by another process: `holder`, such as ``"process 17 on n1"``."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__("output.folder", str(folder), f"is in use by another live job, {holder}")
        self.holder = holder


class FolderLock(AbstractContextManager["FolderLock"]):
    """A lock on a folder, held until `release` or the end of the process; a context manager that releases it.

    On a file system without locks it has no effect.

    Attributes
    ----------
    descriptor : int
        Of the locked file. A process that inherits it also holds the lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self.descriptor = path, descriptor
        self._is_held = True

    @classmethod
    def take(cls, folder: Path, name: str = LOCK) -> FolderLock:
        """Lock the folder by its file `name`.

        Raises
        ------
        FolderInUse
            If another process holds the lock.
        OSError
            If the folder cannot be written.
        """
        path = folder / name
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                held = not _locked(descriptor, fcntl.LOCK_EX) and not _locked(descriptor, fcntl.LOCK_EX, PROBE_SECONDS)
            except OSError:
                break
            if held:
                holder = _holder_in(descriptor)
                os.close(descriptor)
                raise FolderInUse(folder, holder)
            with suppress(FileNotFoundError):  # its last holder has removed the file between the two calls
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    break
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return cls(path, descriptor)

    @staticmethod
    def holder(folder: Path, name: str = LOCK) -> str | None:
        """Return the process that holds the lock of a folder, or None without one or without locks."""
        try:
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return None if _locked(descriptor, fcntl.LOCK_SH) else _holder_in(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the lock; other processes can take it."""
        if self._is_held:
            self._path.unlink(missing_ok=True)
            os.close(self.descriptor)
            self._is_held = False

    def __exit__(self, *exception: object) -> None:
        """Release the lock."""
        self.release()


def _locked(descriptor: int, kind: int, wait: float = 0.0) -> bool:
    """Try to lock the open file after `wait` seconds; whether it worked."""
    time.sleep(wait)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_in(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "which has just begun"
