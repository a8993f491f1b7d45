"""What a person is asked to look at in code: imports and names that no task needs, and nothing else."""

from __future__ import annotations

import ast
import re

import pytest

from course.tests.made import submission_zip
from hybridnn_course.flagged_code import code_flags
from hybridnn_course.submission import read_submission
from hybridnn_course_staff.assignment import Assignment, assignment_packages, load_assignment
from hybridnn_course_staff.handout import render_handout
from hybridnn_course_staff.stubs import stub_file

IMPORT = re.compile(r"from hybridnn[\w.]* import (?:\([^)]*\)|\w+)")
NAMES = [name for name in assignment_packages() if load_assignment(name).files]
A2, A3 = load_assignment("a2"), load_assignment("a3")


def offered(assignment: Assignment) -> list[str]:
    """Import statements in the text of a handout."""
    return IMPORT.findall((assignment.folder() / "handout.md").read_text(encoding="utf-8"))


def flags_of(assignment: Assignment, line: str, modules: tuple[str, ...] = ()) -> tuple[str, ...]:
    name = assignment.files[0]
    text = f"{stub_file(assignment, name, assignment.standard)}\n{line}\n"
    archive = submission_zip(assignment, assignment.standard, {name: text})
    return read_submission(assignment, archive, modules).flags


@pytest.mark.parametrize("name", NAMES)
def test_the_handout_offers_what_may_be_imported(name: str) -> None:
    assignment = load_assignment(name)
    found: dict[str, set[str]] = {}
    for text in offered(assignment):
        statement = ast.parse(text).body[0]
        assert isinstance(statement, ast.ImportFrom)
        found.setdefault(statement.module or "", set()).update(alias.name for alias in statement.names)
    assert found == {module: set(names) for module, names in assignment.imports.items()}
    assert flags_of(assignment, "\n".join(offered(assignment))) == ()
    assert "modules of Python, NumPy, SciPy" in " ".join(render_handout(assignment, assignment.standard).split())


@pytest.mark.parametrize(
    ("assignment", "line", "flag"),
    [
        (A2, "import hybridnn", "imports hybridnn"),
        (A3, "import hybridnn.comm.blocks", "imports hybridnn.comm.blocks"),
        (A3, "from hybridnn.comm.blocks import block_bounds, block_slice", "imports hybridnn.comm.blocks.block_slice"),
        (A3, "from hybridnn.comm.blocks import *", "imports hybridnn.comm.blocks.*"),
        (A3, "from hybridnn_course_staff.verify import x", "imports hybridnn_course_staff.verify"),
        (A2, "from . import blocks", "imports ..blocks"),
        (A2, "import pandas as pd", "imports pandas"),
    ],
)
def test_what_no_task_needs_is_flagged_and_not_refused(assignment: Assignment, line: str, flag: str) -> None:
    found = [one for one in flags_of(assignment, line) if re.search(rf"^\w+\.py, line \d+: {re.escape(flag)}", one)]
    assert found, flags_of(assignment, line)


def test_modules_that_the_course_allows_are_not_flagged() -> None:
    assert flags_of(A2, "from pandas.api import extensions", ("pandas",)) == ()


def test_plain_code_is_not_flagged() -> None:
    lines = [
        *("from __future__ import annotations", "import collections.abc", "import gradient, time, re, sys"),
        *("import functools, logging, pprint, string", "from numpy import random as r, testing"),
        *("class A:", "    __slots__ = ('_x',)", "    def __init__(self):", "        self._x = np.zeros(3)"),
        *("    '''A vector; __globals__ and exec are words here.'''", "    def __lshift__(self, at):"),
        *("        return self._save(getattr(self, '_x')[at])", "    def _save(self, value):"),
        *("        return f'{value!r:>{8}} {{}}'", "@functools.wraps(len)", "def f(*a):", "    return len(*a)"),
        *("match [1, 2]:", "    case [int() as one, _]:", "        print('{:.3g} {}'.format(one, '__main__'))"),
        "if __name__ == '__main__':\n    np.testing.assert_allclose(1, 1)\n    logging.info(open)",
    ]
    assert flags_of(A2, "\n".join(lines)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_solutions_need_nothing_that_is_flagged(name: str) -> None:
    """But for the library, whose functions they may call."""
    assignment = load_assignment(name)
    tree = ast.parse((assignment.folder() / "solution.py").read_text(encoding="utf-8"))
    found = [reason for reason in code_flags(assignment, "solution.py", tree) if "imports hybridnn" not in reason]
    assert found == []
