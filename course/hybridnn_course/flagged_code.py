"""Imports that a person should look at, as no task needs them: they change no points, and nothing is refused.

What keeps a submission from solutions is its isolation. This finds what was not meant, such as an import of the
library's own function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator

from hybridnn_course.assignment import Assignment

LIBRARY = "hybridnn"
LIBRARIES = (LIBRARY, "hybridnn_course", "hybridnn_course_staff")
"""The library and the class kit."""


def is_in(module: str, packages: Collection[str]) -> bool:
    """Whether a module is one of some, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def code_flags(assignment: Assignment, file: str, tree: ast.Module, modules: Collection[str] = ()) -> Iterator[str]:
    """What a person should look at in a file, each as one line.

    Parameters
    ----------
    modules : collection of str
        Further modules that the course allows, with their submodules.
    """
    usual = {*(name.removesuffix(".py") for name in assignment.files), *modules, "numpy", "scipy"}
    usual |= sys.stdlib_module_names
    for node in ast.walk(tree):
        for module, name in _imports(node):
            if not (is_in(module, usual) or name in assignment.imports.get(module, ())):
                yield f"{file}, line {node.lineno}: imports {f'{module}.{name}' if name else module}"  # type: ignore[attr-defined]  # an import has a line


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules that a statement imports, each with the name that it takes from it."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from ((module, alias.name) for alias in node.names)
