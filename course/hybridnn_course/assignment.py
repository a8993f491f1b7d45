"""Assignments: tasks, cases, mistakes and variants, as the modules of ``hybridnn_course.assignments`` define them.

An assignment is a package ``hybridnn_course.assignments.aN_topic`` with a module ``assignment``, whose `ASSIGNMENT` is
an `Assignment`, and a file ``handout.md``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from hybridnn.errors import SettingError
from hybridnn_course.answers import Answer, Values

if TYPE_CHECKING:
    from hybridnn.drawing.drawn_object import DrawnObject

Variant = Mapping[str, str]
"""The choice of every axis."""

Function = Callable[..., Any]

OTHER_VARIANT = "variant:"
"""Beginning of the names of the mistakes that are solutions of other variants."""


@dataclass(frozen=True)
class Case:
    """A call of the student's function on each of several ranks.

    Parameters
    ----------
    name : str
        What is special about it, for example ``"4 ranks, 10 samples"``.
    inputs : tuple of dict
        Arguments of the task's `call`, by rank.
    """

    name: str
    inputs: tuple[Values, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs)


@dataclass(frozen=True)
class Bound:
    """A measured amount: full points up to `full`, none from `zero` on, linear between them."""

    what: str
    value: float
    full: float
    zero: float

    @property
    def fraction(self) -> float:
        """Fraction of the points."""
        if self.value <= self.full * (1 + 1e-9):
            return 1.0
        return max(0.0, (self.zero - self.value) / (self.zero - self.full)) if self.zero > self.full else 0.0


@dataclass(frozen=True)
class Points:
    """Points of a task by kind of check."""

    public: float
    hidden: float
    budget: float = 0
    whole: float = 0

    @property
    def total(self) -> float:
        """Their sum."""
        return self.public + self.hidden + self.budget + self.whole


@dataclass(frozen=True)
class WholeRun:
    """A training with the student's function in the library.

    Parameters
    ----------
    name : str
        What is trained.
    run : callable
        ``run(function, variant)`` trains with the student's function, on ranks of one process.
    expected : callable
        ``expected(variant)`` trains without it, where possible on one rank.
    """

    name: str
    run: Callable[[Function, Variant], Values]
    expected: Callable[[Variant], Values]
    tolerance: float = 1e-10


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
    function: Callable[[Variant], Function]
    hint: str
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def applies(self, variant: Variant) -> bool:
        """Whether it is a mistake in this variant."""
        return all(variant[axis] in choices for axis, choices in self.variants.items())


@dataclass(frozen=True)
class Task:
    """A function that the student writes.

    Parameters
    ----------
    name : str
    file : str
        The student's file that contains it.
    target : str
        ``"module:name"`` of the function or class whose signature and docstring the stub has.
    call : callable
        ``call(function, inputs, group, variant)`` calls the student's function on one rank and returns its outputs as
        values; `group` is None where the task has no communication. It runs beside the student's code, and so it is a
        function of `hybridnn_course.exercises`, which has no solutions.
    solution : callable
        ``solution(variant)`` returns the reference solution.
    public : callable
        ``public(variant)`` returns the cases that the student may see.
    hidden : callable
        ``hidden(random, variant, number)`` makes the hidden case of a number.
    hidden_cases : int
    axes : tuple of str
        Axes of the assignment that change this task.
    operations : tuple of str
        Methods of the group that may be called.
    budget : callable, optional
        ``budget(case, answer, variant)`` returns what is bounded.
    picture : callable, optional
        ``picture(function, inputs, variant)`` draws what the student's function makes; without, its messages are drawn.
    parameters : tuple of str, optional
        Parameters of the target that the student's function has; the first ones. By default all.
    library : str
        ``"module:name"`` of the function or method of the library that does the same, where `target` is a function of
        the assignment; empty where there is none. Its parameters are those of the target, but for the name of the first
        one of a method, and its outputs those of the standard variant.
    tolerance : float
        Relative tolerance of outputs.
    """

    name: str
    file: str
    target: str
    call: Callable[[Function, Values, Any, Variant], Values]
    solution: Callable[[Variant], Function]
    public: Callable[[Variant], Sequence[Case]]
    hidden: Callable[[Random, Variant, int], Case]
    points: Points
    hidden_cases: int = 6
    axes: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    budget: Callable[[Case, Answer, Variant], Sequence[Bound]] | None = None
    whole: WholeRun | None = None
    mistakes: tuple[Mistake, ...] = ()
    picture: Callable[[Function, Values, Variant], DrawnObject] | None = None
    parameters: tuple[str, ...] | None = None
    library: str = ""
    tolerance: float = 1e-9

    @property
    def function(self) -> str:
        """Name of the student's function."""
        return self.target.rpartition(":")[2].rpartition(".")[2]


@dataclass(frozen=True)
class RubricItem:
    """Points that a person gives."""

    name: str
    points: float
    question: str


@dataclass(frozen=True)
class Assignment:
    """An assignment of 100 points.

    Parameters
    ----------
    axes : mapping
        For each axis of variation its choices, each with the sentence that the student reads. The first choice is what
        the library does.
    texts : tuple of str
        Further files of the submission, which a person reads.
    imports : mapping
        Names that a submission may import from modules of the library, by module: those that the handout offers.
    """

    id: str
    package: str
    title: str
    goal: str
    hours: float
    tasks: tuple[Task, ...] = ()
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rubric: tuple[RubricItem, ...] = ()
    texts: tuple[str, ...] = ()
    imports: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def files(self) -> tuple[str, ...]:
        """The student's code files."""
        return tuple(dict.fromkeys(task.file for task in self.tasks))

    @property
    def points(self) -> float:
        """Points of all checks and of the rubric."""
        return sum(task.points.total for task in self.tasks) + sum(item.points for item in self.rubric)

    @property
    def standard(self) -> dict[str, str]:
        """The variant that the library implements."""
        return {axis: next(iter(choices)) for axis, choices in self.axes.items()}

    def task(self, name: str) -> Task:
        """The task of a name; `SettingError` if there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise SettingError("task", name, f"of {self.id}: {', '.join(task.name for task in self.tasks)}")

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


def load_assignment(name: str) -> Assignment:
    """The assignment ``"a2"``; `SettingError` with the known ones if there is none."""
    packages = assignment_packages()
    if name not in packages:
        raise SettingError("assignment", name, f"one of {', '.join(packages)}")
    return _load(packages[name])


@lru_cache(maxsize=1)
def assignment_packages() -> dict[str, str]:
    """Package of every assignment, by its short name."""
    root = importlib.import_module("hybridnn_course.assignments")
    found = sorted(module.name for module in pkgutil.iter_modules(root.__path__) if module.ispkg)
    return {name.partition("_")[0]: f"hybridnn_course.assignments.{name}" for name in found}


@cache
def _load(package: str) -> Assignment:
    assignment: Assignment = importlib.import_module(f"{package}.assignment").ASSIGNMENT
    return assignment
