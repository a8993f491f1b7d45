"""Submissions of A2 as students might write them: the kit's solutions and mistakes, renamed and in another layout."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from random import Random

from hybridnn.course.assignment import Assignment, Variant

__all__ = ["LAYOUTS", "rewritten_files"]

PRELUDE = """
from __future__ import annotations
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
import numpy as np
from numpy.typing import NDArray
Variant = dict
@dataclass
class Mistake:
    name: str
    function: object
    hint: str
    variants: dict = field(default_factory=dict)
def pick(name):
    groups = [value for value in VALUES if isinstance(value, tuple)]
    items = [item for group in groups for item in group if isinstance(item, Mistake)]
    return next(item for item in items if item.name == name).function
"""

SOLUTIONS = {
    "bounds": "bounds_solution(variant)",
    "minibatches": "minibatches_solution(variant)",
    "gradient": "global_gradient",
    "buckets": "buckets_solution(variant)",
    "reducer": "reducer_solution(variant)",
}
MODULES = ("solution.py", "mistakes.py", "gradient_mistakes.py", "reducer_mistakes.py")
LAYOUTS = ("", "# my work\n", "# -*- coding: utf-8 -*-\n\n\n", '"""Homework."""\n')


def rewritten_files(assignment: Assignment, variant: Variant, mistakes: Mapping[str, str], seed: int) -> dict[str, str]:
    """Code files with the mistakes of some tasks, by task and name, and the reference solution of all others.

    Local names, layout, comments and line ends depend on the seed.
    """
    random = Random(seed)
    modules = [(assignment.folder() / name).read_text(encoding="utf-8") for name in MODULES]
    statements = [
        node
        for text in (PRELUDE, *modules)
        for node in ast.parse(text).body
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("hybridnn", "__future__"))
    ]
    tree = _Renamer(_local_names(statements), f"_{random.randrange(10**6)}").visit(ast.Module(statements, []))
    text = f"{ast.unparse(tree)}\nVALUES = [{', '.join(sorted(_module_names(statements)))}]"
    files = {}
    for name in assignment.files:
        chosen = [f"{task.function} = {_made(task.name, mistakes)}" for task in assignment.tasks if task.file == name]
        code = "\n".join([random.choice(LAYOUTS), text, f"variant = {dict(variant)!r}", *chosen, ""])
        files[name] = code.replace("\n", "\r\n") if random.random() < 0.3 else code
    return files


def _made(task: str, mistakes: Mapping[str, str]) -> str:
    return f"pick({mistakes[task]!r})(variant)" if task in mistakes else SOLUTIONS[task]


def _module_names(statements: list[ast.stmt]) -> set[str]:
    """Names that are assigned at the level of the module."""
    targets = [target for item in statements if isinstance(item, ast.Assign) for target in item.targets]
    targets += [item.target for item in statements if isinstance(item, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _local_names(statements: list[ast.stmt]) -> set[str]:
    """Names that are only assigned in functions, and are parameters, functions, attributes or keywords nowhere."""
    assigned, kept = set(), {"VALUES"}
    for statement in statements:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            kept |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assigned.add(node.id)
            elif isinstance(node, ast.arg):
                kept.add(node.arg)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                kept.add(node.name)
            elif isinstance(node, ast.ClassDef):
                kept |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
            elif isinstance(node, ast.alias):
                kept.add(node.asname or node.name)
            elif isinstance(node, ast.keyword) and node.arg:
                kept.add(node.arg)
    return assigned - kept - {"name", "function", "hint", "variants"}


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: set[str], suffix: str) -> None:
        self._names, self._suffix = names, suffix

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self._names:
            node.id += self._suffix
        return node
