"""A8: the checks of a study, its batch script, its data and its claims, and the rubric of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Assignment, Case, Function, Mistake, Points, RubricItem, Task, Variant
from hybridnn_course.assignments.a8_scaling.checks import (
    CLAIMS_CHECKS,
    JOB_CHECKS,
    RESULTS_CHECKS,
    STUDY_CHECKS,
    Check,
    check_of,
)
from hybridnn_course.assignments.a8_scaling.mistakes import (
    CLAIMS_MISTAKES,
    JOB_MISTAKES,
    RESULTS_MISTAKES,
    STUDY_MISTAKES,
)
from hybridnn_course.assignments.a8_scaling.solution import submission_solution
from hybridnn_course.assignments.a8_scaling.submitted import CLAIMS, FILES, JOB, RESULTS, STUDY, Submitted, texts_of


def _call(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    check_of(inputs["check"])(Submitted(texts_of(function()), variant))
    return {"ok": True}


def _cases(checks: Mapping[str, Check]) -> Callable[[Variant], Sequence[Case]]:
    cases = [Case(name, ({"check": name},)) for name in checks]
    return lambda _: cases


def _no_case(random: Random, variant: Variant, number: int) -> Case:
    raise AssertionError("there are no hidden cases")


def _task(
    name: str,
    file: str,
    checks: Mapping[str, Check],
    points: float,
    axes: tuple[str, ...],
    mistakes: tuple[Mistake, ...],
) -> Task:
    return Task(
        name=name,
        file=file,
        target="hybridnn_course.assignments.a8_scaling.solution:submission",
        call=_call,
        solution=submission_solution,
        public=_cases(checks),
        hidden=_no_case,
        hidden_cases=0,
        points=Points(public=points, hidden=0),
        axes=axes,
        mistakes=mistakes,
    )


ASSIGNMENT = Assignment(
    id="a8",
    package="hybridnn_course.assignments.a8_scaling",
    title="A8: Strong scaling",
    goal="Measure how a training scales, on a cluster or on a simulated one, and say what the data show",
    hours=8,
    axes={
        "machine": {
            "slow": "Without a cluster, simulate the machine `slow`: 4 nodes of 8 cores, with a network of 10 Gbit/s.",
            "fast": "Without a cluster, simulate the machine `fast`: 4 nodes of 8 cores, with a network of 100 Gbit/s.",
        },
        "network": {
            "two wide layers": "The network has two hidden layers of 512 neurons: `hidden = [512, 512]`.",
            "six narrow layers": "The network has six hidden layers of 128 neurons: "
            "`hidden = [128, 128, 128, 128, 128, 128]`.",
        },
        "minibatch": {
            "256": "The minibatch has 256 samples over all ranks.",
            "600": "The minibatch has 600 samples over all ranks.",
        },
        "ranks": {
            "powers of two": "The numbers of ranks are 1, 2, 4, 8 and 16.",
            "multiples of three": "The numbers of ranks are 1, 3, 6, 12 and 24.",
        },
    },
    tasks=(
        _task("study", STUDY, STUDY_CHECKS, 12, ("network", "minibatch", "ranks"), STUDY_MISTAKES),
        _task("job", JOB, JOB_CHECKS, 9, (), JOB_MISTAKES),
        _task("results", RESULTS, RESULTS_CHECKS, 7, ("machine", "network", "minibatch", "ranks"), RESULTS_MISTAKES),
        _task("claims", CLAIMS, CLAIMS_CHECKS, 12, ("ranks",), CLAIMS_MISTAKES),
    ),
    rubric=(
        RubricItem("question", 6, "Does the report say what is scaled, what stays the same, and what was expected?"),
        RubricItem(
            "method",
            10,
            "Could somebody else repeat it: machine, versions, placement, threads, repeats, what a time includes?",
        ),
        RubricItem(
            "figures",
            12,
            "Is there a plot of speed-up and one of times with intervals, the ideal line, units and readable labels, "
            "and is each discussed in the text?",
        ),
        RubricItem(
            "explanation",
            16,
            "Is it shown why scaling stops, with shares of communication and waiting, the serial fraction over the "
            "ranks, and messages and bytes from a cost model?",
        ),
        RubricItem(
            "prediction",
            8,
            "Is a prediction made before the measurement, compared with it, and the difference explained?",
        ),
        RubricItem("limits", 4, "Does the report say what the data cannot show, and what would change the conclusion?"),
        RubricItem("writing", 4, "Is it short, clear and complete, without claims that no figure or table supports?"),
    ),
    texts=FILES,
)
