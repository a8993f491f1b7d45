"""Which code the grader takes: what a submission may import, call and name.

The kit is the library itself, so that a submission could call the function it is to write, or read the solution.
Isolation cannot prevent that inside the process of a rank; this does, before anything runs. What it lets through by
mistake still runs isolated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import TypeGuard

from hybridnn_course.assignment import Assignment

LIBRARY = "hybridnn"
LIBRARIES = (LIBRARY, "hybridnn_course")
"""The library and this package, which has the solutions."""

MODULES = frozenset(
    [
        *("__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum"),
        *("fractions", "functools", "heapq", "itertools", "math", "numbers", "numpy", "operator", "random"),
        *("scipy", "statistics", "time", "typing", "warnings"),
    ]
)
"""Modules that every submission may import, with their submodules."""

CALLS = frozenset(
    [
        *("breakpoint", "CodeType", "compile", "copyright", "credits", "delattr", "eval", "evaluate_forward_ref"),
        *("exec", "ForwardRef", "formatwarning", "FunctionType", "get_type_hints", "getattr", "globals", "help"),
        *("input", "license", "locals", "make_dataclass", "open", "setattr", "showwarning", "singledispatch"),
        *("singledispatchmethod", "update_wrapper", "vars", "wraps"),
    ]
)
"""Functions that run text as code, reach files, or reach attributes whose names cannot be read here."""

FILES = frozenset(
    [
        *("DataSource", "dump", "fromfile", "fromregex", "genfromtxt", "io", "load", "load_npz", "loads", "loadtxt"),
        *("memmap", "open_memmap", "read_array", "read_array_header_1_0", "save", "save_npz", "savetxt", "savez"),
        *("savez_compressed", "tofile", "write_array"),
    ]
)
"""Functions and modules of NumPy and SciPy that read or write files."""

ATTRIBUTES = frozenset(
    [
        *("as_strided", "attrgetter", "bltns", "builtins", "cffi", "copyreg", "ctypes", "ctypeslib", "distutils"),
        *("f2py", "gc", "importlib", "inspect", "linecache", "LowLevelCallable", "methodcaller", "modules", "os"),
        *("pickle", "rundocs", "runstring", "socket", "subprocess", "sys", "tb_frame", "tb_next", "testing"),
        *("threading", "types"),
    ]
)
"""Attributes that lead to such functions, to other modules, to the callers of a function or beyond an array."""

FRAME = re.compile(r"(f|gi|cr|ag)_(back|frame|globals|locals|builtins|code)")
DUNDER = re.compile(r"__\w+__")
DUNDER_IN_TEXT = re.compile(r"(?:^|[.\[])\s*(__\w+__)")  # a whole text, or an attribute or item of a format string
PLAIN_DUNDERS = frozenset(["__init__", "__name__", "__main__", "__all__", "__post_init__", "__len__", "__doc__"])
SPECIAL_METHODS = frozenset(
    f"__{name}__"
    for name in (
        *("abs", "add", "and", "bool", "call", "contains", "divmod", "enter", "eq", "exit", "float", "floordiv", "ge"),
        *("getitem", "gt", "hash", "iadd", "imul", "index", "int", "invert", "isub", "iter", "itruediv", "le", "lt"),
        *("matmul", "mod", "mul", "ne", "neg", "next", "or", "pos", "pow", "radd", "repr", "reversed", "rfloordiv"),
        *("rmatmul", "rmod", "rmul", "rpow", "rsub", "rtruediv", "setitem", "str", "sub", "truediv", "xor"),
    )
)
"""Special methods that a class may define; others decide about attributes, classes and copies."""

MODULE_FIELDS = frozenset([(ast.ImportFrom, "module"), (ast.alias, "name")])
"""Fields of syntax trees with names of modules, and what is imported from them."""


def is_in(module: str, packages: Collection[str]) -> bool:
    """Whether a module is one of some, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def refusals(assignment: Assignment, file: str, tree: ast.Module, modules: Collection[str] = ()) -> Iterator[str]:
    """What the grader refuses in a file, each as one line.

    Parameters
    ----------
    modules : collection of str
        Further modules that the course allows, with their submodules.
    """
    allowed = {*MODULES, *(name.removesuffix(".py") for name in assignment.files), *modules}
    imported = _imported_names(tree)
    documentation = {node.value for node in ast.walk(tree) if _is_documentation(node)}
    for node in ast.walk(tree):
        if node in documentation:
            continue
        for name in _refused_imports(assignment, node, allowed):
            yield f"{file}, line {_line(node)}: imports {name}; {_may_import(assignment, name, modules)}"
        for name in _refused_names(node, imported):
            yield f"{file}, line {_line(node)}: uses {name}, which no task needs"


def import_rule(assignment: Assignment, modules: Collection[str] = ()) -> str:
    """What `refusals` allows, in the words of the handout."""
    allowed = ", ".join(f"`{name}`" for name in sorted({*MODULES, *modules}))
    offered = [
        f"{', '.join(f'`{one}`' for one in names)} from `{module}`" for module, names in assignment.imports.items()
    ]
    of_library = f"only {' and '.join(offered)}" if offered else "nothing"
    return (
        f"You may import your other files, and the modules {allowed}; of `{LIBRARY}` {of_library}. Other imports are "
        "refused, and so are calls that no task needs, such as `eval` and `open`."
    )


def _is_documentation(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _line(node: ast.AST) -> int:
    line: int = node.lineno  # type: ignore[attr-defined]  # statements, expressions, keywords and patterns have one
    return line


def _imported_names(tree: ast.Module) -> set[str]:
    """Names that imports bind."""
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {alias.asname or alias.name.split(".")[0] for node in statements for alias in node.names}


def _refused_imports(assignment: Assignment, node: ast.AST, allowed: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if not is_in(alias.name, allowed))
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        offered = assignment.imports.get(module, ())
        if not is_in(module, allowed):
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name not in offered)


def _may_import(assignment: Assignment, name: str, modules: Collection[str]) -> str:
    if name.split(".")[0] not in LIBRARIES:
        return f"you may import {', '.join(sorted({*MODULES, *modules}))}"
    offered = [f"{module}.{name}" for module, names in assignment.imports.items() for name in names]
    return f"of {LIBRARY} you may import {', '.join(offered)}" if offered else f"write the functions without {LIBRARY}"


def _refused_names(node: ast.AST, imported: Collection[str]) -> Iterator[str]:
    yield from filter(_is_special, _identifiers(node))
    if isinstance(node, ast.Name) and node.id in CALLS:
        yield node.id
    elif isinstance(node, ast.Attribute):
        is_private = node.attr.startswith("_") and _first_name(node) in imported
        if is_private or node.attr in CALLS or _is_refused_attribute(node.attr):
            yield node.attr
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        first = int(isinstance(node, ast.Import))  # whether a module may be imported is decided above
        parts = [part for alias in node.names for part in alias.name.split(".")[first:]]
        yield from (part for part in parts if part in CALLS or part.startswith("_") or _is_refused_attribute(part))
    elif isinstance(node, ast.MatchClass):
        yield from (name for name in node.kwd_attrs if _is_refused_attribute(name))
        if node.patterns:
            yield "attributes without their names in a pattern"
    elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from filter(_is_special, DUNDER_IN_TEXT.findall(node.value))


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Names of variables, attributes, arguments and functions, without those of methods that a class may define."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.FunctionDef) and node.name in SPECIAL_METHODS):
        return
    for field, value in ast.iter_fields(node):
        names = value if isinstance(value, list) else [value]
        if (type(node), field) not in MODULE_FIELDS:
            yield from (name for name in names if isinstance(name, str))


def _first_name(node: ast.expr) -> str:
    """`a` of ``a.b.c``; empty where it is no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_refused_attribute(name: str) -> bool:
    return name in FILES or name.strip("_") in ATTRIBUTES or bool(FRAME.fullmatch(name))


def _is_special(name: str) -> bool:
    return bool(DUNDER.fullmatch(name)) and name not in PLAIN_DUNDERS
