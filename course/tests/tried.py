"""Many submissions of A2 in one started program: each is a module, and the inputs of a case say which one runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from hybridnn_course.assignment import Case, Variant
from hybridnn_course.carrier import Worker
from hybridnn_course.checks import check_task
from hybridnn_course.execution import MachineError
from hybridnn_course.outcome import CheckOutcome, TaskOutcome
from hybridnn_course_staff.assignment import load_assignment
from hybridnn_course_staff.task_key import TaskKey

__all__ = ["Tried"]

A2 = load_assignment("a2")
FIRST = 101  # number of the first submission
# Some submissions look for functions by their names among all objects, and are not to find these.
CHOOSING = {
    "blocks.py": """
def chosen_bounds(items, parts, part):
    return __import__(f"tried_{items}").block_bounds(items, parts, part)

def chosen_minibatches(order, batch_size):
    return __import__(f"tried_{order[0]}").minibatches(order, batch_size)

block_bounds, minibatches = chosen_bounds, chosen_minibatches
""",
    "gradient.py": """
def global_gradient(group, weights, bias, x, labels):
    return __import__(f"tried_{round(1000 * weights[0, 0])}").global_gradient(group, weights, bias, x, labels)
""",
}


class Tried:
    """A worker that runs submissions, by name; a context manager.

    Parameters
    ----------
    texts : mapping
        Text of each submission.
    variant : mapping, optional
        By default the standard one.
    options
        Of the worker.

    Attributes
    ----------
    printed : str
        What the last submission printed.
    """

    def __init__(self, texts: Mapping[str, str], variant: Variant = A2.standard, **options: Any) -> None:
        self._variant = variant
        self._numbers = {name: number for number, name in enumerate(texts, FIRST)}
        files = {f"tried_{self._numbers[name]}.py": text for name, text in texts.items()}
        self._worker_of = lambda: Worker(A2, {**CHOOSING, **files}, **options)
        self._worker = self._worker_of()
        self.printed = ""

    def __enter__(self) -> Tried:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._worker.__exit__(kind, error, at)

    def check(self, name: str, task_name: str) -> TaskOutcome:
        """The outcome of one case of a task; of ``"gradient"`` on two ranks."""
        task = A2.task(task_name)
        case = self._case(task_name, self._numbers[name])
        key = TaskKey(A2, replace(task, public=lambda _: [case], whole=None), self._variant)
        self._worker.printed = ""
        try:
            return check_task(self._worker, key, budget=False)
        except MachineError as error:
            self._worker.__exit__(None, None, None)
            ended, self._worker = self._worker, self._worker_of()
            self._worker.printed = ended.printed
            case_check = CheckOutcome(name=case.name, kind="public", points=0, possible=1, message=str(error))
            return TaskOutcome(name=task.name, checks=(case_check,))
        finally:
            self.printed = self._worker.printed

    @staticmethod
    def _case(task_name: str, number: int) -> Case:
        random = np.random.default_rng(number)
        if task_name == "bounds":
            parts = next(parts for parts in (3, 4, 5, 7) if number % parts)  # which are not equal
            return Case("", ({"of": [number, parts]},))
        if task_name == "minibatches":
            return Case("", ({"order": np.array([number, *random.permutation(6)]), "batch_size": 4},))
        weights, bias = random.normal(size=(2, 3)), random.normal(size=2)
        weights[0, 0] = number / 1000
        own = [{"x": random.normal(size=(n, 3)), "labels": random.integers(2, size=n)} for n in (3, 2)]
        return Case("", tuple({"weights": weights, "bias": bias, **inputs} for inputs in own))
