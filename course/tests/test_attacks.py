"""Attacks on the grader gain no points, leave nothing behind and take no longer than its limits allow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from course.tests.attacks import BLOCKS, SLOW
from course.tests.made import course_with, submission_zip
from course.tests.rank_attacks import GRADIENT
from course.tests.tried import Tried
from hybridnn.errors import HybridnnError
from hybridnn_course import carrier, isolation
from hybridnn_course.isolation import choose_isolation
from hybridnn_course.outcome import TaskOutcome
from hybridnn_course.submission import UngradableError, read_submission
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.term import Course
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
CASE_SECONDS = 2.0
NAMES = ("left-", "part-", "meet-", "bomb", "results.json")
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
OWNED = Path("/root/owned")
UNWATCHED = "from hybridnn_course import isolation, worker; worker.hide_library = lambda *_, **__: None"
WITHOUT_NAMESPACES = (
    f"{UNWATCHED}; isolation.CLONE_NEWNET = isolation.CLONE_NEWIPC = isolation.MOUNT_ATTR_RDONLY = 0; "
    "closed = isolation._closed_folder; "
    "isolation._covered = lambda needed: sorted(filter(None, set(map(closed, needed))))"
)
"""Only folders of root are covered, which Python may be in."""

MEETS = {
    "user": (),
    "user without namespaces": ("meet in a file for all", "meet at a socket"),
    "bwrap": ("meet at a socket",),
}
"""How ranks of one submission can exchange data without the grader, by isolation."""

RIGHT = """
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)

def minibatches(order, batch_size):
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
"""
RIGHT_GRADIENT = """
import numpy as np

def global_gradient(group, weights, bias, x, labels):
    e = np.exp(x @ weights.T + bias)
    p, rows = e / e.sum(axis=1, keepdims=True), np.arange(len(labels))
    loss = -np.log(p[rows, labels]).sum()
    p[rows, labels] -= 1
    total = np.concatenate([(p.T @ x).ravel(), p.sum(axis=0), [loss, len(labels)]])
    group.allreduce(total)
    mean = total[:-1] / total[-1]
    return mean[: weights.size].reshape(weights.shape), mean[weights.size : -1], float(mean[-1])
"""

HEAVY = (
    *("memory hog", "fork bomb", "forks and allocates together", "looks for the key", "floods the grader"),
    *("prints without end", "meet in a file", "meet in shared memory", "deep outputs"),
    *("endless loop", "endless import", "stops itself", "ignores signals", "recursion without end"),
    *("floods the grader with small calls", "a frame that does not end"),
)
"""Attacks that only `make test-all` tries, as they need a processor for seconds."""


def _patient(text: str) -> str:
    """An attack whose ranks meet also where the machine is slow."""
    text = text.replace("sleep(0.3)", f"sleep({deadline(0.3)})")
    return text.replace("settimeout(0.5)", f"settimeout({deadline(0.5)})")


def _missing(mode: str) -> str:
    try:
        choose_isolation(mode)
    except HybridnnError as error:
        return str(error)
    return ""


def _modes() -> Iterator[Any]:
    for number, mode in enumerate(MEETS):
        reason = _missing(mode.split()[0])
        marks = [pytest.mark.skipif(bool(reason), reason=reason), *([pytest.mark.slow] if number else [])]
        yield pytest.param(mode, marks=marks, id=mode)


def _attacks(texts: dict[str, str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else [], id=name) for name in texts]


@pytest.fixture(scope="module")
def users() -> Iterator[range]:
    """Users that no other process of tests on this machine has at the same time."""
    first = 100_000 + 1_000 * (os.getpid() % 1_000_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "FIRST_USER", first)
        patch.setattr(isolation, "LOCK", f"\0hybridnn-course-test-{first}-")
        yield range(first, first + 1_000)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return course_with(tmp_path_factory.mktemp("attacks") / "course", A2, A2.standard)


@pytest.fixture(scope="module", params=_modes())
def mode(request: pytest.FixtureRequest, users: range) -> Iterator[str]:
    """An isolation alone: the library is not hidden."""
    removed = WITHOUT_NAMESPACES if "without" in request.param else UNWATCHED
    program = carrier.PROGRAM.replace("from hybridnn_course.worker import main", removed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier, "PROGRAM", program.replace("main()", "worker.main()"))
        yield request.param


class Attacks:
    """Attacks whose cases leave nothing behind, take at most twice their limit, and read no secret."""

    def __init__(self, mode: str, users: range, course: Course) -> None:
        self.mode, self._users, self._secret = mode, users, course.key.hex()
        self._children = _children()
        texts = {"right": RIGHT, "right gradient": RIGHT_GRADIENT, **BLOCKS, **SLOW}
        texts |= {name: _patient(text) for name, text in GRADIENT.items()}
        self.limit = deadline(CASE_SECONDS)
        self.tried = Tried(texts, isolation=mode.split()[0], limit=self.limit)

    def check(self, name: str, task: str) -> TaskOutcome:
        """The outcome of a case."""
        before = self._files()
        if os.path.exists(OWNED):
            OWNED.unlink()
        start = time.monotonic()
        outcome = self.tried.check(name, task)
        outcome.model_dump_json()  # which is written to a file
        assert time.monotonic() - start < carrier.WALL_FACTOR * self.limit + deadline(10)
        assert [process for process, (_, user) in _status_of_processes().items() if user in self._users] == []
        assert len(_children() - self._children) == 1  # the process that starts the ranks
        assert self._files() <= before
        self._assert_nothing_read(name)
        return outcome

    def _assert_nothing_read(self, name: str) -> None:
        assert self._secret not in self.tried.printed
        assert not os.path.exists(OWNED)
        words = ["LEFT", *(["ATTACHED"] if self.mode.startswith("user") else [])]  # a container's processes are alike
        if "without" not in self.mode:  # there, folders that all may read are seen, and the network
            words += ["FOUND", "CONNECTED"]
        assert not any(word in self.tried.printed for word in words), self.tried.printed

    def _files(self) -> set[str]:
        """Files of the users of ranks; without users of their own, such with names that attacks give."""
        found = set()
        for path in (Path(folder, name) for folder in FOLDERS if os.path.isdir(folder) for name in os.listdir(folder)):
            try:
                is_named = not self.mode.startswith("user") and path.name.startswith(NAMES)
                if is_named or path.lstat().st_uid in self._users:
                    found.add(str(path))
            except OSError:
                continue
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


def _children() -> set[int]:
    return {process for process, (parent, _) in _status_of_processes().items() if parent == os.getpid()}


@pytest.fixture(scope="module")
def attacks(mode: str, users: range, course: Course) -> Iterator[Attacks]:
    with TemporaryDirectory(dir="/" if os.access("/", os.W_OK) else None) as folder:
        os.chmod(folder, 0o777)  # all may write to it, and it is none of the usual ones
        Path(folder, "a2-submission.zip").write_text("of another student")
        made = Attacks(mode, users, course)
        with made.tried:
            yield made


def test_right_functions_earn_their_points(attacks: Attacks) -> None:
    """In the same way as attacks are tried."""
    for name, task in (("right", "bounds"), ("right", "minibatches"), ("right gradient", "gradient")):
        outcome = attacks.check(name, task)
        assert outcome.points > 0, outcome.checks[0].message
        assert outcome.flags == ()


@pytest.mark.parametrize("name", _attacks(BLOCKS))
def test_no_points_and_nothing_left(attacks: Attacks, name: str) -> None:
    for task in ("bounds", "minibatches"):
        outcome = attacks.check(name, task)
        assert outcome.points == 0, outcome


@pytest.mark.parametrize("name", _attacks(SLOW))
def test_the_limit_of_a_case_ends_it(attacks: Attacks, name: str) -> None:
    outcome = attacks.check(name, "bounds")
    assert outcome.points == 0
    message = outcome.checks[0].message
    assert "no result after" in message or "ended" in message, message


@pytest.mark.parametrize("name", _attacks(GRADIENT))
def test_ranks_meet_nowhere_but_at_the_grader(attacks: Attacks, name: str) -> None:
    outcome = attacks.check(name, "gradient")
    assert outcome.points == 0, outcome
    is_flagged = any(flag.startswith("gradient: impossible") for flag in outcome.flags)
    assert is_flagged == (name in MEETS[attacks.mode]), outcome


def test_other_letters_and_encodings_hide_nothing() -> None:
    """Python runs the comment where it reads the file in the encoding of its first line; graders read UTF-8."""
    space: dict[str, Any] = {}
    exec(BLOCKS["code in a comment"].encode(), space)
    assert space["block_bounds"](10, 4, 1) == (3, 6)
    wide = "\uff45\uff58\uff45\uff43('')\n"
    flags = read_submission(A2, submission_zip(A2, A2.standard, {"blocks.py": wide})).flags
    assert flags == ("blocks.py, line 1: uses exec",)
    encoded = "# coding: utf-7\n+AGk-mport os\n"
    with pytest.raises(UngradableError, match=r"^blocks\.py, line 2: cannot be parsed: .+\Z"):
        read_submission(A2, submission_zip(A2, A2.standard, {"blocks.py": encoded}))


@pytest.mark.slow
def test_a_user_has_few_processes(attacks: Attacks) -> None:
    if attacks.mode == "bwrap" and os.geteuid() == 0:
        pytest.skip("the system does not limit the processes of root")
    attacks.check("forks and allocates together", "bounds")
    word, count = attacks.tried.printed.split()
    assert word == "CHILDREN"
    assert 0 < int(count) < isolation.PROCESSES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tries"), [("prints scores as the last line", 18), ("endless loop", 2)])
def test_a_whole_submission_earns_nothing(mode: str, course: Course, name: str, tries: int) -> None:
    """A task that does not end is given up after its first case; two tasks are in the file."""
    limits = Limits(case=deadline(CASE_SECONDS), submission=deadline(60))
    files = {"blocks.py": {**BLOCKS, **SLOW}[name]}
    outcome = Grader(course, A2, mode.split()[0], limits).grade(submission_zip(A2, A2.standard, files))
    assert outcome.gradable, outcome.reason
    assert outcome.points == 0
    checks = [check for task in outcome.tasks[:2] for check in task.checks if check.kind in ("public", "hidden")]
    assert sum(not check.not_tried for check in checks) == tries


@pytest.mark.skipif(bool(reason := _missing("user")), reason=reason)
def test_processes_of_a_grader_that_was_killed_meet_no_other_submission(users: range) -> None:
    left = [_process_of(user) for user in users[: 2 * isolation.USERS : isolation.USERS]]
    try:
        with carrier.Worker(A2, {}, isolation="user") as worker:
            assert worker._users is not None
            number = (worker._users.first - users.start) // isolation.USERS
            end = time.monotonic() + deadline(5)
            while not (found := os.waitpid(left[number], os.WNOHANG))[0] and time.monotonic() < end:
                time.sleep(0.01)
            assert found == (left[number], signal.SIGKILL)
            del left[number]
    finally:
        for process in left:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _process_of(user: int) -> int:
    """A process of another user that does nothing."""
    process = os.fork()
    if process == 0:
        os.setresuid(user, user, user)
        time.sleep(1000)
        os._exit(0)
    return process


@pytest.mark.skipif(bool(reason := _missing("user")), reason=reason)
def test_graders_notice_where_namespaces_are_missing(users: range, monkeypatch: pytest.MonkeyPatch) -> None:
    here = isolation.missing_protection("user")
    for is_separate in (True, False):
        monkeypatch.setattr(isolation, "_own_namespaces", lambda found=is_separate: found)
        assert bool(isolation.missing_protection("user")) != is_separate
        assert isolation.missing_protection("bwrap") == ""
    monkeypatch.undo()
    monkeypatch.setattr(isolation, "_solution_folders", lambda: ["/tmp/solutions"])  # in a folder that is covered
    assert isolation.missing_protection("user") == here
    assert "can read the solutions" in isolation.missing_protection("none")
