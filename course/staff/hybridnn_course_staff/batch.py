"""Grading of a folder of submissions: in parallel, and resumable at any moment.

Each submission has one file of its outcome, named after it and a digest of all that decides about it: its content, the
course, the kit and the isolation. A file is written by renaming, so that it is whole or not there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

import hybridnn_course
from hybridnn._version import __version__
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.utils.files import FileError, read_bytes, read_text, write_atomically
from hybridnn_course.outcome import Outcome
from hybridnn_course.submission import Submission
from hybridnn_course.work_folder import FILE_BYTES, make_folder
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.handing_out import read_table
from hybridnn_course_staff.reading import read_in_time
from hybridnn_course_staff.similarity import NOT_IN_NAMES
from hybridnn_course_staff.term import Course

ARCHIVE_BYTES = 8 * FILE_BYTES
SUBMISSION = ".zip"
SUFFIX = ".outcome.json"
PARENT_DEATH_SIGNAL = 1  # option of prctl


@dataclass(frozen=True)
class Graded:
    """A submission and its outcome."""

    name: str
    outcome: Outcome


def find_submissions(folder: Path) -> list[Path]:
    """Zip files in a folder and its subfolders, sorted; `DataError` if there is none."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() == SUBMISSION and path.is_file())
    if not found:
        raise DataError(f"{folder}: no zip files")
    return found


def times_received(folder: Path) -> dict[str, datetime]:
    """When each submission was handed in, as the time of the last change of its file says."""
    paths = find_submissions(folder)
    return {str(path.relative_to(folder)): datetime.fromtimestamp(path.stat().st_mtime).astimezone() for path in paths}


def read_names(path: Path) -> dict[str, str]:
    """The columns ``submission`` and ``student`` of a CSV file; `DataError` where one is missing."""
    rows = read_table(path)
    if any(not row.get("submission") or not row.get("student") for row in rows):
        raise DataError(f"{path}: needs columns submission and student, with a name in every row")
    return {row["submission"]: row["student"].strip() for row in rows}


def read_times(path: Path) -> dict[str, datetime]:
    """The columns ``submission`` and ``received`` of a CSV file; `DataError` where one is missing or no time."""
    found = {}
    for number, row in enumerate(read_table(path), 2):
        try:
            found[row["submission"]] = datetime.fromisoformat(row["received"]).astimezone()
        except KeyError:
            raise DataError(f"{path}: needs columns submission and received") from None
        except (TypeError, ValueError):
            example = "2026-11-02T23:59:00"
            raise DataError(f"{path}, line {number}: {row['received']!r} is no time such as {example}") from None
    return found


def other_files(folder: Path) -> list[str]:
    """Names of the files in a folder that are no zip files, and so no submissions; hidden ones are left out."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() != SUBMISSION and path.is_file())
    return [str(path.relative_to(folder)) for path in paths if not path.name.startswith(".")]


def grade_folder(
    grader: Grader,
    submissions: Path,
    out: Path,
    *,
    jobs: int = 1,
    students: Mapping[str, str] = MappingProxyType({}),
    begun: Callable[[int, int], None] = lambda kept, new: None,
    told: Callable[[Graded], None] = lambda _: None,
) -> list[Graded]:
    """Grade every submission that has no outcome yet, and return all outcomes by name.

    Parameters
    ----------
    out : Path
        Folder of the outcomes.
    jobs : int
        Submissions that are graded at the same time.
    students : mapping
        Whose each submission is, by its name, where a platform knows that; else it is whom the submission names.
    begun : callable
        Called with the number of outcomes that are kept, and of submissions to grade.
    told : callable
        Called after each of these.

    Raises
    ------
    DataError
        If there are no submissions, or `out` has outcomes of another assignment.
    """
    paths = find_submissions(submissions)
    _require_same_assignment(grader, out)
    make_folder(out, 0o700)

    names = [str(path.relative_to(submissions)) for path in paths]
    whose = {name: students.get(name, "") for name in names}
    stored = {name: _kept_outcome(grader, submissions, name, out, whose[name]) for name in names}
    found = {name: Graded(name, outcome) for name, outcome in stored.items() if outcome is not None}
    new = [name for name in names if name not in found]
    begun(len(found), len(new))

    def add(name: str, outcome: Outcome) -> None:
        found[name] = Graded(name, outcome)
        told(found[name])

    if jobs == 1:
        for name in new:
            add(name, _outcome_of(grader, submissions, name, out, whose[name]))
    else:
        _grade_in_processes(grader, submissions, {name: whose[name] for name in new}, out, jobs, add)
    return [found[name] for name in names]


def _grade_in_processes(
    grader: Grader, folder: Path, whose: Mapping[str, str], out: Path, jobs: int, add: Callable[[str, Outcome], None]
) -> None:
    """Grade in processes, not threads: in a process, one function at a time can be traced for its lines and memory."""
    about = (grader.course.folder, grader.assignment.id, grader.isolation, grader.limits)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _become_job, (os.getpid(),)) as pool:
        try:
            futures = {
                pool.submit(_outcome_in_job, about, folder, name, out, student): name for name, student in whose.items()
            }
            for future in as_completed(futures):
                add(futures[future], future.result())
        except BrokenProcessPool:
            raise EnvironmentProblem("a process that grades has ended; the same command goes on") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _become_job(parent: int) -> None:
    """In a process that grades: leave Ctrl-C to the process that started it, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _outcome_in_job(about: tuple[Path, str, str, Limits], folder: Path, name: str, out: Path, student: str) -> Outcome:
    return _outcome_of(_grader_of_job(*about), folder, name, out, student)


@lru_cache(maxsize=1)
def _grader_of_job(folder: Path, name: str, isolation: str, limits: Limits) -> Grader:
    """The grader of this process, which keeps the answers of references and mistakes."""
    course = Course.open(folder)
    return Grader(course, course.assignment(name), isolation, limits)


def _require_same_assignment(grader: Grader, out: Path) -> None:
    """Refuse a folder with outcomes of another assignment, whose tables would be replaced."""
    first = next(iter(sorted(out.glob(f"*{SUFFIX}"))), None)
    stored = None if first is None else stored_outcome(first)
    if stored is not None and stored.assignment != grader.assignment.id:
        raise DataError(f"{out}: has the grades of {stored.assignment}; give another folder for {grader.assignment.id}")


def with_student_flags(graded: Sequence[Graded], roster: Collection[str] = ()) -> list[Graded]:
    """The outcomes, with flags where several submissions name the same student, or one who is not on the roster.

    The student is named in the submission, and decides about the variant where each has one.
    """
    submissions: dict[str, list[str]] = {}
    for item in graded:
        if item.outcome.student:
            submissions.setdefault(item.outcome.student, []).append(item.name)
    found = []
    for item in graded:
        student = item.outcome.student
        others = [name for name in submissions.get(student, []) if name != item.name]
        flags = [f"names the same student as {', '.join(others)}"] if others else []
        if roster and item.outcome.gradable and student not in roster:
            flags.append("names no student of the roster")
        outcome = item.outcome.model_copy(update={"flags": (*item.outcome.flags, *flags)})
        found.append(Graded(item.name, outcome))
    return found


def read_submissions(
    assignment: Assignment, submissions: Path, modules: Sequence[str] = ()
) -> tuple[dict[str, Submission], dict[str, str]]:
    """The submissions of a folder, and reasons why others cannot be read; `modules` as for `read_submission`."""
    found, refused = {}, {}
    for path in find_submissions(submissions):
        name = str(path.relative_to(submissions))
        try:
            found[name] = read_in_time(assignment, read_bytes(path, ARCHIVE_BYTES), modules)
        except DataError as error:
            refused[name] = str(error)
    return found, refused


def _kept_outcome(grader: Grader, folder: Path, name: str, out: Path, student: str) -> Outcome | None:
    """The outcome of an earlier grading; None where there is none, or it is no grade."""
    try:
        data = read_bytes(folder / name, ARCHIVE_BYTES)
        outcome = stored_outcome(_outcome_file(grader, name, data, out, student))
    except FileError:
        return None
    return None if outcome is None or outcome.again else outcome


def _outcome_of(grader: Grader, folder: Path, name: str, out: Path, student: str) -> Outcome:
    try:
        data = read_bytes(folder / name, ARCHIVE_BYTES)
    except FileError as error:
        return Outcome(assignment=grader.assignment.id, student=student, gradable=False, reason=error.reason)
    outcome = grader.grade(data, student=student).model_copy(update={"submission": name})
    write_atomically(_outcome_file(grader, name, data, out, student), outcome.model_dump_json(indent=1).encode())
    return outcome


def stored_outcome(file: Path) -> Outcome | None:
    """A stored outcome; None where there is none that can be read."""
    try:
        return Outcome.model_validate_json(read_text(file, ARCHIVE_BYTES))
    except (ValidationError, FileError):
        return None


def _outcome_file(grader: Grader, name: str, data: bytes, out: Path, student: str) -> Path:
    stem = NOT_IN_NAMES.sub("_", name[: -len(SUBMISSION)])[:80]
    return out / f"{stem}-{outcome_digest(grader, name, data, student)}{SUFFIX}"


def outcome_digest(grader: Grader, name: str, data: bytes, student: str = "") -> str:
    """Digest of all that decides about an outcome."""
    parts: Sequence[str] = (
        *(name, student, hashlib.sha256(data).hexdigest(), grader.course.digest(), grader.assignment.id),
        *(__version__, grader.isolation, str(grader.limits), kit_digest(grader.assignment.folder())),
    )
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


@lru_cache(maxsize=1)
def kit_digest(assignment: Path) -> str:
    """Digest of the files of the kit and of an assignment, which is a folder of the staff's package."""
    digest = hashlib.sha256()
    for root in (Path(hybridnn_course.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*")):
            is_other = assignment.parent in path.parents and assignment not in path.parents
            if path.is_file() and path.suffix != ".pyc" and not is_other:
                digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()
