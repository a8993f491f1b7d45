"""Attacks on the grader gain no points, leave nothing behind and take no longer than its limits allow."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridnn
from course.attacks import BLOCKS, GRADIENT, SLOW
from course.made import course_of, course_with, submission_zip
from hybridnn.course import carrier, isolation, submission
from hybridnn.course.answers import Answer
from hybridnn.course.assignment import Task, load_assignment
from hybridnn.course.carrier import Worker
from hybridnn.course.grading import Grader, Limits
from hybridnn.course.isolation import choose_isolation
from hybridnn.course.outcome import Outcome
from hybridnn.errors import HybridnnError
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
CASE_SECONDS = 2.0
NAMES = ("left-", "part-", "meet-", "bomb", "results.json")
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
UNWATCHED = "from hybridnn.course import isolation, worker; worker.guard_process = lambda *_, **__: None"
WITHOUT_NAMESPACES = (
    f"{UNWATCHED}; isolation.CLONE_NEWNET = isolation.CLONE_NEWIPC = 0; closed = isolation._closed_folder; "
    "isolation._covered = lambda needed: sorted(filter(None, set(map(closed, needed))))"
)
"""Only folders of root are covered, which Python may be in."""

MEETS = {
    "user": (),
    "user without namespaces": ("meet in a file for all", "meet in shared memory for all", "meet at a socket"),
    "bwrap": ("meet at a socket", "meet in shared memory for all"),
}
"""How ranks of one submission can exchange data without the grader, by isolation."""


def _missing(mode: str) -> str:
    try:
        choose_isolation(mode)
    except HybridnnError as error:
        return str(error)
    return ""


MODES = [
    pytest.param(mode, marks=pytest.mark.skipif(bool(reason := _missing(mode.split()[0])), reason=reason), id=mode)
    for mode in MEETS
]


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> range:
    """Users that no other process of tests on this machine has at the same time."""
    first = 100_000 + 1_000 * (os.getpid() % 1_000_000)
    monkeypatch.setattr(isolation, "FIRST_USER", first)
    monkeypatch.setattr(isolation, "LOCK", f"\0hybridnn-course-test-{first}-")
    return range(first, first + 1_000)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An isolation alone: all code is taken, as if it did what it does so that nothing notices, and nothing watches."""
    monkeypatch.setattr(submission, "refusals", lambda *_: ())
    removed = WITHOUT_NAMESPACES if "without" in request.param else UNWATCHED
    program = carrier.PROGRAM.replace("from hybridnn.course.worker import main", removed)
    monkeypatch.setattr(carrier, "PROGRAM", program.replace("main()", "worker.main()"))
    return str(request.param)


@pytest.fixture
def grader(mode: str, tmp_path: Path, users: range) -> Grader:
    """A grader with that isolation."""
    limits = Limits(case=deadline(CASE_SECONDS), submission=deadline(30))
    return Grader(course_with(tmp_path / "course", A2, A2.standard), A2, mode.split()[0], limits)


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Limit and seconds of every case and training that was tried."""
    found: list[tuple[float, float]] = []
    carry = Worker._carry

    def timed(worker: Worker, task: Task, inputs: Any, variant: Any, limit: float, *, whole: bool) -> Answer:
        start = time.monotonic()
        try:
            return carry(worker, task, inputs, variant, limit, whole=whole)
        finally:
            found.append((limit, time.monotonic() - start))

    monkeypatch.setattr(Worker, "_carry", timed)
    return found


def _status_of_processes() -> dict[int, tuple[int, int]]:
    """Parent and user of every process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            found[int(name)] = parent, os.stat(f"/proc/{name}").st_uid
        except OSError:
            continue
    return found


def _files(users: range) -> set[str]:
    """Files of the users of ranks, and such with names that attacks give."""
    found = set()
    for folder in FOLDERS:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            try:
                if os.lstat(path).st_uid in users or name.startswith(NAMES):
                    found.add(path)
            except OSError:
                continue
    return found


def _shared_memory(users: range) -> list[str]:
    """System V shared memory, semaphores and message queues of the users of ranks."""
    found = []
    for kind in ("shm", "sem", "msg"):
        names, *rows = map(str.split, Path("/proc/sysvipc", kind).read_text().splitlines())
        found += [f"{kind} {row[1]}" for row in rows if int(row[names.index("uid")]) in users]
    return found


class Attack:
    """Submissions whose grading leaves nothing behind, and takes at most twice the limit of each case."""

    def __init__(self, grader: Grader, users: range, took: list[tuple[float, float]]) -> None:
        self.grader, self._users, self._took = grader, users, took

    def __call__(self, **files: str) -> Outcome:
        """The outcome of a submission with these files."""
        before, own = _files(self._users), os.getpid()
        children = {process for process, (parent, _) in _status_of_processes().items() if parent == own}
        archive = submission_zip(A2, A2.standard, {f"{name}.py": text for name, text in files.items()})
        start = time.monotonic()
        outcome = self.grader.grade(archive)
        taken = time.monotonic() - start
        assert outcome.gradable, outcome.reason
        left = _status_of_processes()
        assert [process for process, (_, user) in left.items() if user in self._users] == []
        assert {process for process, (parent, _) in left.items() if parent == own} <= children
        assert _files(self._users) <= before
        assert _shared_memory(self._users) == []
        assert self._took
        assert all(seconds < 2 * limit + deadline(1) for limit, seconds in self._took), self._took
        assert taken < sum(seconds for _, seconds in self._took) + deadline(15)  # the start, and the references
        return outcome


@pytest.fixture
def attack(grader: Grader, users: range, took: list[tuple[float, float]]) -> Attack:
    """Grade attacks."""
    return Attack(grader, users, took)


def _messages(outcome: Outcome) -> str:
    return "\n".join(check.message for task in outcome.tasks for check in task.checks)


@pytest.mark.parametrize("name", list(BLOCKS))
def test_no_points_and_nothing_left(attack: Attack, name: str) -> None:
    outcome = attack(blocks=BLOCKS[name])
    assert outcome.points == 0, _messages(outcome)


@pytest.mark.parametrize("name", list(SLOW))
def test_the_limit_of_a_case_ends_it(attack: Attack, took: list[tuple[float, float]], name: str) -> None:
    outcome = attack(blocks=SLOW[name])
    assert outcome.points == 0
    assert "no result after" in _messages(outcome) or "ended without" in _messages(outcome)
    # Two tasks are in this file, and each is given up after its first case.
    assert len([limit for limit, seconds in took if seconds >= limit]) <= 2


@pytest.mark.parametrize("name", list(GRADIENT))
def test_ranks_meet_nowhere_but_at_the_grader(attack: Attack, mode: str, name: str) -> None:
    outcome = attack(gradient=GRADIENT[name])
    one_rank = A2.task("gradient").points.public / 4
    assert outcome.points <= one_rank + 1e-9, _messages(outcome)
    is_flagged = any(flag.startswith("gradient: impossible") for flag in outcome.flags)
    assert is_flagged == (name in MEETS[mode]), _messages(outcome)


def test_what_the_grader_knows_is_out_of_reach(grader: Grader, mode: str) -> None:
    secret = grader.course.key.hex()
    (Path("/root") / "owned").unlink(missing_ok=True)
    names = ["looks for the key", "reads the grader's memory", "becomes root"]
    words = ["ATTACHED"]
    if "without" not in mode:  # there, folders that all may read are seen, and the network
        names, words = [*names, "talks to the network"], [*words, "FOUND", "CONNECTED"]
    names += ["traces its parent"] if mode.startswith("user") else []  # in a container, all its processes are alike
    for name in names:
        printed = _printed(grader, BLOCKS[name])
        assert secret not in printed
        assert not any(word in printed for word in words), printed
    assert not (Path("/root") / "owned").exists()


def _printed(grader: Grader, text: str) -> str:
    """What an attack prints in the first case."""
    files = {"blocks.py": text, "gradient.py": ""}
    with Worker(A2, files, isolation=grader.isolation, limit=deadline(20)) as worker:
        worker.run(A2.task("bounds"), A2.task("bounds").public(A2.standard)[0], A2.standard)
        return worker.printed


def test_a_user_has_few_processes(grader: Grader, mode: str) -> None:
    if mode == "bwrap" and os.geteuid() == 0:
        pytest.skip("the system does not limit the processes of root; another user is tried below")
    word, count = _printed(grader, BLOCKS["forks and allocates together"]).split()
    assert word == "CHILDREN"
    assert 0 < int(count) < isolation.PROCESSES


@pytest.mark.skipif(bool(reason := _missing("user")), reason=reason)
def test_graders_notice_where_namespaces_are_missing(users: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_separate in (True, False):
        monkeypatch.setattr(isolation, "_own_namespaces", lambda found=is_separate: found)
        assert bool(isolation.missing_protection("user")) != is_separate
        assert isolation.missing_protection("bwrap") == isolation.missing_protection("none") == ""


FORKS = """
import sys
sys.path.insert(0, {root!r})
from hybridnn.course import isolation
inner = "import sys; sys.path.insert(0, {root!r}); from hybridnn.course.isolation import confine; "
inner += "confine('bwrap', 0, 60)\\n" + {text!r}
import os
command = [*isolation.command_prefix("bwrap"), sys.executable, "-c", inner]
os.execv(command[0], command)
"""
FORKING = "import os, time\nchildren = 0\ntry:\n    while children < 100:\n        if os.fork() == 0:\n"
FORKING += "            time.sleep(1000)\n        children += 1\nexcept OSError:\n    pass\nprint(children)\n"


@pytest.mark.skipif(bool(reason := _missing("bwrap")), reason=reason)
def test_bubblewrap_limits_processes_where_its_user_is_not_root() -> None:
    program = FORKS.format(root=str(Path(hybridnn.__file__).parents[1]), text=FORKING)
    is_root = os.geteuid() == 0
    python = "/usr/bin/python3" if is_root else sys.executable  # that of the tests may be in a folder of root
    user: dict[str, Any] = {"user": 49_999, "group": 49_999, "extra_groups": []} if is_root else {}
    command = [python, "-I", "-B", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=deadline(60), check=False, cwd="/", **user)
    if ran.returncode and "bwrap:" in ran.stderr:
        pytest.skip(f"users may not start bubblewrap here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    assert 0 < int(ran.stdout) < isolation.PROCESSES


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
