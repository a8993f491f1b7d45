"""Run folder: resolved settings, history, learning curve and weights; and the lock of the folder.

An interrupted run never looks finished: ``weights.npz`` is written atomically and only at the end, and only a run that
completed has a last record of kind ``"end"`` in ``history.jsonl``. The last record of a run that diverged is of kind
``"diverged"``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from hybridnn.checkpoints.file_io import sync
from hybridnn.checkpoints.folder import checkpoint_folders
from hybridnn.errors import EnvironmentProblem, HybridnnError, SettingError
from hybridnn.runs.records import DivergedRecord, EndRecord, ResumeRecord, RunSummary
from hybridnn.runs.run_files import (
    BEST_WEIGHTS,
    CHECKPOINTS,
    CONFIG,
    CONFIG_END,
    HISTORY,
    LEARNING_CURVE,
    TABLE,
    WEIGHTS,
    read_records,
    run_status,
    to_line,
)
from hybridnn.training.records import EpochRecord, EvaluationRecord, MeasuredStep, Progress, Record, StepRecord
from hybridnn.utils.files import discard_partial, replace_atomically
from hybridnn.utils.text import command_argument, to_json

LOCK = ".lock"
PROBE_SECONDS = 0.05  # delay of the second try to lock: longer than `FolderLock.holder` holds a free lock

RUNS = "runs"  # folder of run folders that are not named

Start = Literal["new", "again", "resume"]
"""Start in a folder without results, again in the folder of an unfinished run, or where that run was interrupted."""


class RunFolder(contextlib.AbstractContextManager["RunFolder"]):
    """An open run folder, on rank 0; a context manager that closes it."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self._lock = lock
        self._history: io.TextIOBase | None = None

    @classmethod
    def create(cls, path: Path | str | None, name: str, start: Start = "new") -> RunFolder:
        """Create the folder, by default a new ``runs/NAME-YYYYmmdd-HHMMSS``, or open the one of an unfinished run.

        ``"again"`` replaces the weights of an unfinished run without checkpoints; ``"resume"`` keeps everything.

        Raises `SettingError` if a live job uses the folder, or it holds a finished run, weights or checkpoints that
        this run does not resume; `EnvironmentProblem` if the folder cannot be created or written.
        """
        folder = _new_folder(name) if path is None else Path(path)
        with _named_if_unwritable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock.take(folder)
            run = cls(folder, lock)
            discard_partial(folder / BEST_WEIGHTS)
            if start != "resume":
                try:
                    _require_free(folder, again=start == "again")
                except HybridnnError:
                    lock.release()
                    raise
                for name in (WEIGHTS, BEST_WEIGHTS, TABLE):
                    (folder / name).unlink(missing_ok=True)
                run._open_history("w")
            return run

    def write_config(self, settings: str) -> None:
        """Write the resolved settings, which are TOML, as ``config.toml``, atomically."""
        self._write(CONFIG, lambda file: file.write((settings + CONFIG_END).encode()))

    def resume(self, progress: Progress, checkpoint: str) -> None:
        """Continue the history from `checkpoint`: records after its `progress`, and damaged ones, are removed."""
        with _named_if_unwritable(self.path):
            kept = [record for record in read_records(self.path)[0] if _is_until(record, progress)]
        self._write(HISTORY, lambda file: file.write("".join(map(to_line, kept)).encode()))
        self._open_history("a")
        self.append(ResumeRecord(progress.step, progress.epoch, checkpoint))

    def append(self, record: Record) -> None:
        """Add a line to the history."""
        assert self._history is not None
        with _named_if_unwritable(self.path):
            self._history.write(to_line(record))

    def end(self, summary: RunSummary) -> None:
        """Add the last line, which marks the run as finished; call it after everything else is written."""
        with _named_if_unwritable(self.path):
            sync(self.path)  # the names of the files, before a line that says that they are there
        names = [field.name for field in fields(EndRecord)]
        self.append(EndRecord(**{name: getattr(summary, name) for name in names}))

    def write_json(self, name: str, values: object) -> None:
        """Write a JSON file of the folder, atomically."""
        self._write(name, lambda file: file.write(to_json(values).encode() + b"\n"))

    def write_arrays(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write an ``.npz`` file of the folder, atomically."""
        self._write(name, lambda file: np.savez(file, allow_pickle=False, **arrays))

    def close(self) -> None:
        """Close the history, sync it to disk, and release the lock.

        Raises `EnvironmentProblem` if the last lines of the history cannot be written.
        """
        try:
            if self._history is not None:
                with _named_if_unwritable(self.path):
                    self._history.close()
                    sync(self.path / HISTORY)
        finally:
            self._lock.release()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Close the folder; after an exception, an error of the buffered history is suppressed as its consequence."""
        with contextlib.nullcontext() if kind is None else contextlib.suppress(EnvironmentProblem):
            self.close()

    def _open_history(self, mode: Literal["w", "a"]) -> None:
        with _named_if_unwritable(self.path):
            (self.path / LEARNING_CURVE).unlink(missing_ok=True)
            if mode == "w":
                (self.path / HISTORY).unlink(missing_ok=True)  # a link would lead to a file elsewhere
            # Line buffering: every record is in the file as soon as it is written.
            self._history = open(self.path / HISTORY, mode, encoding="utf-8", buffering=1)  # noqa: SIM115 - `close` does

    def _write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        with _named_if_unwritable(self.path):
            replace_atomically(self.path / name, fill)


def resume_advice(folder: Path | None) -> str:
    """How to continue an interrupted run, in one line."""
    newest = [] if folder is None else checkpoint_folders(folder / CHECKPOINTS)[:1]
    if folder is None or not newest:
        return (
            "No checkpoint was written yet; start again, with training.checkpoint_every where that would cost too much."
        )
    return (
        f"The newest checkpoint is {newest[0].name}; continue with: hybridnn train --resume {command_argument(folder)}"
    )


def _is_until(record: Record, progress: Progress) -> bool:
    """Whether a record is of a step up to `progress`, of an epoch that had ended, or not of the training."""
    if isinstance(record, StepRecord | EvaluationRecord):
        return record.step <= progress.step
    if isinstance(record, EpochRecord | MeasuredStep):
        return record.epoch < progress.epoch
    return not isinstance(record, EndRecord | DivergedRecord)


def _require_free(folder: Path, *, again: bool) -> None:
    """Refuse a folder with results that a new run would overwrite, except weights of an unfinished run if `again`."""
    status = run_status(folder)
    if status == "finished":
        raise SettingError("output.folder", str(folder), "already holds a finished run; name another folder")
    if os.path.lexists(folder / WEIGHTS) and not (again and status == "unfinished"):
        raise SettingError("output.folder", str(folder), f"already holds a {WEIGHTS}; name another folder")
    if checkpoint_folders(folder / CHECKPOINTS):
        go_on = f"continue with --resume {command_argument(folder)}"
        advice = f"holds checkpoints of a run that did not end; {go_on}, or name another folder"
        raise SettingError("output.folder", str(folder), advice)


def _new_folder(name: str) -> Path:
    stem = Path(RUNS) / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        with _named_if_unwritable(folder), contextlib.suppress(FileExistsError):  # of a run of the same second
            folder.mkdir(parents=True)
            break
    return folder


@contextlib.contextmanager
def _named_if_unwritable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{Path(error.filename).name} is a link" if error.errno == errno.ELOOP else error.strerror
        raise EnvironmentProblem(f"output.folder = {str(folder)!r} cannot be written: {reason}") from error


# -- lock --------------------------------------------------------------------------------------------------------------


class FolderInUse(SettingError):  # noqa: N818 - no error if several processes share the work
    """A folder is locked by another process: `holder`, such as ``"process 17 on n1"``."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__("output.folder", str(folder), f"is in use by another live job, {holder}")
        self.holder = holder


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """A lock on a folder, held until `release` or the end of the process; a context manager that releases it.

    On a file system without locks it has no effect. A process that inherits the `descriptor` of the locked file also
    holds the lock.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self.descriptor = path, descriptor
        self._is_held = True

    @classmethod
    def take(cls, folder: Path, name: str = LOCK) -> FolderLock:
        """Lock the folder by its file `name`; `FolderInUse` if another process has, `OSError` if it is not writable."""
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
            with contextlib.suppress(FileNotFoundError):  # its last holder has removed the file between the two calls
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
