"""What the code of a submission finds in the process of a rank: no reference solutions, and a hook that ends the rank.

`hybridnn_course.allowed_code` reads the text of a submission before anything runs. This is for what it misses: modules
of the library that no task needs are not there, and an audit hook of Python reports every attempt to get them back, to
open files, to run text as code or to start processes. Nothing of it isolates; that is `hybridnn_course.isolation`.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import gc
import importlib
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from hybridnn_course.allowed_code import LIBRARIES, is_in
from hybridnn_course.assignment import Assignment, Task, forget_assignments

ASSIGNMENTS = "hybridnn_course.assignments"
KIT = ("hybridnn_course",)
HARMLESS = frozenset(["array.__new__", "builtins.id", "sys.excepthook", "sys.unraisablehook", "time.sleep"])
"""Audited events that any program may cause."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
IMPORTER = "<frozen importlib"  # the beginning of the file names of Python's import system
COMPILERS = frozenset(
    [
        *(str(module.__file__) for module in (ast, collections, dataclasses, typing)),
        str(Path(__file__).with_name("worker.py")),
    ]
)
"""Files that compile or execute text in the course of plain programs: of classes, annotations and submissions."""

_SCIPY = find_spec("scipy")
SCIPY = tuple(f"{folder}{os.sep}" for folder in (_SCIPY and _SCIPY.submodule_search_locations) or ())
"""Folder of SciPy, some of whose modules execute text when they are imported."""


# -- solutions --------------------------------------------------------------------------------------------------------


def without_solutions(assignment: Assignment) -> Assignment:
    """The assignment as ranks need it; what only the grader needs is removed from all modules of assignments.

    Kept is what the calls of the student's functions use, and the trainings with them.
    """
    tasks = tuple(map(_calls_alone, assignment.tasks))
    called = [call for task in tasks for call in (task.call, task.whole and task.whole.run) if call]
    kept = set(_used_names(called))
    for name, module in list(sys.modules.items()):
        if is_in(name, [ASSIGNMENTS]):
            for variable in [*vars(module)]:
                if (name, variable) not in kept and not variable.startswith("__"):
                    delattr(module, variable)
    forget_assignments()
    gc.collect()
    return dataclasses.replace(assignment, tasks=tasks)


def _calls_alone(task: Task) -> Task:
    whole = task.whole and dataclasses.replace(task.whole, expected=_in_the_grader)
    gone: Any = _in_the_grader
    without = {"solution": gone, "public": gone, "hidden": gone, "budget": None, "mistakes": (), "picture": None}
    return dataclasses.replace(task, whole=whole, **without)


def _in_the_grader(*_: object) -> NoReturn:
    raise RuntimeError("only the grader has solutions, cases and bounds")


def _used_names(functions: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Module and name of all variables of the modules of assignments that functions use, directly or not."""
    seen: set[int] = set()
    rest = list(functions)
    while rest:
        value = rest.pop()
        if id(value) in seen or isinstance(value, ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            found = list(_variables(value))
            yield from (place for place, _ in found)
            rest += [one for _, one in found]
            rest += [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
        elif not isinstance(value, type):
            rest += gc.get_referents(value)
        elif is_in(value.__module__, [ASSIGNMENTS]):
            rest += [*value.__bases__, *vars(value).values()]


def _variables(function: FunctionType) -> Iterator[tuple[tuple[str, str], object]]:
    """Variables of modules of assignments that a function names, with their module, name and value."""
    spaces: list[dict[str, Any]] = [function.__globals__]
    names = set(_names(function.__code__))
    for space in spaces:
        module = str(space.get("__name__"))
        if not is_in(module, [ASSIGNMENTS]):
            continue
        for name in names & space.keys():
            yield (module, name), space[name]
            if isinstance(space[name], ModuleType) and not any(vars(space[name]) is other for other in spaces):
                spaces.append(vars(space[name]))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# -- the hook ---------------------------------------------------------------------------------------------------------


def hides_library(modules: Collection[str]) -> bool:
    """Whether the library is hidden; `modules` are those that the course allows."""
    return not any(is_in(name, LIBRARIES) for name in modules)


def guard_process(
    files: Collection[str],
    offered: Collection[str],
    modules: Collection[str],
    stop: Callable[[str], NoReturn],
    *,
    trains: bool,
) -> None:
    """Hide modules of the library from the code that runs in this process from now on, and watch what it does.

    Parameters
    ----------
    files : collection of str
        Names of the files of the submission, as in tracebacks.
    offered : collection of str
        Modules of the library that the handout offers.
    modules : collection of str
        Further modules that the course allows.
    stop : callable
        ``stop(what)`` ends the process, after an attempt to do `what`.
    trains : bool
        Whether the library is needed, too.
    """
    for name in offered:
        importlib.import_module(name)
    hidden = () if not hides_library(modules) else KIT if trains else LIBRARIES
    for name in [*sys.modules]:
        if is_in(name, hidden) and name not in offered:
            del sys.modules[name]
    watch = _Watch(frozenset(files), hidden, frozenset(modules), is_free=trains or bool(modules))
    is_busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_busy
        if is_busy or event in HARMLESS:
            return
        is_busy = True  # the hook itself causes events
        try:
            if watch.forbids(event, arguments, sys._getframe(1).f_code.co_filename):
                stop(_described(event, arguments))
        finally:
            is_busy = False

    sys.addaudithook(hook)


@dataclasses.dataclass(frozen=True)
class _Watch:
    """The rules of the hook; where `is_free`, code that is not the submission's may do anything but write files."""

    files: Collection[str]
    hidden: Collection[str]
    modules: Collection[str]
    is_free: bool

    def forbids(self, event: str, arguments: tuple[Any, ...], file: str) -> bool:
        """Whether the code of a file may not cause an event; an OSError where it may not open what it opens."""
        if event == "import":
            return is_in(arguments[0], self.hidden)
        if file.startswith(IMPORTER):
            return False
        kind = event.partition(".")[0]
        if file in self.files or (file.startswith("<") and not file.startswith("<frozen")):
            return kind not in self.modules
        if event == "open" and (not self.is_free or arguments[2] & WRITES):
            raise PermissionError(f"{_described(event, arguments)}: submissions have no files")
        if kind in ("compile", "exec") and not self.is_free:
            return file not in COMPILERS and not file.startswith(SCIPY)
        return kind == "gc" and not self.is_free


def _described(event: str, arguments: tuple[Any, ...]) -> str:
    text = f"{event} {arguments[0]}" if arguments and isinstance(arguments[0], str) else event
    return text[:200]
