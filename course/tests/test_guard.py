"""Code of submissions: what reaches the reference solutions is refused or stopped, and plain solutions are not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from course.tests.code_attacks import DISGUISED, READING
from course.tests.made import course_with, submission_zip
from course.tests.tried import Tried
from hybridnn.comm import blocks
from hybridnn.errors import HybridnnError
from hybridnn.nn import activations
from hybridnn_course import carrier
from hybridnn_course.assignment import Assignment, Case, load_assignment
from hybridnn_course.carrier import Worker
from hybridnn_course.grading import Grader, Limits
from hybridnn_course.isolation import choose_isolation
from hybridnn_course.submission import UngradableError, read_submission
from hybridnn_course.verify import some_variants
from mpi_runner.slowness import deadline

A2 = load_assignment("a2")
PRELUDE = """
from __future__ import annotations
from typing import Any
import numpy as np
Variant = dict
Function = Group = Request = Kernels = DenseLayer = LayerParameters = LayerArrays = WeightGradientArrays = Any
ScheduleSize = Instruction = Any
UPDATE_BLOCK = 32768
"""


def _isolation() -> str:
    try:
        return choose_isolation("auto")
    except HybridnnError:
        return "none"


# -- solutions as students would hand them in -------------------------------------------------------------------------


def _without_library(text: str, assignment: Assignment) -> str:
    """The statements of a module, without imports of the library that its handout does not offer."""
    statements = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hybridnn"):
            names = [alias for alias in node.names if alias.name in assignment.imports.get(str(node.module), ())]
            if not names:
                continue
            node.names = names
        statements.append(ast.unparse(node))
    return "\n".join(statements)


def submitted_solutions(assignment: Assignment, variant: Mapping[str, str]) -> dict[str, str]:
    """Files with the text of the reference solutions, which import what every submission may."""
    module = (assignment.folder() / "solution.py").read_text(encoding="utf-8")
    used = [inspect.getsource(one) for one in (blocks, activations) if one.__name__ in module]
    text = "\n".join([PRELUDE, *(_without_library(one, assignment) for one in (*used, module))])
    files = dict.fromkeys(assignment.files, text)
    for task in assignment.tasks:
        solution = task.solution(variant)
        name = task.solution.__name__
        made = f"{name}({dict(variant)!r})" if f"def {name}(" in module else solution.__name__
        if isinstance(solution, type) and made == solution.__name__:
            made = f"in_variant({made})({dict(variant)!r})"
        files[task.file] += f"\n{task.function} = {made}\n"
    return files


CODE = ("a1", "a2", "a3", "a4", "a5", "a6", "a7")  # of a8, nothing is code
VARIANTS = [(name, variant) for name in CODE for variant in some_variants(load_assignment(name), 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_solutions_as_students_hand_them_in_earn_everything(name: str, variant: dict[str, str], tmp_path: Path) -> None:
    assignment, limits = load_assignment(name), Limits(case=deadline(10), submission=deadline(300))
    grader = Grader(course_with(tmp_path / "course", assignment, variant), assignment, _isolation(), limits)
    outcome = grader.grade(submission_zip(assignment, variant, submitted_solutions(assignment, variant)))
    assert outcome.gradable, outcome.reason
    failed = [
        f"{task.name}, {check.name}: {check.message}"
        for task in outcome.tasks
        for check in task.checks
        if not check.passed
    ]
    assert failed == []
    assert [flag for flag in outcome.flags if "forbidden" in flag or "impossible" in flag] == []


# -- attacks ----------------------------------------------------------------------------------------------------------

BOUNDS = """
def block_bounds(items, parts, part):
    size, longer = divmod(items, parts)
    first = part * size + min(part, longer)
    return first, first + size + (part < longer)
"""
WITHOUT_HOOK = "from hybridnn_course import worker; worker.guard_process = lambda *_, **__: None"
WITHOUT_GUARD = f"{WITHOUT_HOOK}; worker.without_solutions = lambda assignment: assignment"


def _program(removed: str) -> str:
    """The program of a worker, from which a part of the guard is removed."""
    program = carrier.PROGRAM.replace("from hybridnn_course.worker import main", removed)
    return program.replace("main()", "worker.main()")


@pytest.mark.parametrize("name", [name for name in DISGUISED if name != "format strings that are put together"])
def test_what_reaches_the_solution_is_refused(name: str) -> None:
    """But for what gets text alone, and no points."""
    with pytest.raises(UngradableError, match="which no task needs"):
        read_submission(A2, submission_zip(A2, A2.standard, {"blocks.py": DISGUISED[name]}))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Tried]:
    """Submissions that are watched, and were not refused."""
    with Tried({"right": BOUNDS, **DISGUISED}, isolation=_isolation(), limit=deadline(10)) as tried:
        assert tried.check("right", "bounds").points > 0
        yield tried


@pytest.mark.parametrize("name", list(DISGUISED))
def test_what_reaches_the_solution_is_stopped_where_it_is_not_refused(guarded: Tried, name: str) -> None:
    outcomes = [guarded.check(name, task) for task in ("bounds", "minibatches")]
    assert [outcome.points for outcome in outcomes] == [0, 0], outcomes


@pytest.fixture(scope="module")
def unguarded() -> Iterator[Tried]:
    """Submissions that are neither refused nor watched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier, "PROGRAM", _program(WITHOUT_GUARD))
        tried = Tried(DISGUISED, limit=deadline(10))
    with tried:
        yield tried


@pytest.mark.parametrize("name", [name for name in DISGUISED if name not in READING])
def test_the_attacks_would_earn_points(unguarded: Tried, name: str) -> None:
    """Otherwise the tests above would show nothing."""
    outcome = unguarded.check(name, "bounds")
    assert outcome.points == A2.task("bounds").points.public, outcome.checks[0].message


FUNCTIONS = """
import gc
modules = [(one, str(getattr(one, "__module__", ""))) for one in gc.get_objects()]
found = [one for one, module in modules if module.startswith("hybridnn_course.assignments")]
print(*sorted({getattr(one, "__qualname__", "?") for one in found if callable(one)}), sep="\\n")
"""


def test_the_process_of_a_rank_has_no_solutions_and_no_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing watches what the submission does."""
    monkeypatch.setattr(carrier, "PROGRAM", _program(WITHOUT_HOOK))
    with Worker(A2, {"blocks.py": FUNCTIONS, "gradient.py": ""}, limit=deadline(10)) as worker:
        worker.run(A2.task("bounds"), Case("", ({"of": [3, 1]},)), A2.standard)
    found = worker.printed.split("\n")
    assert "_call_bounds" in found
    assert "_run_gradient" in found
    assert [name for name in found if "solution" in name or name in ("global_gradient", "_remainder_lost")] == []
