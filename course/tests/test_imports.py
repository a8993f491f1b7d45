"""Imports of submissions: what a handout offers may be imported, and nothing else of the library."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from course.tests.made import submission_zip
from hybridnn_course.allowed_code import refusals
from hybridnn_course.assignment import Assignment, assignment_packages, load_assignment
from hybridnn_course.handout import render_handout
from hybridnn_course.stubs import stub_file
from hybridnn_course.submission import UngradableError, read_submission

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
    if found:
        read_submission(assignment, submitted(assignment, "\n".join(offered(assignment))))


@pytest.mark.parametrize("name", [name for name in NAMES if load_assignment(name).files])
def test_the_handout_lists_all_modules_that_may_be_imported(name: str) -> None:
    """Each of them is taken, and each module of Python that is not listed is refused."""
    assignment = load_assignment(name)
    text = " ".join(render_handout(assignment, assignment.standard, modules=["pandas"]).split())
    found = re.search(r"You may import your other files, and the modules (.*?); of ", text)
    assert found is not None
    listed = set(re.findall(r"`([\w.]+)`", found.group(1)))
    assert {"numpy", "scipy", "pandas", "math"} <= listed
    refused = {
        module
        for module in {*sys.stdlib_module_names, *listed}
        if list(refusals(assignment, "file.py", ast.parse(f"import {module}"), ["pandas"]))
    }
    assert refused == sys.stdlib_module_names - listed
    assert {"os", "sys", "re", "struct", "string", "logging", "pprint"} <= refused


@pytest.mark.parametrize(
    ("name", "line", "offer"),
    [
        ("a2", "import hybridnn", "write the functions without hybridnn"),
        *(
            ("a3", line, "you may import hybridnn.comm.blocks.block_bounds")
            for line in (
                "import hybridnn.comm.blocks",
                "from hybridnn.comm.blocks import block_bounds, block_slice",
                "from hybridnn.comm.blocks import *",
                "from hybridnn.comm import blocks",
                "from hybridnn_course.assignments.a3_allreduce.solution import allreduce",
            )
        ),
    ],
)
def test_other_imports_of_the_library_are_refused(name: str, line: str, offer: str) -> None:
    assignment = load_assignment(name)
    with pytest.raises(UngradableError, match=rf"imports hybridnn.*{offer}$"):
        read_submission(assignment, submitted(assignment, line))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os.path", "imports os.path; you may import __future__, abc, "),
        ("from . import blocks", "imports ..blocks"),
        ("from pandas import eval", "imports pandas.eval"),
        ("load = __import__('math')", "uses __import__"),
        ("built = __builtins__", "uses __builtins__"),
        ("found = getattr(np, 'dot')", "uses getattr"),
        ("find = np.getattr", "uses getattr"),
        ("system = np.ctypeslib.os", "uses os"),
        ("import numpy.ctypeslib", "uses ctypeslib"),
        ("from numpy import testing as t", "uses testing"),
        ("import dataclasses as d\nd._create_fn('f', (), ())", "uses _create_fn"),
        ("from random import _os", "uses _os"),
        ("above = (x for x in [1]).gi_frame.f_back", "uses f_back"),
        ("words = ().__class__", "uses __class__"),
        ("from operator import attrgetter", "uses attrgetter"),
        ("match np:\n    case object(__dict__=found):\n        pass", "uses __dict__"),
        ("np.asarray('x', allow_pickle=True)", "uses allow_pickle"),
        ("values = np.lib.format.read_array(None, True)", "uses read_array"),
        ("np.ones(2).tofile('x')", "uses tofile"),
        ("np.save('x', 1)", "uses save"),
        ("from numpy import fromfile as f", "uses fromfile"),
        ("from scipy import io", "uses io"),
        ("import functools\nfunctools.wraps(np.dot)", "uses wraps"),
        ("from functools import update_wrapper", "uses update_wrapper"),
        ("import typing\nkinds = typing.types", "uses types"),
        ("names = ('__globals__',)", "uses __globals__"),
        ("text = '{0.__globals__}'.format(np.dot)", "uses __globals__"),
        ("text = f'{np.dot.__globals__}'", "uses __globals__"),
        ("match np:\n    case X(found):\n        pass", "uses attributes without their names in a pattern"),
        ("found = dict(__match_args__=1)", "uses __match_args__"),
        ("class A:\n    def __setattr__(self, name, value):\n        pass", "uses __setattr__"),
        ("import numpy as __builtins__", "uses __builtins__"),
    ],
)
def test_ways_to_the_library_are_refused(line: str, reason: str) -> None:
    assignment = load_assignment("a2")
    with pytest.raises(UngradableError, match=rf"blocks.py, line \d+: {re.escape(reason)}"):
        read_submission(assignment, submitted(assignment, line))


def test_modules_that_the_course_allows_may_be_imported() -> None:
    assignment = load_assignment("a2")
    archive = submitted(assignment, "from pandas.api import extensions\nimport struct")
    with pytest.raises(UngradableError, match=r"imports struct; .*operator, pandas, random"):
        read_submission(assignment, archive, ["pandas"])
    assert read_submission(assignment, archive, ["pandas", "struct"]).flags == ()


def test_plain_code_is_taken() -> None:
    assignment = load_assignment("a2")
    lines = [
        *("from __future__ import annotations", "import collections.abc", "import gradient", "import time"),
        *("from numpy import random as r", "from functools import partial"),
        *("class A:", "    def __init__(self):", "        self._x = np.zeros(3)"),
        *("    '''A vector; __len__ and A.__class__ are words here.'''", "    def __getitem__(self, at):"),
        *("        return self._save(self._x[at])", "    def _save(self, value):"),
        "        return f'{value!r:>{8}} {{}}'",
        *("match [1, 2]:", "    case [int() as one, _]:", "        print('{:.3g} {}'.format(one, '__main__'))"),
        "if __name__ == '__main__':\n    print(A()[0], time.time(), np.linalg.norm([1.0]), np.random.default_rng())",
    ]
    assert read_submission(assignment, submitted(assignment, "\n".join(lines))).flags == ()


@pytest.mark.parametrize("name", NAMES)
def test_solutions_use_only_what_submissions_may(name: str) -> None:
    """But for the library, whose functions they may call."""
    assignment = load_assignment(name)
    tree = ast.parse((assignment.folder() / "solution.py").read_text(encoding="utf-8"))
    found = [reason for reason in refusals(assignment, "solution.py", tree) if "imports hybridnn" not in reason]
    assert found == []
