"""Known wrong solutions, which are edits of the reference solution or code around it.

They are in the file ``mistakes.toml`` beside the module of the solution, each in a table ``[[mistake]]`` with the
fields of `Entry`. The table ``[hints]`` names hints that several mistakes have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from hybridnn.errors import DataError
from hybridnn.utils.files import read_toml
from hybridnn.utils.settings_models import first_problem
from hybridnn_course.assignment import Function, Variant

__all__ = ["Entry", "Mistake", "known_mistakes", "require_tasks"]

FILE = "mistakes.toml"
Solution = Callable[[Variant], Function]


@dataclass(frozen=True)
class Mistake:
    """A known wrong solution of a task.

    Parameters
    ----------
    name : str
        For example ``"average-of-averages"``.
    function : callable
        ``function(variant)`` returns the wrong solution.
    hint : str
        What happened, and a question that leads on; never the solution.
    variants : mapping
        The choices for which it differs from the solution and from other mistakes; every one where empty.
    """

    name: str
    function: Solution
    hint: str
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def applies(self, variant: Variant) -> bool:
        """Whether it is a mistake in this variant."""
        return all(variant[axis] in choices for axis, choices in self.variants.items())


class Entry(BaseModel):
    """A mistake of one or more tasks in ``mistakes.toml``.

    In `before`, `after` and `code` the names of the solution's module can be used, and the parameters of the function
    that the student writes; also ``variant``, and ``right``, the reference solution with the edits.

    Attributes
    ----------
    tasks : tuple of str
        Names of the tasks.
    hint : str
        A hint, or the name of one in ``[hints]``.
    edits : tuple
        Pairs of a text that the definition named `within` has exactly once, and the text in its place; one after the
        other.
    within : str
        A function or class of the solution's module; by default the one that returns the solution.
    before, after : str
        Statements before and after a call of the reference solution, whose value is ``result``.
    code : str
        The body of the function in its place, or of a class that inherits from ``right``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    tasks: tuple[str, ...] = Field(min_length=1)
    hint: str = Field(min_length=1)
    variants: dict[str, tuple[str, ...]] = {}
    edits: tuple[tuple[str, str], ...] = ()
    within: str = ""
    before: str = ""
    after: str = ""
    code: str = ""

    @model_validator(mode="after")
    def _has_effect(self) -> Entry:
        """Every field that is given changes the solution."""
        if not (self.edits or self.before or self.after or self.code):
            raise PydanticCustomError("edits", "must have edits, before, after or code")
        if (self.code and (self.before or self.after)) or (self.within and not self.edits):
            raise PydanticCustomError("code", "must not have before or after beside code, nor within without edits")
        return self


class MistakeFile(BaseModel):
    """Content of ``mistakes.toml``; all mistakes can use the names that `shared` defines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hints: dict[str, str] = {}
    shared: str = ""
    mistake: tuple[Entry, ...] = ()


def known_mistakes(task: str, solution: Solution) -> tuple[Mistake, ...]:
    """The mistakes of a task in the file beside the module of its solution; none without a file."""
    module = inspect.getmodule(solution)
    assert module is not None
    assert module.__file__ is not None
    path = Path(module.__file__).with_name(FILE)
    if not path.exists():
        return ()
    file = _read(path)
    return tuple(
        Mistake(
            entry.name,
            partial(_wrong, module, solution.__name__, file.shared, entry),
            " ".join(file.hints.get(entry.hint, entry.hint).split()),
            entry.variants,
        )
        for entry in file.mistake
        if task in entry.tasks
    )


def require_tasks(folder: Path, tasks: Collection[str]) -> None:
    """Refuse a file in which a mistake names a task that there is not."""
    path = folder / FILE
    for entry in _read(path).mistake if path.exists() else ():
        if unknown := set(entry.tasks) - set(tasks):
            raise DataError(f"{path}: {entry.name}: no task is called {min(unknown)}; there are {', '.join(tasks)}")


@cache
def _read(path: Path) -> MistakeFile:
    try:
        return MistakeFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise DataError(f"{path}: {first_problem(error)}") from None


def _wrong(module: ModuleType, solution: str, shared: str, entry: Entry, variant: Variant) -> Function:
    """The wrong solution of an entry in a variant."""
    names = _edited(module, entry.within or solution, entry.edits) if entry.edits else vars(module)
    right: Function = names[solution](variant)
    if not (entry.before or entry.after or entry.code):
        return right
    names = {**names, "variant": variant, "right": right}
    exec(_compiled(shared, "shared"), names)
    exec(_compiled(_definition(right, entry), entry.name), names)
    wrong: Function = names[right.__name__]
    return wrong


def _definition(right: Function, entry: Entry) -> str:
    """The code of a wrong function or class."""
    if inspect.isclass(right):
        return f"class {right.__name__}(right):\n{indent(entry.code, '    ')}"
    signature = inspect.signature(right)
    call = f"right({', '.join(signature.parameters)})"
    body = entry.code or f"{entry.before}\nresult = {call}\n{entry.after}\nreturn result"
    return f"def {right.__name__}{signature}:\n{indent(body, '    ')}"


@cache
def _edited(module: ModuleType, within: str, edits: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The names of a module after edits of one of its definitions."""
    text, definition = inspect.getsource(module), inspect.getsource(getattr(module, within))
    changed = definition
    for old, new in edits:
        if (count := changed.count(old)) != 1:
            raise ValueError(f"{module.__name__}: {old!r} is {count} times in {within}, not once")
        changed = changed.replace(old, new)
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(_compiled(text.replace(definition, changed), f"{within} with a mistake"), names)
    return names


@cache
def _compiled(text: str, name: str) -> Any:
    return compile(text, f"<{name}>", "exec", dont_inherit=True)
