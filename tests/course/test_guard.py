"""Code of submissions: what reaches the reference solutions is refused or stopped, and plain solutions are not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest

from course.code_attacks import DISGUISED, READING
from course.made import course_with, submission_zip
from hybridnn.comm import blocks
from hybridnn.course import carrier, submission
from hybridnn.course.assignment import Assignment, Case, load_assignment
from hybridnn.course.carrier import Worker
from hybridnn.course.checks import TaskKey, check_task
from hybridnn.course.grading import Grader, Limits
from hybridnn.course.isolation import choose_isolation
from hybridnn.course.outcome import Outcome
from hybridnn.course.verify import some_variants
from hybridnn.errors import HybridnnError
from hybridnn.kernels import activations
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


def _grader(folder: Path, assignment: Assignment, variant: Mapping[str, str]) -> Grader:
    limits = Limits(case=deadline(10), submission=deadline(300))
    return Grader(course_with(folder, assignment, variant), assignment, _isolation(), limits)


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
VARIANTS = [  # every choice of every axis
    pytest.param(name, variant, marks=[pytest.mark.slow] * (number > 0), id=f"{name}-{number}")
    for name in CODE
    for number, variant in enumerate(some_variants(load_assignment(name), 3))
]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_solutions_as_students_hand_them_in_earn_everything(name: str, variant: dict[str, str], tmp_path: Path) -> None:
    assignment = load_assignment(name)
    grader = _grader(tmp_path / "course", assignment, variant)
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


def _attacked(grader: Grader, text: str) -> Outcome:
    return grader.grade(submission_zip(A2, A2.standard, {"blocks.py": text}))


@pytest.mark.parametrize("name", list(DISGUISED))
def test_what_reaches_the_solution_is_refused(name: str, tmp_path: Path) -> None:
    outcome = _attacked(_grader(tmp_path / "course", A2, A2.standard), DISGUISED[name])
    assert outcome.points == 0
    if name != "format strings that are put together":  # gets text, and no points
        assert not outcome.gradable
        assert "which no task needs" in outcome.reason


@pytest.mark.parametrize("name", list(DISGUISED))
def test_what_reaches_the_solution_is_stopped_where_it_is_not_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "refusals", lambda *_: ())
    outcome = _attacked(_grader(tmp_path / "course", A2, A2.standard), DISGUISED[name])
    assert outcome.gradable
    assert outcome.points == 0, [(check.name, check.message) for task in outcome.tasks for check in task.checks]


WITHOUT_HOOK = "from hybridnn.course import worker; worker.guard_process = lambda *_, **__: None"
WITHOUT_GUARD = f"{WITHOUT_HOOK}; worker.without_solutions = lambda assignment: assignment"


def _program(removed: str) -> str:
    """The program of a worker, from which a part of the guard is removed."""
    program = carrier.PROGRAM.replace("from hybridnn.course.worker import main", removed)
    return program.replace("main()", "worker.main()")


@pytest.mark.parametrize("name", [name for name in DISGUISED if name not in READING])
def test_the_attacks_would_earn_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code is neither refused nor watched: otherwise the tests above would show nothing."""
    monkeypatch.setattr(carrier, "PROGRAM", _program(WITHOUT_GUARD))
    key = TaskKey(A2, A2.task("bounds"), A2.standard)
    with Worker(A2, {"blocks.py": DISGUISED[name], "gradient.py": ""}, limit=deadline(10)) as worker:
        outcome = check_task(worker, key, whole=False)
    assert outcome.points == key.task.points.public, outcome.checks[0].message


FUNCTIONS = """
import gc
found = [one for one in gc.get_objects() if str(getattr(one, "__module__", "")).startswith("hybridnn.assignments")]
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
