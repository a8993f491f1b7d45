"""Similar code: the share of equal pieces of syntax trees, without names, comments and layout."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from hybridnn_course.injection import find
from hybridnn_course_staff.assignment import Assignment, load_assignment
from hybridnn_course_staff.stubs import stub_file

PIECE = 12  # statements and expressions in a row that make a piece
LEAST_PIECES = 100  # of a function that may be flagged, or of similar code: short texts are often equal by chance
COPIED = 0.8  # share of pieces from which on a function is flagged
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Pair:
    """Two submissions, and the share of pieces of the shorter one that the other has, too."""

    one: str
    other: str
    share: float


@dataclass(frozen=True)
class Cluster:
    """Submissions of which each is similar to another one, and the least and the largest share of such a pair."""

    names: tuple[str, ...]
    least: float
    most: float


def similar_pairs(
    assignment: Assignment,
    submissions: Mapping[str, Mapping[str, str]],
    least: float,
    others: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Pair]:
    """Pairs of submissions whose share is at least `least`, the most similar first; not of short ones.

    The pieces of a submission are formed without a limit of time: `read_in_time` has formed them within its own.

    Parameters
    ----------
    submissions : mapping
        Texts of the code files by submission.
    others : mapping, optional
        Further ones, which are compared with the submissions and not with each other.
    """
    given, others = _given_pieces(assignment.id), others or {}
    pieces = {
        name: set().union(*map(_pieces_of_text, files.values())) - given
        for name, files in (*submissions.items(), *others.items())
    }
    pairs = []
    for one, other in combinations(sorted(pieces, key=lambda name: (name in others, name)), 2):
        shorter = min(len(pieces[one]), len(pieces[other]))
        share = len(pieces[one] & pieces[other]) / max(shorter, 1)
        if shorter >= LEAST_PIECES and share >= least and one not in others:
            pairs.append(Pair(one, other, share))
    return sorted(pairs, key=lambda pair: (-pair.share, pair.one, pair.other))


def clusters(pairs: Sequence[Pair]) -> list[Cluster]:
    """The pairs, joined where they have a submission in common; the most similar first."""
    groups: list[set[str]] = []
    for pair in pairs:
        joined = {pair.one, pair.other}.union(*(group for group in groups if group & {pair.one, pair.other}))
        groups = [*(group for group in groups if not group & joined), joined]
    found = []
    for group in groups:
        shares = [pair.share for pair in pairs if pair.one in group]
        found.append(Cluster(tuple(sorted(group)), min(shares), max(shares)))
    return sorted(found, key=lambda cluster: (-cluster.most, cluster.names))


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
