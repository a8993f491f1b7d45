"""What a platform puts before the grader: the package, the submission, and where the results go."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from hybridnn.course.assignment import Assignment
from hybridnn.course.outcome import Outcome
from hybridnn.course.platforms.kit import Instructions, Kit, Package
from hybridnn.course.submission import UngradableError
from hybridnn.course.work_folder import FILE_BYTES, MANIFEST
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.utils.files import FileError, read_bytes

ARCHIVE_BYTES = 16 << 20
IGNORED = "__MACOSX"


class Platform(Protocol):
    """Interface of a grading platform."""

    name: str

    def package(self, kit: Kit) -> Package:
        """The file that an instructor uploads."""


class Autograder(Platform, Protocol):
    """A platform that runs the grader."""

    default_root: Path

    def job(self, root: Path) -> Job:
        """What to grade; `DataError` where `root` is not laid out as the platform does it."""

    def begin(self, job: Job) -> None:
        """Write results that are valid if grading does not finish."""

    def finish(self, job: Job, instructions: Instructions, outcome: Outcome, shown: Outcome, out: TextIO) -> None:
        """Write the results.

        Parameters
        ----------
        shown : Outcome
            What the student may see of it.
        out : file
            Log of the job.
        """


@dataclass(frozen=True)
class Job:
    """A submission to grade.

    Attributes
    ----------
    root : Path
        Folder that the platform makes for the job.
    package : Path
        Folder with the files of the package.
    submission : Path
        Folder of the submission, or the archive that is one.
    student : str
        As the platform knows them, or empty.
    closed : tuple of Path
        Folders that no process of the submission may read.
    """

    root: Path
    package: Path
    submission: Path
    student: str = ""
    closed: tuple[Path, ...] = ()

    def close(self) -> None:
        """Take the rights of other users from the folders that are to be closed."""
        for folder in self.closed:
            try:
                os.chmod(folder, stat.S_IMODE(folder.stat().st_mode) & ~stat.S_IRWXO)
            except OSError as error:
                raise EnvironmentProblem(f"{folder}: cannot be closed to other users: {error.strerror}") from None


def require_folder(path: Path, platform: str) -> Path:
    """`path`, if it is a folder; else `DataError`."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; {platform} makes it for the autograder")
    return path


def read_files(assignment: Assignment, submission: Path) -> bytes | Mapping[str, bytes]:
    """The submission: an archive, or those files of a folder that the assignment consists of.

    The files may lie in one folder of the submission. Links and all other files are ignored or refused.

    Raises
    ------
    UngradableError
        If a file is not a regular one, or too large.
    """
    if not submission.is_dir() or submission.is_symlink():
        return _read(submission, ARCHIVE_BYTES)
    folder = _folder(submission)
    if not (folder / MANIFEST).exists():
        archives = [path for path in sorted(folder.iterdir()) if path.suffix == ".zip"]
        if len(archives) == 1:
            return _read(archives[0], ARCHIVE_BYTES)
    names = (MANIFEST, *assignment.files, *assignment.texts)
    return {name: _read(folder / name, FILE_BYTES) for name in names if os.path.lexists(folder / name)}


def _folder(submission: Path) -> Path:
    """The submission, or the only folder in it where it has no manifest."""
    entries = [path for path in submission.iterdir() if not path.name.startswith(".") and path.name != IGNORED]
    if len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink():
        return entries[0]
    return submission


def _read(path: Path, limit: int) -> bytes:
    if path.is_symlink():
        raise UngradableError(f"{path.name}: links are not allowed")
    try:
        return read_bytes(path, limit)
    except FileError as error:
        reason = "is missing" if error.is_missing else error.reason
        raise UngradableError(f"{path.name}: {reason}") from None
