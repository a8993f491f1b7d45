"""Gradescope: the package to upload, and grading where Gradescope starts it.

The package is a zip file with ``setup.sh`` and ``run_autograder``. Results go to ``/autograder/results/results.json``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from hybridnn.errors import DataError, shorten
from hybridnn.utils.checks import require_choice
from hybridnn.utils.files import FileError, read_bytes, read_json, write_atomically
from hybridnn.utils.settings_models import first_problem
from hybridnn_course.isolation import choose_isolation, close_to_others
from hybridnn_course.outcome import CheckOutcome, Kind, Outcome, TaskOutcome
from hybridnn_course.submission import MOST_ENTRIES, UngradableError, chosen_files
from hybridnn_course.work_folder import FILE_BYTES, MANIFEST, make_archive
from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.grading import Grader, shown_outcome
from hybridnn_course_staff.installed import installed_wheels
from hybridnn_course_staff.term import KEY, POLICY, SETTINGS, Course

__all__ = ["autograde", "build_package", "gradescope_results"]

INSTRUCTIONS, PLACEHOLDER = "autograde.json", "unfinished.json"
RESULTS, METADATA = "results.json", "submission_metadata.json"
COURSE = "course"  # folder of the course's files in the package
PRIVATE, SCRIPT = 0o100600, 0o100755  # modes of files
ARCHIVE_BYTES = 16 << 20

Visibility = Literal["visible", "after_due_date", "after_published"]
Grade = Callable[[Course, Assignment, "bytes | Mapping[str, bytes]", str], Outcome]

KINDS: dict[Kind, str] = {
    "public": "public cases",
    "hidden": "hidden cases",
    "budget": "budget",
    "whole": "whole run",
    "rubric": "graded by a person",
}
LONGEST = 2000  # characters of a message; Gradescope limits the size of results
UNFINISHED = "Grading did not finish, so there are no points yet. Please tell the course staff."

SETUP = """\
#!/usr/bin/env bash
# Installs hybridnn, and closes the files of the autograder to all users but root.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${HYBRIDNN_ENVIRONMENT:-/opt/hybridnn}
chmod -R go= "$here"
if ! python3 -c 'import ensurepip, venv' 2> /dev/null; then
    apt-get update
    apt-get install -y --no-install-recommends python3 python3-venv
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "hybridnn needs Python 3.10 or newer: choose a newer base image, such as Ubuntu 22.04" >&2
    exit 1
fi
cd "$here"
python3 -m venv "$environment"
"$environment/bin/pip" install --no-cache-dir {requirement}
chmod 700 "$environment"/lib/python3*/site-packages/hybridnn_course_staff # submissions have other users
"""

RUN = """\
#!/usr/bin/env bash
# Grades the submission. Until that is done, the results say that it did not finish.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$here/results"
cp "$here/source/unfinished.json" "$here/results/.unfinished.json"
mv "$here/results/.unfinished.json" "$here/results/results.json"
exec "${HYBRIDNN_ENVIRONMENT:-/opt/hybridnn}/bin/hybridnn" course autograde --root "$(dirname "$here")"
"""


class _Instructions(BaseModel):
    """Content of ``autograde.json``: what a package grades, and when students see the checks of hidden cases."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    assignment: str
    hidden_cases: Visibility = "visible"


class _User(BaseModel):
    email: str


class _Metadata(BaseModel):
    users: list[_User]


# -- the package ------------------------------------------------------------------------------------------------------


def build_package(
    course: Course, assignment: Assignment, requirement: str = "", hidden_cases: str = "visible"
) -> bytes:
    """The autograder to upload: a zip file in which scripts are executable and only the owner may read the key.

    Parameters
    ----------
    requirement : str
        What pip installs on Gradescope; by default wheels of this installation, which are part of the package.
    hidden_cases : str
        When students see the checks of hidden cases.
    """
    require_choice("--hidden-cases", hidden_cases, get_args(Visibility))
    wheels = {} if requirement else installed_wheels()
    installed = " ".join(f'"$here"/{name}' for name in wheels) or shlex.quote(requirement)
    names = [name for name in (SETTINGS, KEY, POLICY) if (course.folder / name).exists()]
    files = {
        "setup.sh": SETUP.replace("{requirement}", installed).encode(),
        "run_autograder": RUN.encode(),
        PLACEHOLDER: _unfinished(),
        INSTRUCTIONS: _json_bytes({"assignment": assignment.id, "hidden_cases": hidden_cases}),
        **{f"{COURSE}/{name}": read_bytes(course.folder / name, 1 << 20) for name in names},
        **wheels,
    }
    modes = {"setup.sh": SCRIPT, "run_autograder": SCRIPT, f"{COURSE}/{KEY}": PRIVATE}
    return make_archive(files, modes)


# -- grading ----------------------------------------------------------------------------------------------------------


def autograde(
    root: Path = Path("/"), *, isolation: str = "auto", out: TextIO | None = None, grade: Grade | None = None
) -> Outcome:
    """Grade the submission that Gradescope put in its place, and write the results where it reads them.

    The results are written once, after all processes of the submission have ended. Until then, they say that grading
    did not finish.

    Parameters
    ----------
    root : Path, optional
        Folder of ``autograder/``.
    isolation : str
        Of `choose_isolation`. Submissions cannot read the key of the term, which is beside them.
    out : file, optional
        Log, which only the staff sees; by default the standard output.
    grade : callable, optional
        ``grade(course, assignment, data, student)`` grades a submission; by default by `Grader`.

    Raises
    ------
    DataError
        If the folders are not those of Gradescope.
    """
    base = root / "autograder"
    source, submission, results = (base / name for name in ("source", "submission", "results"))
    for folder in (base, source, submission):
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; Gradescope makes it for the autograder")
    results.mkdir(exist_ok=True)
    student = _student(base / METADATA)
    for folder in (source, submission, results):
        close_to_others(folder)
    write_atomically(results / RESULTS, _unfinished())
    instructions = _read_instructions(source / INSTRUCTIONS)
    course = Course.open(source / COURSE)
    assignment = course.assignment(instructions.assignment)
    if course.settings.per_student and not student:
        raise DataError(f"{base}: nothing says who the student is; every student of this course has a variant")
    try:
        data = _read_files(assignment, submission)
    except UngradableError as error:
        term = course.settings.term
        outcome = Outcome(
            assignment=assignment.id, term=term, student=student or error.student, gradable=False, reason=str(error)
        )
    else:
        if grade is None:
            chosen = choose_isolation(isolation)
            outcome = Grader(course, assignment, chosen).grade(data, student=student)
        else:
            outcome = grade(course, assignment, data, student)
    shown = shown_outcome(outcome, course.settings.feedback)
    (sys.stdout if out is None else out).write(_staff_report(outcome))
    write_atomically(results / RESULTS, _json_bytes(gradescope_results(shown, instructions.hidden_cases)))
    return outcome


def _read_instructions(path: Path) -> _Instructions:
    try:
        return _Instructions.model_validate(read_json(path, 1 << 16))
    except ValidationError as error:
        raise DataError(f"{path}: {first_problem(error)}") from None


def _student(path: Path) -> str:
    """The student's e-mail address, of a group the first one; empty outside of Gradescope."""
    if not path.exists():
        return ""
    try:
        users = _Metadata.model_validate(read_json(path)).users
    except ValidationError:
        raise DataError(f"{path}: does not name the users of the submission") from None
    return min((user.email for user in users), default="")


def _read_files(assignment: Assignment, submission: Path) -> bytes | Mapping[str, bytes]:
    """The submission: an archive, or the files of a folder by their paths in it, empty ones of which none is read.

    Raises
    ------
    UngradableError
        If a file that is read is not a regular one, or too large.
    """
    if not submission.is_dir() or submission.is_symlink():
        return _read(submission, ARCHIVE_BYTES)
    walked = (Path(folder, name) for folder, _, names in os.walk(submission) for name in names)
    paths = {path.relative_to(submission).as_posix(): path for path in islice(walked, MOST_ENTRIES + 1)}
    archives = [path for path in paths.values() if path.suffix == ".zip"]
    if len(archives) == 1 and not any(path.name == MANIFEST for path in paths.values()):
        return _read(archives[0], ARCHIVE_BYTES)
    wanted = chosen_files(assignment, paths).values()
    return {name: _read(path, FILE_BYTES) if name in wanted else b"" for name, path in paths.items()}


def _read(path: Path, limit: int) -> bytes:
    if path.is_symlink():
        raise UngradableError(f"{path.name}: links are not allowed")
    try:
        return read_bytes(path, limit)
    except FileError as error:
        reason = "is missing" if error.is_missing else error.reason
        raise UngradableError(f"{path.name}: {reason}") from None


# -- results ----------------------------------------------------------------------------------------------------------


def _unfinished() -> bytes:
    """Results of a grading that did not finish."""
    return _json_bytes({"score": 0, "output": UNFINISHED, "output_format": "text", "stdout_visibility": "hidden"})


def gradescope_results(outcome: Outcome, hidden_cases: Visibility = "visible") -> dict[str, Any]:
    """The content of ``results.json``.

    Parameters
    ----------
    hidden_cases : str
        When students see the hidden cases. As long as a test is hidden, Gradescope hides their total, too.
    """
    tests = [
        {
            "name": group.name,
            "number": group.number,
            "score": group.points,
            "max_score": group.possible,
            "status": "passed" if group.passed else "failed",
            "output": group.markdown(),
            "output_format": "md",
            "visibility": hidden_cases if group.kind == "hidden" else "visible",
            "tags": [group.task, group.kind, *group.mistakes],
        }
        for group in _groups(outcome)
    ]
    results: dict[str, Any] = {
        "score": outcome.points,
        "output": _summary(outcome),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {"assignment": outcome.assignment, "term": outcome.term, "gradable": outcome.gradable},
    }
    if board := _leaderboard(outcome):
        results["leaderboard"] = board
    return results


def _leaderboard(outcome: Outcome) -> list[dict[str, Any]]:
    """Virtual times, compared with what is allowed: those of two students may be of different cases."""
    return [
        {
            "name": f"{task.name}: {check.name.partition(' in ')[0]} / allowed",
            "value": round(check.ratio, 4),
            "order": "asc",
        }
        for task in outcome.tasks
        for check in task.checks
        if check.ratio is not None and "time" in check.name
    ]


def _json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


# -- texts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """All checks of one kind of a task.

    Attributes
    ----------
    number : str
        For example ``"2.1"``: the first kind of the second task.
    """

    number: str
    task: str
    kind: Kind
    checks: tuple[CheckOutcome, ...]

    @property
    def name(self) -> str:
        """Task and kind."""
        return f"{self.task}: {KINDS[self.kind]}"

    @property
    def points(self) -> float:
        """Points of its checks."""
        return round(sum(check.points for check in self.checks), 4)

    @property
    def possible(self) -> float:
        """Points that its checks can give."""
        return round(sum(check.possible for check in self.checks), 4)

    @property
    def passed(self) -> bool:
        """Whether every check has all points."""
        return all(check.passed for check in self.checks)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the known mistakes."""
        return tuple(dict.fromkeys(check.mistake for check in self.checks if check.mistake))

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints, each once."""
        return tuple(dict.fromkeys(_plain(check.hint) for check in self.checks if check.hint))

    def markdown(self) -> str:
        """Its checks, messages and hints as Markdown; messages are quoted as code."""
        parts = []
        for check in self.checks:
            parts.append(f"{_headline(check)}  ")  # two spaces end a line
            if check.message and not check.not_tried:
                parts.append(_fenced(_plain(check.message)))
        return "\n".join([*parts, *(f"\n> {hint}" for hint in self.hints)])


def _groups(outcome: Outcome) -> Iterator[_Group]:
    """Checks of an outcome by task and kind, in the order of the tasks."""
    for number, task in enumerate(outcome.tasks, 1):
        for position, kind in enumerate(_kinds(task), 1):
            checks = tuple(check for check in task.checks if check.kind == kind)
            yield _Group(f"{number}.{position}", task.name, kind, checks)


def _kinds(task: TaskOutcome) -> list[Kind]:
    return [kind for kind in KINDS if any(check.kind == kind for check in task.checks)]


def _summary(outcome: Outcome) -> str:
    """The first sentence that a student reads."""
    if outcome.again:
        return UNFINISHED
    if not outcome.gradable:
        return f"This submission cannot be graded: {_plain(outcome.reason)}"
    return f"{outcome.points:g} of {outcome.possible:g} points."


def _staff_report(outcome: Outcome) -> str:
    """What the staff reads in the log: flags included, which students must not see."""
    variant = ", ".join(f"{axis}={choice}" for axis, choice in outcome.variant.items())
    lines = [
        f"{outcome.assignment} {outcome.student or '-'}: {_summary(outcome)}",
        f"variant: {variant or '-'}",
        *(f"mistake: {name}" for name in outcome.mistakes),
        *(f"look at: {_plain(flag)}" for flag in outcome.flags),
        *([f"to be graded again: {_plain(outcome.again)}"] if outcome.again else []),
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """`text` without control characters and half characters, cut to `LONGEST`."""
    text = shorten(text, LONGEST)
    return "".join(character if character in "\n\t" or character.isprintable() else "\ufffd" for character in text)


def _headline(check: CheckOutcome) -> str:
    if check.not_tried:
        return f"- {_plain(check.name)}: {_plain(check.message) or 'not tried'}"
    if check.passed:
        return f"✔ {_plain(check.name)}"
    points = f" ({check.points:.4g} of {check.possible:.4g} points)" if check.points else ""
    return f"✘ {_plain(check.name)}{points}"


def _fenced(text: str) -> str:
    """`text` as a block of code that it cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"\n{fence}\n{text}\n{fence}\n"
