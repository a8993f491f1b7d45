"""Oral questions: names that are drawn from the submissions, each with lines of its code to explain."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from hybridnn_course_staff.assignment import Assignment
from hybridnn_course_staff.stubs import stub_file


@dataclass(frozen=True)
class Line:
    """A line of code of a submission."""

    file: str
    number: int
    text: str


def draw_questions(
    assignment: Assignment, submissions: Mapping[str, Mapping[str, str]], random: Random, names: int, lines: int = 3
) -> dict[str, list[Line]]:
    """Draw submissions, and from each some lines inside functions that are not those of the files to fill in.

    Parameters
    ----------
    submissions : mapping
        Texts of the code files by submission.
    """
    given = {line for name in assignment.files for line in stub_file(assignment, name, assignment.standard).split("\n")}
    found = {}
    for name in sorted(random.sample(sorted(submissions), min(names, len(submissions)))):
        written = [line for line in _lines(submissions[name]) if line.text not in given]
        chosen = random.sample(written, min(lines, len(written)))
        found[name] = sorted(chosen, key=lambda line: (line.file, line.number))
    return found


def _lines(files: Mapping[str, str]) -> Iterator[Line]:
    """Lines on which statements of functions begin, without docstrings."""
    for file, text in files.items():
        rows = text.split("\n")
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        statements = (one for function in functions for node in function.body for one in ast.walk(node))
        numbers = {
            one.lineno
            for one in statements
            if isinstance(one, ast.stmt) and not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        }
        yield from (Line(file, number, rows[number - 1]) for number in sorted(numbers))
