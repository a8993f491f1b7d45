"""Assignments as a student's computer knows them: tasks and how they are called, without a solution.

An assignment comes from the file of its cases, which the lecturer makes (`hybridnn_course.case_file`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridnn.errors import SettingError
from hybridnn_course.answers import Answer, Values

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
    """A measured amount: full points up to `full`, none from `zero` on, by another method; linear between them."""

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
    tolerance : float
        Relative tolerance of its outcome.
    """

    name: str
    run: Callable[[Function, Variant], Values]
    tolerance: float = field(default=1e-10, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A function that the student writes.

    `call`, `budget` and the run of `whole` are functions of `hybridnn_course.exercises`: they run beside the
    student's code, and that package has no solutions.

    Parameters
    ----------
    name : str
    file, function : str
        The student's file that contains it, and its name there.
    returns : bool, optional
        Whether the function returns a value; None for a class.
    call : callable
        ``call(function, inputs, group, variant)`` calls the student's function on one rank and returns its outputs as
        values; `group` is None where the task has no communication.
    operations : tuple of str
        Methods of the group that may be called.
    budget : callable, optional
        ``budget(case, answer, variant)`` returns what is bounded.
    tolerance : float
        Relative tolerance of outputs.
    """

    name: str
    file: str
    function: str
    returns: bool | None
    call: Callable[[Function, Values, Any, Variant], Values]
    points: Points
    operations: tuple[str, ...] = ()
    budget: Callable[[Case, Answer, Variant], Sequence[Bound]] | None = None
    whole: WholeRun | None = None
    tolerance: float = 1e-9


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An assignment.

    Parameters
    ----------
    id : str
        For example ``"a2"``.
    texts : tuple of str
        Further files of the submission, which a person reads.
    imports : mapping
        Names that a submission may import from modules of the library, by module: those that the handout offers.
    """

    id: str
    tasks: tuple[Task, ...] = ()
    texts: tuple[str, ...] = ()
    imports: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def files(self) -> tuple[str, ...]:
        """The student's code files."""
        return tuple(dict.fromkeys(task.file for task in self.tasks))

    def task(self, name: str) -> Task:
        """The task of a name; `SettingError` if there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise SettingError("task", name, f"of {self.id}: {', '.join(task.name for task in self.tasks)}")

    def not_written(self, task: Task) -> str:
        """What the stub of a task raises."""
        return f"{self.id} {task.name}: not written yet"
