"""Run a function of the kit itself on a case: in this process, with all ranks as ranks of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hybridnn_course.answers import Answer, Values
from hybridnn_course.assignment import Case, Function, Task, Variant
from hybridnn_course.execution import failure_of, make_group, run_programs


def run_trusted(
    task: Task, function: Function, case: Case, variant: Variant, *, order: str | int = "in turn"
) -> Answer:
    """The answer of a function that is the kit's own."""
    if case.ranks == 1 and not task.operations:
        return _run_alone(lambda: task.call(function, _copied(case.inputs[0]), None, variant))

    def program(comm: Any) -> Values:
        group = make_group(comm)
        return task.call(function, _copied(case.inputs[comm.rank]), group, variant)

    return run_programs(case.ranks, program, order)


def _run_alone(program: Callable[[], Values]) -> Answer:
    """The answer of a program without ranks, which may trace its own lines: not in a greenlet."""
    try:
        return Answer(outputs=(program(),))
    except Exception as error:
        return Answer(failure=failure_of(error))


def _copied(inputs: Values) -> dict[str, Any]:
    return copy.deepcopy(dict(inputs))  # a mistake may change arrays in lists, too


class TrustedRunner:
    """Runs the kit's own functions, one for each task, as a submission."""

    def __init__(self, functions: dict[str, Callable[..., object]]) -> None:
        self._functions = functions

    def run(self, task: Task, case: Case, variant: Variant) -> Answer:
        """The answer to a case."""
        return run_trusted(task, self._functions[task.name], case, variant)

    def run_whole(self, task: Task, variant: Variant) -> Answer:
        """The outcome of the training."""
        assert task.whole is not None
        try:
            return Answer(outputs=(task.whole.run(self._functions[task.name], variant),))
        except Exception as error:
            return Answer(failure=failure_of(error))
