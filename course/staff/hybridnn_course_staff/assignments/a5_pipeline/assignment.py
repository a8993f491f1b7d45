"""A5: tasks, cases and the trainings with the student's orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    Instruction,
    ReduceGradients,
    Update,
)
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Points, Variant
from hybridnn_course.exercises.a5_pipeline.budgets import zero_bubble_budget
from hybridnn_course.exercises.a5_pipeline.calls import (
    SIZES,
    call_measure,
    call_order,
    call_zero_bubble,
    run_gpipe,
    run_measure,
    run_one_forward_one_backward,
    run_zero_bubble,
)
from hybridnn_course.exercises.a5_pipeline.notation import to_text
from hybridnn_course.whole_run import train_digits
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a5_pipeline.solution import (
    alternating,
    gpipe_solution,
    measure_solution,
    one_forward_one_backward_solution,
    zero_bubble_solution,
)

# -- orders -----------------------------------------------------------------------------------------------------------


def _order_case(stages: int, microbatches: int, minibatches: int = 1) -> Case:
    name = f"{stages} stages, {microbatches} microbatches" + (f", {minibatches} minibatches" if minibatches > 1 else "")
    return Case(name, ({"stages": stages, "microbatches": microbatches, "minibatches": minibatches},))


def _public_order(variant: Variant) -> Sequence[Case]:
    return [_order_case(3, 6), _order_case(2, 3, 2), _order_case(4, 2)]


def _hidden_order(random: Random, variant: Variant, number: int) -> Case:
    stages = random.randint(3, 6)
    if number == 0:
        return _order_case(1, random.randint(2, 6), 2)
    if number == 1:
        return _order_case(stages, random.randint(1, stages - 1), random.randint(1, 2))
    return _order_case(stages, stages + random.randint(1, 7), random.randint(1, 3))


@lru_cache(maxsize=1)
def _train_on_one_rank() -> Values:
    return train_digits(1, SIZES)


def _train_alone(variant: Variant) -> Values:
    return _train_on_one_rank()


# -- measure ----------------------------------------------------------------------------------------------------------


def _measure_case(name: str, orders: Sequence[str], forward: float, backward: float, message: float) -> Case:
    times = f"{name}, forward {forward:g} s, backward {backward:g} s, messages {message:g} s"
    return Case(times, ({"orders": list(orders), "seconds": [forward, backward, message]},))


def _stuck_case(warm_ups: Sequence[int], microbatches: int, forward: float, backward: float, message: float) -> Case:
    """Orders of 1F1B, and orders that cannot run; an error for all orders earns nothing."""
    stages = len(warm_ups)
    runnable = _with_warm_ups(range(stages - 1, -1, -1), microbatches, 1)
    case = _measure_case("orders that run, and orders that cannot", runnable, forward, backward, message)
    stuck = {"stuck": _with_warm_ups(warm_ups, microbatches, 1)}
    return replace(case, inputs=({**case.inputs[0], **stuck},))


def _with_warm_ups(warm_ups: Sequence[int], microbatches: int, minibatches: int) -> list[str]:
    """Orders with a number of forward passes before the first backward pass of each stage."""
    texts = []
    for warm_up in warm_ups:
        order: list[Instruction] = []
        for t in range(minibatches):
            forward = [Forward(t, m) for m in range(microbatches)]
            backward = [[Backward(t, m)] for m in range(microbatches)]
            order += [*alternating(forward, backward, warm_up), ReduceGradients(t), Update(t)]
        texts.append(to_text(order, minibatches))
    return texts


UNEVEN = ["F0 F1 B0 F2 F3 B1 B2 B3 R U", "F0 B0 F1 F2 B1 F3 B2 B3 R U", "F0 B0 F1 B1 F2 B2 F3 B3 R U"]
"""Orders whose first stage has most microbatches in flight after its first backward pass."""


def _public_measure(variant: Variant) -> Sequence[Case]:
    return [
        _measure_case("2 stages", _with_warm_ups([2, 2], 2, 1), 1.0, 2.0, 0.0),
        _measure_case("3 stages", UNEVEN, 1.0, 2.0, 0.5),
        _measure_case("2 minibatches", _with_warm_ups([1, 0], 2, 2), 1.5, 1.0, 0.25),
        _stuck_case([0, 1], 2, 1.0, 2.0, 0.0),
    ]


def _hidden_measure(random: Random, variant: Variant, number: int) -> Case:
    forward, backward = random.randint(2, 9) / 4, random.randint(10, 19) / 4
    message = 0.0 if number == 0 else random.randint(1, 7) / 8
    if number == 1:
        return _stuck_case([1, 0, 1], 3, forward, backward, message)
    if number == 2:
        return _measure_case("uneven", UNEVEN, forward, backward, message)
    steps = [random.randint(0, 2) for _ in range(random.randint(2, 5))]
    warm_ups = [sum(steps[stage:]) for stage in range(len(steps))]
    orders = _with_warm_ups(warm_ups, random.randint(2, 7), random.randint(1, 2))
    return _measure_case(f"{len(orders)} stages", orders, forward, backward, message)


def _expected_measure(variant: Variant) -> Values:
    found: dict[str, Any] = {}
    for method in ("gpipe", "1f1b"):
        for stages, microbatches in ((2, 4), (4, 8), (8, 8)):
            name = f"{method}, {stages} stages, {microbatches} microbatches"
            bubble = (stages - 1) / (microbatches + stages - 1)
            most = [microbatches if method == "gpipe" else min(stages - k, microbatches) for k in range(stages)]
            found |= {f"bubble of {name}": bubble, f"in flight of {name}": most}
    return found


ASSIGNMENT = Assignment(
    id="a5",
    package="hybridnn_course_staff.assignments.a5_pipeline",
    title="A5: Pipeline orders",
    goal="GPipe, 1F1B and a zero-bubble order: what every stage computes when, how long it waits, and what it stores",
    hours=5,
    imports={
        "hybridnn.pipeline.schedules.instructions": (
            *("Forward", "Backward", "InputGradient", "WeightGradient"),
            *("ReduceGradients", "Update", "ALL_MICROBATCHES"),
        )
    },
    axes={
        "microbatch_order": {
            "ascending": "The passes of a minibatch begin with microbatch 0 and end with microbatch M - 1.",
            "descending": "The passes of a minibatch begin with microbatch M - 1 and end with microbatch 0.",
        },
        "weight_gradients": {
            "with the backward pass": "`Backward(t, m)` computes the gradients of the input and of the weights.",
            "merged": "`InputGradient(t, m)` stands in the place of each backward pass, and one "
            "`WeightGradient(t, ALL_MICROBATCHES)`, after the last of them and before `ReduceGradients(t)`, computes "
            "the gradients of the weights of the whole minibatch.",
        },
        "in_flight": {
            "fewest": "At most K - k microbatches may be in flight on stage k: as few as possible.",
            "twice the distance": "At most 2 (K - 1 - k) + 1 microbatches may be in flight on stage k: so many that, "
            "once the pipeline is full, no stage waits for messages that take as long as a forward pass.",
        },
        "messages": {
            "beside": "While a message is on its way, both of its stages can compute.",
            "occupy the receiver": "A message also occupies its receiver: an instruction that needs one starts no "
            "earlier than `message` seconds after the previous instruction of its stage has ended.",
        },
    },
    tasks=(
        Task(
            name="gpipe",
            file="orders.py",
            target="hybridnn.pipeline.schedules.computation_orders:gpipe",
            docstring="Instructions of a stage for a minibatch: GPipe (Huang et al. 2019).",
            call=call_order,
            solution=gpipe_solution,
            public=_public_order,
            hidden=_hidden_order,
            points=Points(public=5, hidden=8, whole=3),
            axes=("microbatch_order", "weight_gradients"),
            whole=WholeRun("digits on 4 stages, 5 microbatches", run_gpipe, _train_alone),
        ),
        Task(
            name="1f1b",
            file="orders.py",
            target="hybridnn.pipeline.schedules.computation_orders:one_forward_one_backward",
            docstring="Instructions of a stage for a minibatch: 1F1B, with an empty pipeline after it.",
            call=call_order,
            solution=one_forward_one_backward_solution,
            public=_public_order,
            hidden=_hidden_order,
            points=Points(public=12, hidden=20, whole=4),
            axes=("microbatch_order", "weight_gradients", "in_flight"),
            whole=WholeRun(
                "digits on 4 stages, 5 microbatches, bounded activations", run_one_forward_one_backward, _train_alone
            ),
        ),
        Task(
            name="measure",
            file="measure.py",
            target="hybridnn_course_staff.assignments.a5_pipeline.solution:measure_orders",
            call=call_measure,
            solution=measure_solution,
            public=_public_measure,
            hidden=_hidden_measure,
            points=Points(public=7, hidden=11, whole=2),
            axes=("messages",),
            whole=WholeRun("bubble and memory of GPipe and 1F1B", run_measure, _expected_measure),
        ),
        Task(
            name="zb-h1",
            file="orders.py",
            target="hybridnn.pipeline.schedules.computation_orders:zero_bubble_h1",
            docstring="Instructions of a stage for a minibatch: an order of split passes that meets the budget.",
            call=call_zero_bubble,
            solution=zero_bubble_solution,
            public=_public_order,
            hidden=_hidden_order,
            points=Points(public=4, hidden=6, budget=15, whole=3),
            axes=("microbatch_order",),
            budget=zero_bubble_budget,
            whole=WholeRun("digits on 4 stages, split backward passes", run_zero_bubble, _train_alone),
        ),
    ),
)
