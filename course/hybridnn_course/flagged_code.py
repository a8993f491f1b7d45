"""Code that a person should look at, as no task needs it: it changes no points, and nothing is refused.

What keeps a submission from solutions is its isolation. This finds what was not meant, such as an import of the
library's own function, and what looks like an attempt.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator

from hybridnn_course.assignment import Assignment

LIBRARY = "hybridnn"
LIBRARIES = (LIBRARY, "hybridnn_course", "hybridnn_course_staff")
"""The library and the class kit."""

UNUSUAL_MODULES = frozenset(
    [
        *("_thread", "builtins", "code", "codeop", "ctypes", "faulthandler", "gc", "importlib", "inspect", "marshal"),
        *("mmap", "multiprocessing", "os", "pickle", "pkgutil", "posix", "pty", "resource", "runpy", "shutil"),
        *("signal", "socket", "subprocess", "threading"),
    ]
)
"""Modules of Python that reach beyond a function's arguments: other processes, files, memory and code."""

UNUSUAL_NAMES = frozenset(
    [
        *("__array_interface__", "__builtins__", "__closure__", "__code__", "__globals__", "__import__"),
        *("__loader__", "__spec__", "__subclasses__", "_getframe", "compile", "ctypeslib", "eval", "exec", "f_back"),
        *("f_globals", "f_locals", "gi_frame", "globals", "meta_path", "tb_frame"),
    ]
)
"""Functions and attributes that run text as code, or lead to other modules and to the callers of a function."""


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
    usual |= sys.stdlib_module_names - UNUSUAL_MODULES
    for node in ast.walk(tree):
        for module, name in _imports(node):
            if not (is_in(module, usual) or name in assignment.imports.get(module, ())):
                yield f"{file}, line {node.lineno}: imports {f'{module}.{name}' if name else module}"  # type: ignore[attr-defined]  # an import has a line
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in UNUSUAL_NAMES:
                yield f"{file}, line {node.lineno}: uses {name}"


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules that a statement imports, each with the name that it takes from it."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from ((module, alias.name) for alias in node.names)
