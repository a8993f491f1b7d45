"""Right submissions earn everything where they are isolated; what reaches for the solutions there earns nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridnn_course_staff
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
    assert outcome.flags == ((isolation.TRUSTED,) if _isolation() == "none" else ())


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


@pytest.fixture(scope="module")
def attacks() -> Iterator[Tried]:
    """Submissions that are isolated, and whose imports of the library are not watched."""
    if (mode := _isolation()) == "none":
        pytest.skip("submissions cannot be isolated here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier, "PROGRAM", UNWATCHED)
        with Tried({"right": LAST, **DISGUISED}, OTHER, isolation=mode, limit=deadline(10)) as tried:
            assert tried.check("right", "bounds").points > 0
            yield tried


@pytest.mark.parametrize("name", list(DISGUISED))
def test_what_reaches_for_the_solution_earns_nothing(attacks: Tried, name: str) -> None:
    assert [attacks.check(name, task).points for task in ("bounds", "minibatches")] == [0, 0]
    assert "def bounds_solution" not in attacks.printed


CONTAINER = """
import os
import hybridnn_course_staff
from hybridnn.errors import EnvironmentProblem
from hybridnn_course import isolation
from hybridnn_course.assignment import Case
from hybridnn_course.carrier import Worker
from hybridnn_course_staff.assignment import load_assignment
staff = os.path.dirname(hybridnn_course_staff.__file__)
isolation._bwrap_works, isolation._solution_folders = lambda: False, lambda: [staff]
a2 = load_assignment("a2")
for mode in (0o755, 0o700):
    os.chmod(staff, mode)
    try:
        print(isolation.choose_isolation("auto"))
    except EnvironmentProblem as error:
        print(str(error).partition(" in ")[0])
files = {"blocks.py": READS.replace("STAFF", staff), "gradient.py": ""}
with Worker(a2, files, isolation="user", limit=60) as worker:
    worker.run(a2.task("bounds"), Case("", ({"of": [3, 1]},)), a2.standard)
    print(worker.printed, end="")
    try:
        Worker(a2, {}, isolation="user")
    except EnvironmentProblem as error:
        print(str(error).partition(":")[0])
"""
READS = """
import os, time
def block_bounds(items, parts, part):
    print(os.getuid(), os.geteuid(), os.getgroups())
    for path in ("STAFF/assignments/a2_batch/solution.py", f"/proc/{os.getppid()}/mem", "/proc/1/environ"):
        try:
            print(open(path, "rb").read(1))
        except OSError as error:
            print(type(error).__name__)
    try:
        for count in range(100):
            if os.fork() == 0:
                time.sleep(60)
    except OSError:
        print(count < 64)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap, for a container")
def test_in_a_container_one_user_runs_submissions_to_whom_the_solutions_are_closed(tmp_path: Path) -> None:
    staff = Path(hybridnn_course_staff.__file__).parent
    shutil.copytree(staff, tmp_path / "staff", ignore=shutil.ignore_patterns("__pycache__"))
    folders = [*isolation._needed_folders(), staff]
    above = sorted({parent for folder in folders for parent in folder.parents if parent != Path("/")})
    command = ["bwrap", *isolation.BWRAP[: isolation.BWRAP.index("--unshare-pid")], "--unshare-pid", "--proc", "/proc"]
    command += [word for folder in above for word in ("--perms", "0755", "--dir", str(folder))]
    command += [word for folder in folders[:-1] for word in ("--ro-bind", str(folder), str(folder))]
    command += ["--bind", str(tmp_path / "staff"), str(staff), "--perms", "1777", "--tmpfs", "/tmp"]
    program = CONTAINER.replace("READS", repr(READS))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(isolation.import_paths())}
    done = subprocess.run(
        [*command, sys.executable, "-B", "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        *("submissions could read the solutions", "user", "30000 30000 []"),
        *("PermissionError", "PermissionError", "PermissionError", "True"),
        "another submission is graded here already",
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
    monkeypatch.setattr(isolation, "_bwrap_works", lambda: False)
    monkeypatch.setattr(isolation, "_can_read_solutions", lambda: True)
    for mode in ("auto", "user"):
        with pytest.raises(HybridnnError, match=r"chmod 700 .*hybridnn_course_staff"):
            choose_isolation(mode)
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 1000)
    with pytest.raises(HybridnnError, match="--trust-submissions runs them with the rights of this user"):
        choose_isolation("auto")
