"""Stubs: the student's files, with the signatures and docstrings of the library's functions and no body."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from hybridnn_course.assignment import Variant
from hybridnn_course.injection import find
from hybridnn_course_staff.assignment import Assignment, Task

INDENT = "    "
WIDTH = 110


class DriftError(RuntimeError):
    """A solution and the function of the library no longer have the same signature."""


def stub_file(assignment: Assignment, file: str, variant: Variant) -> str:
    """The text of a student's file: a stub for each task in it."""
    parts = [
        f'"""{assignment.title}: the functions that you write. The handout says what they do."""',
        "from __future__ import annotations",
        "import numpy as np",
    ]
    parts += [stub(assignment, task, variant) for task in assignment.tasks if task.file == file]
    return "\n\n".join(parts[:3]) + "\n\n\n" + "\n\n\n".join(parts[3:]) + "\n"


def stub(assignment: Assignment, task: Task, variant: Variant) -> str:
    """The stub of a task."""
    target = find(task.target)
    note = [f"Your variant: {assignment.axes[axis][variant[axis]]}" for axis in task.axes]
    if inspect.isclass(target):
        return _class_stub(assignment, task, target, note)
    return _function_stub(assignment, task, target, note, signature_of(task))


def signature_of(task: Task) -> inspect.Signature:
    """Parameters of the function that a student writes: those of the target, or the first of them."""
    target = find(task.target)
    signature = inspect.signature(target.__init__ if inspect.isclass(target) else target)
    if task.parameters is None:
        return signature
    names = [name for name in signature.parameters if name != "self"]
    if names[: len(task.parameters)] != list(task.parameters):
        raise DriftError(
            f"{task.name}: the task has the parameters {', '.join(task.parameters)}, "
            f"{task.target} has {', '.join(names)}"
        )
    kept = [value for name, value in signature.parameters.items() if name == "self" or name in task.parameters]
    return signature.replace(parameters=kept)


def require_same_signature(task: Task, solution: Callable[..., Any]) -> None:
    """Raise `DriftError` unless the reference solution and its methods have the parameters of the target.

    Where the task names a function of the library besides, they are compared with its parameters, too.
    """
    own = inspect.signature(solution.__init__ if inspect.isclass(solution) else solution)
    _require_same_parameters(task, task.target, own, signature_of(task))
    target = find(task.target)
    for name, method in _public_methods(target):
        found = getattr(solution, name, None)
        if found is None:
            raise DriftError(f"{task.name}: the solution has no method {name}, {task.target} has one")
        _require_same_parameters(task, f"{task.target}.{name}", inspect.signature(found), inspect.signature(method))
    if task.library:
        wanted = inspect.signature(find(task.library))
        if "self" in wanted.parameters:  # a function of the assignment has another name for it
            own, wanted = _without_first(own), _without_first(wanted)
        _require_same_parameters(task, task.library, own, wanted)


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _require_same_parameters(task: Task, target: str, own: inspect.Signature, wanted: inspect.Signature) -> None:
    if list(own.parameters) != list(wanted.parameters):
        raise DriftError(
            f"{task.name}: the solution has the parameters {', '.join(own.parameters)}, "
            f"{target} has {', '.join(wanted.parameters)}"
        )
    for name, parameter in wanted.parameters.items():
        if own.parameters[name].kind != parameter.kind:
            raise DriftError(
                f"{task.name}: parameter {name} is {own.parameters[name].kind.description} in the solution"
            )


def _public_methods(target: Any) -> list[tuple[str, Any]]:
    if not inspect.isclass(target):
        return []
    return [(name, value) for name, value in vars(target).items() if inspect.isfunction(value) and name[0] != "_"]


def _function_stub(
    assignment: Assignment, task: Task, target: Any, note: list[str], signature: inspect.Signature
) -> str:
    lines = [f"def {task.function}{_shown(signature)}:"]
    lines += _docstring(task.docstring or inspect.getdoc(target) or "", note, INDENT)
    lines.append(f'{INDENT}raise NotImplementedError("{assignment.not_written(task)}")')
    return "\n".join(lines)


def _class_stub(assignment: Assignment, task: Task, target: type, note: list[str]) -> str:
    lines = [f"class {task.function}:", *_docstring(inspect.getdoc(target) or "", note, INDENT)]
    for name, method in vars(target).items():
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            signature = signature_of(task) if name == "__init__" else inspect.signature(method)
            lines += ["", f"{INDENT}def {name}{_shown(signature)}:"]
            lines += _docstring(inspect.getdoc(method) or "", [], 2 * INDENT) if name != "__init__" else []
            lines.append(f'{2 * INDENT}raise NotImplementedError("{assignment.not_written(task)}")')
    return "\n".join(lines)


def _shown(signature: inspect.Signature) -> str:
    """The signature without annotations: their names would have to be imported."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _docstring(text: str, notes: list[str], indent: str) -> list[str]:
    text = re.sub(r"\\", r"\\\\", text).replace('"""', "'''")
    for note in notes:
        text += "\n\n" + textwrap.fill(note, WIDTH - len(indent))
    if "\n" not in text:
        return [f'{indent}"""{text}"""']
    body = textwrap.indent(text, indent)
    return [f'{indent}"""{body.strip()}', f'{indent}"""']
