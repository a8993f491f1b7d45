"""Right submissions earn everything where they are isolated; what reaches for the solutions there earns nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pytest

from course.tests.code_attacks import DISGUISED, OTHER, READING
from course.tests.made import course_with, submission_zip
from course.tests.tried import Tried
from hybridnn.errors import HybridnnError
from hybridnn_course import carrier, isolation
from hybridnn_course.assignment import Case
from hybridnn_course.carrier import Worker
from hybridnn_course.isolation import choose_isolation
from hybridnn_course_staff.assignment import assignment_packages, load_assignment
from hybridnn_course_staff.grading import Grader, Limits
from hybridnn_course_staff.verify import right_submissions
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
RIGHT = [
    pytest.param(right, id=f"{name} {right.name}")
    for name in assignment_packages()
    for right in right_submissions(load_assignment(name))
]


def _isolation() -> str:
    try:
        return choose_isolation("auto")
    except HybridnnError:
        return "none"


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHT)
def test_right_submissions_are_graded_with_all_points_and_no_flag(right: Any, tmp_path: Path) -> None:
    assignment, limits = right.assignment, Limits(case=deadline(10), submission=deadline(300))
    grader = Grader(course_with(tmp_path / "course", assignment, right.variant), assignment, _isolation(), limits)
    outcome = grader.grade(submission_zip(assignment, right.variant, right.files))
    assert outcome.gradable, outcome.reason
    failed = [(task.name, check) for task in outcome.tasks for check in task.checks if not check.passed]
    assert failed == []
    assert outcome.points == 100
    assert outcome.flags == ()


# -- attacks ----------------------------------------------------------------------------------------------------------

LAST = """
def block_bounds(items, parts, part):
    start, stop = (items * 0 + sum((items + one) // parts for one in range(until)) for until in (part, part + 1))
    return start, stop
"""
UNWATCHED = carrier.PROGRAM.replace(
    "from hybridnn_course.worker import main; main()",
    "from hybridnn_course import worker; worker.hide_library = lambda *_, **__: None; worker.main()",
)


WITHOUT_NAMESPACES = UNWATCHED.replace(
    "worker.main()",
    "from hybridnn_course import isolation; "
    "isolation.CLONE_NEWNET = isolation.CLONE_NEWIPC = isolation.MOUNT_ATTR_RDONLY = 0; "
    "isolation._solution_folders = lambda: []; worker.main()",
)


@contextmanager
def closed_solutions() -> Iterator[None]:
    """The folders of the solutions with mode 700, as without namespaces they have to be."""
    folders = isolation._solution_folders()
    with open(Path(gettempdir(), "hybridnn-course-closed"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        for folder in folders:
            os.chmod(folder, 0o700)
        try:
            yield
        finally:
            with suppress(BlockingIOError):  # another process of tests needs them closed
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for folder in folders:
                    os.chmod(folder, stat.S_IMODE(os.stat(Path(folder).parent).st_mode))


@pytest.fixture(
    scope="module", params=["auto", *(pytest.param(one, marks=pytest.mark.slow) for one in ("bwrap", "user"))]
)
def attacks(request: pytest.FixtureRequest) -> Iterator[Tried]:
    """Submissions that are isolated, and whose imports of the library are not watched; as users without namespaces."""
    try:
        mode = choose_isolation(request.param)
    except HybridnnError as error:
        pytest.skip(str(error))
    is_closed = request.param == "user"
    with pytest.MonkeyPatch.context() as patch, closed_solutions() if is_closed else nullcontext():
        patch.setattr(carrier, "PROGRAM", WITHOUT_NAMESPACES if is_closed else UNWATCHED)
        with Tried({"right": LAST, **DISGUISED}, OTHER, isolation=mode, limit=deadline(10)) as tried:
            assert tried.check("right", "bounds").points > 0
            yield tried


@pytest.mark.parametrize("name", list(DISGUISED))
def test_what_reaches_for_the_solution_earns_nothing(attacks: Tried, name: str) -> None:
    assert [attacks.check(name, task).points for task in ("bounds", "minibatches")] == [0, 0]
    assert "def bounds_solution" not in attacks.printed


WITHOUT_THE_CAPABILITY = """
import ctypes, os, sys
from course.tests.test_guard import GRADING
from hybridnn_course import isolation
closed = isolation._closed_folder
isolation._covered = lambda needed: sorted({folder for path in needed if (folder := closed(path))})
isolation._solution_folders = lambda: []
isolation.MOUNT_ATTR_RDONLY = 0
isolation._own_namespaces()  # so that all users can read Python, also where it is in a folder of root
CAPBSET_DROP, SYS_ADMIN = 24, 21
assert ctypes.CDLL(None).prctl(CAPBSET_DROP, SYS_ADMIN, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-c", GRADING])
"""
GRADING = """
import os
from course.tests.test_guard import DISGUISED, LAST, OTHER, closed_solutions
from course.tests.tried import Tried
from hybridnn.errors import EnvironmentProblem
from hybridnn_course import isolation
from hybridnn_course.isolation import choose_isolation
solution_folders = isolation._solution_folders
isolation._solution_folders = lambda: [os.environ["OPEN_FOLDER"]]  # other tests may have closed the real ones
try:
    choose_isolation("auto")
except EnvironmentProblem as error:
    print(str(error).partition(" in ")[0])
isolation._solution_folders = solution_folders
with closed_solutions(), Tried({"right": LAST, **DISGUISED}, OTHER, isolation=choose_isolation("auto")) as tried:
    for name in ("right", "a loader of files", "the history of the repository"):
        print(name, tried.check(name, "bounds").points > 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
def test_solutions_are_closed_without_the_capability_of_namespaces() -> None:
    """In a process that may not make namespaces, as in a usual container."""
    command = [sys.executable, "-c", WITHOUT_THE_CAPABILITY]
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "solution.py").touch()
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPEN_FOLDER": folder}
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "submissions could read the solutions",
        "right True",
        "a loader of files False",
        "the history of the repository False",
    ], done.stderr


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Tried]:
    """The same without isolation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier, "PROGRAM", UNWATCHED)
        tried = Tried(DISGUISED, OTHER, limit=deadline(10))
    with tried:
        yield tried


@pytest.mark.parametrize("name", [name for name, text in DISGUISED.items() if "bounds_solution(variant)" in text])
def test_the_attacks_would_earn_points(unguarded: Tried, name: str) -> None:
    """Otherwise the test above would show nothing."""
    if name in READING:
        pytest.skip("it reads")
    outcome = unguarded.check(name, "bounds")
    assert outcome.points == A2.task("bounds").points.public, outcome.checks[0].message


FUNCTIONS = """
import gc, sys
modules = [(one, str(getattr(one, "__module__", ""))) for one in gc.get_objects()]
print(*sorted({module for _, module in modules if module.startswith("hybridnn_course")}), sep="\\n")
"""


def test_the_process_of_a_rank_has_no_module_of_the_staff() -> None:
    with Worker(A2, {"blocks.py": FUNCTIONS, "gradient.py": ""}, limit=deadline(10)) as worker:
        worker.run(A2.task("bounds"), Case("", ({"of": [3, 1]},)), A2.standard)
    found = worker.printed.split("\n")
    assert "hybridnn_course.exercises.a2_batch.calls" in found
    assert [name for name in found if name.startswith("hybridnn_course_staff")] == []


def test_solutions_that_could_be_read_are_not_risked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(isolation, "_can_read_solutions", lambda: True)
    for mode in ("auto", "user"):
        with pytest.raises(HybridnnError, match=r"chmod 700 .*hybridnn_course_staff"):
            choose_isolation(mode)
