"""Attacks on the grader gain no points, leave nothing behind and take no longer than its limits allow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from course.tests.attacks import BLOCKS, SLOW
from course.tests.made import course_with, submission_zip
from course.tests.rank_attacks import GRADIENT, MEETINGS
from course.tests.tried import Tried
from hybridnn.errors import HybridnnError
from hybridnn_course import carrier, isolation, watch
from hybridnn_course.answers import Failure
from hybridnn_course.assignment import Case
from hybridnn_course.carrier import Worker
from hybridnn_course.isolation import choose_isolation
from hybridnn_course.outcome import TaskOutcome
from hybridnn_course.submission import UngradableError, read_submission
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.term import Course
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
BOUNDS = replace(A2, tasks=(replace(A2.task("bounds"), whole=None),))
CASE_SECONDS = 2.0
NAMES = ("left-", "part-", "meet-", "bomb", "results.json")
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
OWNED = Path("/root/owned")
UNWATCHED = carrier.PROGRAM.replace("main()", "from hybridnn_course import worker; ")
UNWATCHED += "worker.hide_library = lambda *_, **__: None; main()"
"""The isolation alone: the library is not hidden."""

WITHOUT_NAMESPACES = UNWATCHED.replace(
    "main()", "worker.enter_namespaces = lambda: None; worker.confine = lambda *_: None; main()"
)
"""Ranks that share the container of their submission, without limits: the attacks below are to succeed there."""

MEET_THERE = ("priorities", "watched files", "a watched folder", "a lock of a whole file")

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

HUNGRY = """
import os, time
import numpy as np
def block_bounds(items, parts, part):
    for _ in range(8):
        if os.fork() == 0:
            array = np.ones(1 << 25)
            time.sleep(100)
    time.sleep(100)
"""
BREEDING = HUNGRY.replace("np.ones(1 << 25)", "0").replace("range(8)", "range(30)")
HEAVY = (
    *("memory hog", "fork bomb", "forks and allocates together", "looks for the key", "floods the grader"),
    *("prints without end", "meet in a file", "meet in shared memory", "deep outputs"),
    *("endless loop", "endless sleep", "endless import", "stops itself", "ignores signals", "recursion without end"),
    *("floods the grader with small calls", "a frame that does not end"),
)
"""Attacks that only `make test-all` tries, as they need a processor for seconds."""


def _patient(text: str) -> str:
    """An attack whose ranks meet also where the machine is slow."""
    text = text.replace("sleep(0.3)", f"sleep({deadline(0.3)})")
    return text.replace("settimeout(0.5)", f"settimeout({deadline(0.5)})")


def _missing() -> str:
    try:
        choose_isolation("bwrap")
    except HybridnnError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(reason := _missing()), reason=reason)


def _attacks(texts: dict[str, str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else [], id=name) for name in texts]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return course_with(tmp_path_factory.mktemp("attacks") / "course", A2, A2.standard)


class Attacks:
    """Attacks whose cases leave nothing behind, take at most twice their limit, and read no secret."""

    def __init__(self, course: Course) -> None:
        self._secret, self.limit = course.key.hex(), deadline(CASE_SECONDS)
        texts = {"right": RIGHT, "right gradient": RIGHT_GRADIENT, **BLOCKS, **SLOW, **MEETINGS}
        texts |= {name: _patient(text) for name, text in GRADIENT.items()}
        self._children = _children()
        self.tried = Tried(texts, isolation="bwrap", limit=self.limit)

    def check(self, name: str, task: str) -> TaskOutcome:
        """The outcome of a case."""
        before = self._files()
        if os.path.exists(OWNED):
            OWNED.unlink()
        start = time.monotonic()
        outcome = self.tried.check(name, task)
        outcome.model_dump_json()  # which is written to a file
        assert time.monotonic() - start < carrier.WALL_FACTOR * self.limit + deadline(10)
        (bubblewrap,) = _children() - self._children
        assert list(watch._descendants(watch._worker(bubblewrap))) == []  # of the process that starts the ranks
        assert self._files() <= before
        self._assert_nothing_read(name)
        return outcome

    def _assert_nothing_read(self, name: str) -> None:
        assert self._secret not in self.tried.printed
        assert not os.path.exists(OWNED)
        words = ("LEFT", "ATTACHED", "FOUND", "CONNECTED", "MET")
        assert not any(word in self.tried.printed for word in words), self.tried.printed

    @staticmethod
    def _files() -> set[str]:
        """Files with names that attacks give."""
        folders = filter(os.path.isdir, FOLDERS)
        return {f"{folder}/{name}" for folder in folders for name in os.listdir(folder) if name.startswith(NAMES)}


def _children() -> set[int]:
    return set(watch._children(os.getpid()))


@pytest.fixture(scope="module")
def attacks(course: Course) -> Iterator[Attacks]:
    with (
        TemporaryDirectory(dir="/" if os.access("/", os.W_OK) else None) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(carrier, "PROGRAM", UNWATCHED)
        patch.setattr(carrier, "WALL_FACTOR", 3)
        os.chmod(folder, 0o777)  # all may write to it, and it is none of the usual ones
        Path(folder, "a2-submission.zip").write_text("of another student")
        made = Attacks(course)
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
    assert outcome.flags == ()


@pytest.mark.parametrize("name", MEETINGS)
def test_a_rank_tells_another_one_nothing(attacks: Attacks, name: str) -> None:
    assert attacks.check(name, "gradient").points == 0


def test_ranks_would_meet_without_namespaces_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would show nothing."""
    monkeypatch.setattr(carrier, "PROGRAM", WITHOUT_NAMESPACES)
    with Tried(MEETINGS, isolation="bwrap", limit=deadline(10)) as tried:
        for name in MEET_THERE:
            tried.check(name, "gradient")
            assert "MET" in tried.printed, name


def test_the_memory_of_all_processes_is_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MEMORY_BYTES", 1 << 30)
    with Worker(A2, {"blocks.py": HUNGRY, "gradient.py": ""}, isolation="bwrap", limit=deadline(10)) as worker:
        failure = worker.run(A2.task("bounds"), Case("", ({"of": [3, 1]},)), A2.standard).failure
    assert failure == Failure("memory", "the submission used more than 1 GiB of memory together")


def test_the_processes_of_all_ranks_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_PROCESSES", 20)
    with Worker(A2, {"blocks.py": BREEDING, "gradient.py": ""}, isolation="bwrap", limit=deadline(10)) as worker:
        failure = worker.run(A2.task("bounds"), Case("", ({"of": [3, 1]},)), A2.standard).failure
    assert failure == Failure("memory", "the submission used more than 23 processes together")


def test_a_submission_that_is_trusted_says_so(course: Course) -> None:
    outcome = Grader(course, BOUNDS, "none").grade(submission_zip(A2, A2.standard, {"blocks.py": RIGHT}))
    assert outcome.flags[0] == isolation.TRUSTED


def test_other_encodings_hide_nothing() -> None:
    """Python runs the comment where it reads the file in the encoding of its first line; graders read UTF-8."""
    space: dict[str, Any] = {}
    exec(BLOCKS["code in a comment"].encode(), space)
    assert space["block_bounds"](10, 4, 1) == (3, 6)
    encoded = "# coding: utf-7\n+AGk-mport os\n"
    with pytest.raises(UngradableError, match=r"^blocks\.py, line 2: cannot be parsed: .+\Z"):
        read_submission(A2, submission_zip(A2, A2.standard, {"blocks.py": encoded}))


@pytest.mark.slow
def test_a_rank_has_few_processes_also_where_root_grades(attacks: Attacks) -> None:
    attacks.check("forks and allocates together", "bounds")
    word, count = attacks.tried.printed.split()
    assert word == "CHILDREN"
    assert 0 < int(count) < isolation.PROCESSES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tries"), [("prints scores as the last line", 18), ("endless loop", 2)])
def test_a_whole_submission_earns_nothing(
    course: Course, monkeypatch: pytest.MonkeyPatch, name: str, tries: int
) -> None:
    """A task that does not end is given up after its first case; two tasks are in the file."""
    limits = Limits(case=deadline(CASE_SECONDS), submission=deadline(60))
    monkeypatch.setattr(carrier, "WALL_FACTOR", 100)  # the limit of processor time ends it
    files = {"blocks.py": {**BLOCKS, **SLOW}[name]}
    outcome = Grader(course, A2, "bwrap", limits).grade(submission_zip(A2, A2.standard, files))
    assert outcome.gradable, outcome.reason
    assert outcome.points == 0
    checks = [check for task in outcome.tasks[:2] for check in task.checks if check.kind in ("public", "hidden")]
    assert sum(not check.not_tried for check in checks) == tries
