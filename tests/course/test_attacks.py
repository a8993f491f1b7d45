"""Attacks on the grader gain no points, leave nothing behind and take no longer than its limits allow."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from course.attacks import BLOCKS, GRADIENT, SLOW
from course.made import course_of, submission_zip
from hybridnn.course import isolation, submission
from hybridnn.course.assignment import load_assignment
from hybridnn.course.grading import Grader, Limits
from hybridnn.course.isolation import choose_isolation
from hybridnn.errors import HybridnnError
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
CASE_SECONDS = 2.0
NAMES = ("left-", "part-", "meet-", "bomb", "results.json")
WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")


def _missing(mode: str) -> str:
    try:
        choose_isolation(mode)
    except HybridnnError as error:
        return str(error)
    return ""


MODES = [
    pytest.param(mode, marks=pytest.mark.skipif(bool(reason := _missing(mode)), reason=reason))
    for mode in ("user", "bwrap")
]


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch, worker_id: str) -> range:
    """Users that no other test has at the same time."""
    first = 50_000 + 1_000 * (int(worker_id.removeprefix("gw")) if worker_id != "master" else 9)
    monkeypatch.setattr(isolation, "FIRST_USER", first)
    monkeypatch.setattr(isolation, "LOCK", f"\0hybridnn-course-test-{first}-")
    return range(first, first + 1_000)


@pytest.fixture(params=MODES)
def grader(request: pytest.FixtureRequest, tmp_path: Path, users: range, monkeypatch: pytest.MonkeyPatch) -> Grader:
    """A grader that takes all code, as if what it refuses had been written so that it does not notice."""
    monkeypatch.setattr(submission, "refusals", lambda *_: ())
    limits = Limits(case=deadline(CASE_SECONDS), submission=deadline(30))
    return Grader(course_of(tmp_path / "course", "a2"), A2, request.param, limits)


def _processes(users: range) -> set[int]:
    """Processes of the users of ranks."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid in users:
                found.add(int(name))
        except OSError:
            continue
    return found


def _files(users: range) -> set[str]:
    """Files of the users of ranks, and such with names that attacks give."""
    found = set()
    for folder in WRITABLE:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            try:
                if os.lstat(path).st_uid in users or name.startswith(
                    ("left-", "part-", "meet-", "bomb", "results.json")
                ):
                    found.add(path)
            except OSError:
                continue
    return found


def _children() -> set[int]:
    own = os.getpid()
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == own:
                found.add(int(name))
        except OSError:
            continue
    return found


def _attack(grader: Grader, users: range, **files: str) -> tuple[float, float, list[str]]:
    """Points, seconds and messages of a submission; nothing may be left behind."""
    before, children = _files(users), _children()
    archive = submission_zip(A2, A2.standard, {f"{name}.py": text for name, text in files.items()})
    start = time.monotonic()
    outcome = grader.grade(archive)
    taken = time.monotonic() - start
    assert outcome.gradable, outcome.reason
    assert not _processes(users)
    assert _children() <= children
    assert _files(users) <= before
    return outcome.points, taken, [check.message for task in outcome.tasks for check in task.checks]


@pytest.mark.parametrize("name", list(BLOCKS))
def test_no_points_and_nothing_left(grader: Grader, users: range, name: str) -> None:
    points, taken, messages = _attack(grader, users, blocks=BLOCKS[name])
    assert points == 0, "\n".join(messages)
    assert taken < 2 * grader.limits.submission


@pytest.mark.parametrize("name", list(SLOW))
def test_the_limit_of_a_case_ends_it(grader: Grader, users: range, name: str) -> None:
    points, taken, messages = _attack(grader, users, blocks=SLOW[name])
    assert points == 0
    assert any("no result after" in message or "ended without" in message for message in messages)
    # two tasks are in this file; each is given up after its first case
    assert taken < 2 * (2 * grader.limits.case) + deadline(10)


@pytest.mark.parametrize("name", list(GRADIENT))
def test_ranks_meet_nowhere_but_at_the_grader(grader: Grader, users: range, name: str) -> None:
    meets = name in ("meet at a socket", "read another rank's memory")
    if grader.isolation == "bwrap" and meets:
        pytest.skip("bubblewrap does not isolate the ranks of one submission from one another")
    points, taken, messages = _attack(grader, users, gradient=GRADIENT[name])
    one_rank = A2.task("gradient").points.public / 4
    assert points <= one_rank + 1e-9, "\n".join(messages)
    assert taken < 2 * grader.limits.submission


def test_what_the_grader_knows_is_out_of_reach(grader: Grader) -> None:
    from hybridnn.course.carrier import Worker
    from hybridnn.course.checks import TaskKey, check_task

    secret = grader.course.key.hex()
    (Path("/root") / "owned").unlink(missing_ok=True)
    for name in ("looks for the key", "reads the grader's memory", "talks to the network", "becomes root"):
        files = {"blocks.py": BLOCKS[name], "gradient.py": ""}
        with Worker(A2, files, isolation=grader.isolation, limit=deadline(20)) as worker:
            check_task(worker, TaskKey(A2, A2.task("bounds"), A2.standard))
            assert secret not in worker.printed
            assert "FOUND" not in worker.printed
            assert "CONNECTED" not in worker.printed
    assert not (Path("/root") / "owned").exists()


def _archive(write: Callable[[zipfile.ZipFile], None]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("assignment.toml", "blocks.py", "gradient.py"):
            archive.writestr(name, zipfile.ZipFile(io.BytesIO(submission_zip(A2, A2.standard, {}))).read(name))
        write(archive)
    return stream.getvalue()


def _link(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("blocks2.py")
    info.external_attr = 0o120777 << 16
    archive.writestr(info, "/etc/passwd")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_link, "links"),
        (lambda archive: archive.writestr("../grader.py", "x"), "not a file of a2"),
        (lambda archive: archive.writestr("/etc/cron.d/x", "x"), "not a file of a2"),
        (lambda archive: archive.writestr("numpy.py", "x"), "not a file of a2"),
        (lambda archive: archive.writestr("blocks.py", "x = 1"), "is there twice"),
        (lambda archive: archive.writestr("big.py", b"0" * (50 << 20)), "not a file of a2"),
        (lambda archive: [archive.writestr(f"{n}.txt", "") for n in range(200)], "files in the archive"),
    ],
    ids=["link", "parent folder", "absolute", "numpy.py", "twice", "bomb", "many"],
)
def test_tricks_of_archives_are_refused(write: Callable[[zipfile.ZipFile], None], reason: str, tmp_path: Path) -> None:
    grader = Grader(course_of(tmp_path / "course", "a2"), A2, "none")
    outcome = grader.grade(_archive(write))
    assert not outcome.gradable
    assert reason in outcome.reason
    assert outcome.points == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"def block_bounds(:", "line 1: cannot be parsed"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "cannot be parsed"),
        (b"x = '\\N{" + b"a" * 10 + b"}'", "cannot be parsed"),
        (b"#" * (2 << 20), "larger than"),
        (b"x = 1\0", "cannot be parsed"),
    ],
    ids=["syntax", "encoding", "nesting", "escape", "size", "null"],
)
def test_files_that_are_no_programs_are_refused(text: bytes, reason: str, tmp_path: Path) -> None:
    grader = Grader(course_of(tmp_path / "course", "a2"), A2, "none")
    outcome = grader.grade(submission_zip(A2, A2.standard, {"blocks.py": text}))
    assert not outcome.gradable
    assert reason in outcome.reason
