"""Assignments as the staff knows them: with solutions, cases, known mistakes and variants.

An assignment is a package ``hybridnn_course_staff.assignments.aN_topic`` with a module ``assignment``, whose
`ASSIGNMENT` is an `Assignment`, and a file ``handout.md``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from random import Random

from hybridnn.errors import SettingError
from hybridnn_course import assignment as course
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Function, Variant
from hybridnn_course.injection import find
from hybridnn_course_staff.mistakes import Mistake, known_mistakes, require_tasks

__all__ = ["Assignment", "Mistake", "RubricItem", "Task", "WholeRun", "assignment_packages", "load_assignment"]


@dataclass(frozen=True)
class WholeRun(course.WholeRun):
    """A training with the student's function in the library, and the same without.

    Parameters
    ----------
    expected : callable
        ``expected(variant)`` trains without the student's function, where possible on one rank.
    """

    expected: Callable[[Variant], Values]


@dataclass(frozen=True, kw_only=True)
class Task(course.Task):
    """A function that the student writes, with its solution, cases and known mistakes.

    Parameters
    ----------
    target : str
        ``"module:name"`` of the function or class whose signature and docstring the stub has; it decides `function` and
        `returns`.
    solution : callable
        ``solution(variant)`` returns the reference solution; `mistakes` are in the file beside its module.
    public : callable
        ``public(variant)`` returns the cases that the student may see.
    hidden : callable
        ``hidden(random, variant, number)`` makes the hidden case of a number.
    axes : tuple of str
        Axes of the assignment that change this task.
    parameters : tuple of str, optional
        Parameters of the target that the student's function has; the first ones. By default all.
    library : str
        ``"module:name"`` of the function or method of the library that does the same, where `target` is a function of
        the assignment; empty where there is none. Its parameters are those of the target, but for the name of the first
        one of a method, and its outputs those of the standard variant.
    docstring : str
        Of the stub, where that of the target says how it is done, or what only the standard variant does.
    """

    function: str = field(init=False)
    returns: bool | None = field(init=False)
    target: str
    solution: Callable[[Variant], Function]
    public: Callable[[Variant], Sequence[Case]]
    hidden: Callable[[Random, Variant, int], Case]
    hidden_cases: int = 6
    axes: tuple[str, ...] = ()
    whole: WholeRun | None = None
    mistakes: tuple[Mistake, ...] = field(init=False)
    parameters: tuple[str, ...] | None = None
    library: str = ""
    docstring: str = ""

    def __post_init__(self) -> None:
        target = find(self.target)
        is_none = inspect.isclass(target) or inspect.signature(target).return_annotation in (None, "None")
        object.__setattr__(self, "function", self.target.rpartition(":")[2].rpartition(".")[2])
        object.__setattr__(self, "returns", None if inspect.isclass(target) else not is_none)
        object.__setattr__(self, "mistakes", known_mistakes(self.name, self.solution))


@dataclass(frozen=True)
class RubricItem:
    """Points that a person gives."""

    name: str
    points: float
    question: str


@dataclass(frozen=True, kw_only=True)
class Assignment(course.Assignment):
    """An assignment of 100 points.

    Parameters
    ----------
    axes : mapping
        For each axis of variation its choices, each with the sentence that the student reads. The first choice is what
        the library does.
    """

    package: str
    title: str
    goal: str
    hours: float
    tasks: tuple[Task, ...] = ()
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rubric: tuple[RubricItem, ...] = ()

    @property
    def points(self) -> float:
        """Points of all checks and of the rubric."""
        return sum(task.points.total for task in self.tasks) + sum(item.points for item in self.rubric)

    @property
    def standard(self) -> dict[str, str]:
        """The variant that the library implements."""
        return {axis: next(iter(choices)) for axis, choices in self.axes.items()}

    def require_variant(self, variant: Mapping[str, str]) -> dict[str, str]:
        """`variant`, checked: the choice of every axis."""
        for axis, choices in self.axes.items():
            if variant.get(axis) not in choices:
                raise SettingError(f"variant.{axis}", variant.get(axis), f"of {self.id}: {', '.join(choices)}")
        if unknown := set(variant) - set(self.axes):
            raise SettingError("variant", sorted(unknown)[0], f"{self.id} has the axes {', '.join(self.axes) or '-'}")
        return dict(variant)

    def folder(self) -> Path:
        """Folder of the package."""
        file = importlib.import_module(self.package).__file__
        assert file is not None
        return Path(file).parent

    def template(self, name: str) -> str:
        """The text that students get of a file that is not code; empty where they get none."""
        path = self.folder() / "templates" / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


def load_assignment(name: str) -> Assignment:
    """The assignment ``"a2"``; `SettingError` with the known ones if there is none."""
    packages = assignment_packages()
    if name not in packages:
        raise SettingError("assignment", name, f"one of {', '.join(packages)}")
    return _load(packages[name])


@lru_cache(maxsize=1)
def assignment_packages() -> dict[str, str]:
    """Package of every assignment, by its short name."""
    root = importlib.import_module("hybridnn_course_staff.assignments")
    found = sorted(module.name for module in pkgutil.iter_modules(root.__path__) if module.ispkg)
    return {name.partition("_")[0]: f"hybridnn_course_staff.assignments.{name}" for name in found}


@cache
def _load(package: str) -> Assignment:
    assignment: Assignment = importlib.import_module(f"{package}.assignment").ASSIGNMENT
    require_tasks(assignment.folder(), [task.name for task in assignment.tasks])
    return assignment
