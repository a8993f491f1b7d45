"""Code of the reference or the library: the share of equal pieces of syntax trees, without names and layout."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from hybridnn_course.assignment import Variant
from hybridnn_course.injection import find
from hybridnn_course.submission import Submission
from hybridnn_course_staff.assignment import Assignment, load_assignment
from hybridnn_course_staff.stubs import stub_file

PIECE = 12  # statements and expressions in a row that make a piece
LEAST_PIECES = 100  # of a function that may be flagged: short texts are often equal by chance
COPIED = 0.8  # share of pieces from which on a function is flagged
NOT_IN_NAMES = re.compile(r"[^\w.-]")
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def exported_files(
    assignment: Assignment, variant: Variant, submissions: Mapping[str, Submission]
) -> dict[str, dict[str, str]]:
    """Code files by the folder that other programs compare: of submissions, of what is published, and the stubs."""
    found = {"base": {name: stub_file(assignment, name, variant) for name in assignment.files}}
    named = {**published_code(assignment), **{name: one.files for name, one in submissions.items()}}
    for number, (name, files) in enumerate(named.items(), 1):
        found[f"submissions/{number:03}-{NOT_IN_NAMES.sub('_', name)[:80]}"] = dict(files)
    return found


def published_code(assignment: Assignment) -> dict[str, dict[str, str]]:
    """What can be copied: the reference, the library's functions, and further right solutions; by a name for each."""
    names = [name for task in assignment.tasks for name in (task.target, task.library) if name]
    library = [name for name in names if not name.startswith(assignment.package)]
    sources = [inspect.cleandoc(f"\n{inspect.getsource(find(name))}") for name in dict.fromkeys(library)]
    found = {"the reference": {"solution.py": _text(assignment.folder() / "solution.py")}}
    if sources:
        found["the library"] = {f"{number}.py": text for number, text in enumerate(sources)}
    for folder in sorted(assignment.folder().glob("right/*/")):
        found[f"right/{folder.name}"] = {path.name: _text(path) for path in sorted(folder.glob("*.py"))}
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def copied_functions(assignment: Assignment, tree: ast.Module) -> Iterator[str]:
    """Functions of a file that are code of the reference or the library; not short ones."""
    for node in tree.body:
        if isinstance(node, DEFINITIONS):
            own = _pieces(node) - _given_pieces(assignment.id)
            share = len(own & _published_pieces(assignment.id)) / len(own) if own else 0.0
            if len(own) >= LEAST_PIECES and share >= COPIED:
                yield f"{node.name} in line {node.lineno} has {share:.0%} of its code from the reference or the library"


@lru_cache(maxsize=16)
def _published_pieces(name: str) -> frozenset[int]:
    published = published_code(load_assignment(name))
    texts = [*published["the reference"].values(), *published.get("the library", {}).values()]
    return frozenset().union(*map(_pieces_of_text, texts))


@lru_cache(maxsize=16)
def _given_pieces(name: str) -> frozenset[int]:
    """Pieces of the files that students get."""
    assignment = load_assignment(name)
    stubs = (stub_file(assignment, file, assignment.standard) for file in assignment.files)
    return frozenset().union(*map(_pieces_of_text, stubs))


def _pieces_of_text(text: str) -> set[int]:
    nodes = (node for node in ast.parse(text).body if isinstance(node, DEFINITIONS))
    return set().union(*map(_pieces, nodes))


def _pieces(node: ast.AST) -> set[int]:
    """Hashes of all runs of `PIECE` nodes."""
    words = normal_form(node).replace("(", " ").split()
    return {hash(tuple(words[at : at + PIECE])) for at in range(max(1, len(words) - PIECE + 1))}


def normal_form(node: ast.AST) -> str:
    """A syntax tree as text, without docstrings, annotations, names and statements that do nothing."""
    tree = ast.Module([copy.deepcopy(node)], [])  # type: ignore[list-item]  # definitions are statements
    for child in ast.walk(tree):
        if isinstance(body := getattr(child, "body", None), list):
            child.body = [one for one in body if not _does_nothing(one)] or [ast.Pass()]  # type: ignore[attr-defined]  # it has one
        if isinstance(child, ast.FunctionDef):
            child.returns = None
        if isinstance(child, ast.arg):
            child.annotation = None
    if tree.body and isinstance(tree.body[0], DEFINITIONS):
        tree.body[0].name = "name"
    names: dict[str, str] = {}
    for child in ast.walk(tree):
        if isinstance(child, ast.arg):
            child.arg = names.setdefault(child.arg, f"v{len(names)}")
        elif isinstance(child, ast.Name):
            child.id = names.setdefault(child.id, f"v{len(names)}")
    return ast.dump(tree)


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
