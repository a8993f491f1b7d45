"""Imports of submissions: what a handout offers may be imported, and nothing else of the library."""

from __future__ import annotations

import ast
import re

import pytest

from course.made import submission_zip
from hybridnn.course.assignment import Assignment, assignment_packages, load_assignment
from hybridnn.course.stubs import stub_file
from hybridnn.course.submission import UngradableError, read_submission

IMPORT = re.compile(r"from hybridnn[\w.]* import (?:\([^)]*\)|\w+)")
NAMES = list(assignment_packages())


def offered(assignment: Assignment) -> list[str]:
    """Import statements in the text of a handout."""
    return IMPORT.findall((assignment.folder() / "handout.md").read_text(encoding="utf-8"))


def submitted(assignment: Assignment, line: str) -> bytes:
    name = assignment.files[0]
    text = f"{stub_file(assignment, name, assignment.standard)}\n{line}\n"
    return submission_zip(assignment, assignment.standard, {name: text})


@pytest.mark.parametrize("name", NAMES)
def test_the_handout_offers_what_may_be_imported(name: str) -> None:
    assignment = load_assignment(name)
    found: dict[str, set[str]] = {}
    for text in offered(assignment):
        statement = ast.parse(text).body[0]
        assert isinstance(statement, ast.ImportFrom)
        found.setdefault(statement.module or "", set()).update(alias.name for alias in statement.names)
    assert found == {module: set(names) for module, names in assignment.imports.items()}


@pytest.mark.parametrize("name", ["a3", "a4", "a5"])
def test_a_submission_with_the_imports_of_its_handout_is_graded(name: str) -> None:
    assignment = load_assignment(name)
    read_submission(assignment, submitted(assignment, "\n".join(offered(assignment))))


@pytest.mark.parametrize(
    "line",
    [
        "import hybridnn.comm.blocks",
        "from hybridnn.comm.blocks import block_slice",
        "from hybridnn.comm.blocks import block_bounds, block_slice",
        "from hybridnn.comm.blocks import *",
        "from hybridnn.comm import blocks",
        "from hybridnn.assignments.a3_allreduce.solution import allreduce",
    ],
)
def test_other_imports_of_the_library_are_refused(line: str) -> None:
    assignment = load_assignment("a3")
    with pytest.raises(UngradableError, match=r"imports hybridnn.*you may import hybridnn.comm.blocks.block_bounds$"):
        read_submission(assignment, submitted(assignment, line))


def test_an_assignment_that_offers_nothing_says_so() -> None:
    assignment = load_assignment("a2")
    with pytest.raises(UngradableError, match=r"imports hybridnn; write the functions without hybridnn$"):
        read_submission(assignment, submitted(assignment, "import hybridnn"))


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("import os.path", "imports os.path"),
        ("load = __import__('math')", "calls __import__"),
        ("built = __builtins__", "uses __builtins__"),
        ("found = getattr(np, 'dot')", "calls getattr"),
        ("system = np.ctypeslib.os", "uses os"),
        ("above = (x for x in [1]).gi_frame.f_back", "uses f_back"),
        ("words = ().__class__", "uses __class__"),
    ],
)
def test_ways_to_the_library_are_flagged(line: str, flag: str) -> None:
    assignment = load_assignment("a2")
    assert f"{assignment.files[0]} {flag}" in read_submission(assignment, submitted(assignment, line)).flags


def test_plain_code_has_no_flags() -> None:
    assignment = load_assignment("a2")
    line = "class A:\n    def __init__(self):\n        self.x = np.zeros(3)\n\nif __name__ == 'main':\n    A()"
    assert read_submission(assignment, submitted(assignment, line)).flags == ()
