"""A2: tasks, cases, and the trainings that those with the student's functions are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Points, Variant
from hybridnn_course.exercises.a2_batch.budgets import gradient_budget, reducer_budget
from hybridnn_course.exercises.a2_batch.calls import (
    DEEP,
    EPOCHS,
    RANKS,
    RATE,
    call_bounds,
    call_buckets,
    call_gradient,
    call_minibatches,
    call_reducer,
    run_bounds,
    run_buckets,
    run_gradient,
    run_minibatches,
    run_reducer,
)
from hybridnn_course.whole_run import train_digits
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a2_batch.reducer_cases import ends_of, hidden_reducer, public_reducer
from hybridnn_course_staff.assignments.a2_batch.solution import (
    bounds_solution,
    buckets_solution,
    gradient_solution,
    minibatches_solution,
    reducer_solution,
)

LARGE = 1000.0  # exponentials of logits overflow from 710 on


# -- bounds -----------------------------------------------------------------------------------------------------------


def _bounds_case(items: int, parts: int) -> Case:
    return Case(f"{items} items, {parts} parts", ({"of": [items, parts]},))


def _public_bounds(variant: Variant) -> Sequence[Case]:
    return [_bounds_case(12, 4), _bounds_case(10, 4), _bounds_case(3, 5)]


def _hidden_bounds(random: Random, variant: Variant, number: int) -> Case:
    parts = random.randint(3, 9)
    items = [0, parts - 1, parts * 7 + parts - 1][number] if number < 3 else parts * random.randint(2, 9) + 2
    return _bounds_case(items, parts)


# -- minibatches ------------------------------------------------------------------------------------------------------


def _minibatches_case(samples: int, batch_size: int, seed: int) -> Case:
    order = np.random.default_rng(seed).permutation(2 * samples)[:samples].astype(np.int64)
    return Case(f"{samples} samples, batches of {batch_size}", ({"order": order, "batch_size": batch_size},))


def _public_minibatches(variant: Variant) -> Sequence[Case]:
    return [_minibatches_case(12, 4, 1), _minibatches_case(10, 4, 2), _minibatches_case(3, 5, 3)]


def _hidden_minibatches(random: Random, variant: Variant, number: int) -> Case:
    batch = random.randint(3, 9)
    rest = 1 if number == 1 else random.randint(1, batch - 2)  # one sample over in a case of every term
    samples = 0 if number == 0 else batch * random.randint(3, 6) + rest
    return _minibatches_case(samples, batch, random.randrange(10**6))


# -- buckets ----------------------------------------------------------------------------------------------------------


def _buckets_case(layers: Sequence[int], elements: int, variant: Variant) -> Case:
    ends, size = ends_of(layers, variant)
    name = f"layers of {', '.join(map(str, layers))} elements, limit {elements}"
    return Case(name, ({"ends": ends, "size": size, "min_elements": elements},))


def _loss_is_last(variant: Variant) -> int:
    return int(variant["loss_place"] == "last")


def _public_buckets(variant: Variant) -> Sequence[Case]:
    # The last two layers have exactly the limit, with the loss where it is last; else the first two have it without.
    exact = [2, 2, 6, 3] if _loss_is_last(variant) else [5, 5, 6, 4]
    sizes = ((exact, 10), ([3, 4, 5, 20, 6], 10), ([7], 100))
    return [_buckets_case(layers, elements, variant) for layers, elements in sizes]


def _hidden_buckets(random: Random, variant: Variant, number: int) -> Case:
    """A case in which the two kinds of buckets differ."""
    while True:
        layers = [random.randint(2, 30) for _ in range(random.randint(4, 9))]
        elements = random.randint(5, 40)
        if number % 2:
            layers[0] = 1
            elements = layers[-1] + layers[-2] + _loss_is_last(variant)
            if not _loss_is_last(variant):  # with the loss, the first two layers have more than the limit
                layers = [layers[-1], layers[-2], *layers[-2:]]
        case = _buckets_case(layers, elements, variant)
        plans = [buckets_solution({"bucket_size": choice})(**case.inputs[0]) for choice in ("at least", "at most")]
        if plans[0] != plans[1]:
            return case


def _train_deep(_: Variant) -> Values:
    return train_digits(sizes=DEEP)


# -- gradient ---------------------------------------------------------------------------------------------------------


def _gradient_case(samples: Sequence[int], features: int, outputs: int, seed: int, scale: float = 1.0) -> Case:
    """Weights are multiplied by `scale`: by that of `LARGE`, logits are so large that their exponentials overflow."""
    random = np.random.default_rng(seed)
    weights, bias = scale * random.normal(size=(outputs, features)), random.normal(size=outputs)
    inputs: list[Values] = [
        {
            "weights": weights,
            "bias": bias,
            "x": random.normal(size=(count, features)),
            "labels": random.integers(outputs, size=count).astype(np.int64),
        }
        for count in samples
    ]
    counts = ", ".join(map(str, samples)) + (" samples, large logits" if scale > 1 else " samples")
    return Case(f"{len(samples)} {'ranks' if len(samples) > 1 else 'rank'} with {counts}", tuple(inputs))


def _public_gradient(variant: Variant) -> Sequence[Case]:
    return [
        _gradient_case([5], 3, 2, 1),
        _gradient_case([2, 2, 2, 2], 3, 4, 2),
        _gradient_case([3, 3, 2, 2], 5, 3, 3),
        _gradient_case([2, 1, 0], 4, 3, 4),
        _gradient_case([4, 3], 6, 3, 5, LARGE),
    ]


def _hidden_gradient(random: Random, variant: Variant, number: int) -> Case:
    ranks = number + 2 if number > 3 else random.randint(2, 5)  # 6 and 7 in every term
    samples = [random.randint(1, 6) for _ in range(ranks)]
    samples[0] = samples[1] + 1
    if number % 3 == 2:
        samples[-1] = 0
    size = random.randint(2, 9), random.randint(2, 6), random.randrange(10**6)
    return _gradient_case(samples, *size, LARGE if number == 1 else 1.0)


def _expected_gradient(variant: Variant) -> Values:
    zeros = {"layers.0.weight": np.zeros((10, 64)), "layers.0.bias": np.zeros(10)}
    trained = train_digits(1, (64, 10), EPOCHS, RATE, initial_weights=zeros)
    weights = [trained["layers.0.weight"], trained["layers.0.bias"]]
    found: dict[str, Any] = {}
    for ranks in RANKS:
        found |= {f"weights on {ranks} ranks": weights, f"loss on {ranks} ranks": trained["losses"][-1]}
    return found


BUCKETS = """\
Buckets of the gradient buffer, each with the layer after whose backward pass it is complete.

Parameters
----------
ends : sequence of int
    For each layer, from layer 0 on, the element after its last one in the buffer.
size : int
    Elements of the buffer, including the loss.
min_elements : int
    Of a bucket, as your variant says.

Returns
-------
dict
    From layer to (start, stop), from the last layer to layer 0, which always has a bucket."""

ASSIGNMENT = Assignment(
    id="a2",
    package="hybridnn_course_staff.assignments.a2_batch",
    title="A2: Batch parallelism",
    goal="One gradient, whatever the number of ranks and however the samples are dealt to them",
    hours=7,
    axes={
        "longer_parts": {
            "first": "Where the items do not divide evenly, the first parts have one item more.",
            "last": "Where the items do not divide evenly, the last parts have one item more.",
        },
        "short_minibatch": {
            "last": "Where the samples do not divide evenly, the last minibatch is the short one.",
            "first": "Where the samples do not divide evenly, the first minibatch is the short one.",
        },
        "bucket_size": {
            "at least": "A bucket is complete as soon as it has at least `min_elements` elements.",
            "at most": "A bucket takes in the next layer as long as it then has at most `min_elements` elements; "
            "a larger layer has a bucket of its own.",
        },
        "loss_place": {
            "last": "The loss is the last element of the buffer, after the last layer.",
            "first": "The loss is the first element of the buffer, before layer 0.",
        },
    },
    tasks=(
        Task(
            name="bounds",
            file="blocks.py",
            target="hybridnn.comm.blocks:block_bounds",
            call=call_bounds,
            solution=bounds_solution,
            public=_public_bounds,
            hidden=_hidden_bounds,
            points=Points(public=6, hidden=11, whole=3),
            axes=("longer_parts",),
            whole=WholeRun("digits on 4 ranks, 24 hidden units", run_bounds, lambda _: train_digits()),
        ),
        Task(
            name="minibatches",
            file="blocks.py",
            target="hybridnn.training.data_split:minibatches",
            docstring="Consecutive slices of `order`, of `batch_size` samples each; one may be shorter.",
            call=call_minibatches,
            solution=minibatches_solution,
            public=_public_minibatches,
            hidden=_hidden_minibatches,
            points=Points(public=5, hidden=8, whole=2),
            axes=("short_minibatch",),
            whole=WholeRun("digits on 1 rank, a short minibatch of 38", run_minibatches, lambda _: train_digits()),
        ),
        Task(
            name="gradient",
            file="gradient.py",
            target="hybridnn_course_staff.assignments.a2_batch.solution:global_gradient",
            call=call_gradient,
            solution=gradient_solution,
            public=_public_gradient,
            hidden=_hidden_gradient,
            points=Points(public=8, hidden=12, budget=6, whole=4),
            operations=("allreduce",),
            budget=gradient_budget,
            whole=WholeRun("softmax regression on digits, 4 and 5 ranks", run_gradient, _expected_gradient),
        ),
        Task(
            name="buckets",
            file="gradient.py",
            target="hybridnn.parallel.gradient_reduction:plan_buckets",
            docstring=BUCKETS,
            call=call_buckets,
            solution=buckets_solution,
            public=_public_buckets,
            hidden=_hidden_buckets,
            points=Points(public=4, hidden=7, whole=1),
            axes=("bucket_size",),
            whole=WholeRun("digits on 4 ranks, two buckets", run_buckets, _train_deep),
        ),
        Task(
            name="reducer",
            file="gradient.py",
            target="hybridnn_course_staff.assignments.a2_batch.solution:GradientReducer",
            call=call_reducer,
            solution=reducer_solution,
            public=public_reducer,
            hidden=hidden_reducer,
            points=Points(public=6, hidden=9, budget=6, whole=2),
            axes=("loss_place",),
            operations=("iallreduce", "barrier"),
            budget=reducer_budget,
            whole=WholeRun(
                "digits on 4 ranks, your reducer beside the backward pass",
                run_reducer,
                _train_deep,
            ),
        ),
    ),
)
