"""Similar submissions: the share of equal pieces of their syntax trees, without names, comments and layout."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from hybridnn_course.assignment import Assignment
from hybridnn_course.stubs import stub_file
from hybridnn_course.submission import normal_form

PIECE = 12  # statements and expressions in a row that make a piece


@dataclass(frozen=True)
class Pair:
    """Two submissions, and the share of pieces of the shorter one that the other has, too."""

    one: str
    other: str
    share: float


def similar_pairs(assignment: Assignment, submissions: Mapping[str, Mapping[str, str]], least: float) -> list[Pair]:
    """Pairs of submissions whose share is at least `least`, the most similar first.

    Parameters
    ----------
    submissions : mapping
        Texts of the code files by submission.
    """
    given = set().union(*(_pieces(stub_file(assignment, name, assignment.standard)) for name in assignment.files))
    pieces = {
        name: set().union(*(_pieces(text) for text in files.values())) - given for name, files in submissions.items()
    }
    pairs = []
    for one, other in combinations(sorted(pieces), 2):
        shorter = min(len(pieces[one]), len(pieces[other]))
        share = len(pieces[one] & pieces[other]) / shorter if shorter else 0.0
        if share >= least:
            pairs.append(Pair(one, other, share))
    return sorted(pairs, key=lambda pair: (-pair.share, pair.one, pair.other))


def _pieces(text: str) -> set[int]:
    """Hashes of all runs of `PIECE` nodes, function by function."""
    found: set[int] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            words = normal_form(node).replace("(", " ").split()
            found |= {hash(tuple(words[at : at + PIECE])) for at in range(max(1, len(words) - PIECE + 1))}
    return found
