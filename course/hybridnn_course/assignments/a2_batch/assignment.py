"""A2: tasks, cases and the training with the student's functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice
from hybridnn.in_process import run_ranks
from hybridnn.training.data_split import epoch_order, minibatches
from hybridnn_course.answers import Answer, Values
from hybridnn_course.assignment import Assignment, Bound, Case, Function, Points, Task, Variant, WholeRun
from hybridnn_course.assignments.a2_batch.gradient_mistakes import GRADIENT
from hybridnn_course.assignments.a2_batch.mistakes import BOUNDS, BUCKETS, MINIBATCHES
from hybridnn_course.assignments.a2_batch.reducer_cases import (
    call_reducer,
    ends_of,
    hidden_reducer,
    public_reducer,
    reducer_budget,
    run_reducer,
)
from hybridnn_course.assignments.a2_batch.reducer_mistakes import REDUCER
from hybridnn_course.assignments.a2_batch.solution import (
    bounds_solution,
    buckets_solution,
    global_gradient,
    minibatches_solution,
    reducer_solution,
)
from hybridnn_course.execution import make_group
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import LIMIT, digits, train_digits

EPOCHS, RATE, BATCH = 2, 0.5, 100
DEEP = (64, 24, 16, 10)
RANKS = (4, 5)


# -- bounds -----------------------------------------------------------------------------------------------------------


def _call_bounds(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    found = [function(*inputs["of"], part) for part in range(inputs["of"][1])]
    return {"bounds": [list(bounds) if isinstance(bounds, (tuple, list)) else repr(bounds) for bounds in found]}


def _bounds_case(items: int, parts: int) -> Case:
    return Case(f"{items} items, {parts} parts", ({"of": [items, parts]},))


def _public_bounds(variant: Variant) -> Sequence[Case]:
    return [_bounds_case(12, 4), _bounds_case(10, 4), _bounds_case(3, 5)]


def _hidden_bounds(random: Random, variant: Variant, number: int) -> Case:
    parts = random.randint(3, 9)
    items = [0, parts - 1, parts * 7 + parts - 1][number] if number < 3 else parts * random.randint(2, 9) + 2
    return _bounds_case(items, parts)


def _run_bounds(function: Function, variant: Variant) -> Values:
    def adapted(items: int, parts: int, part: int) -> tuple[int, int]:
        if variant["longer_parts"] == "first":
            start, stop = function(items, parts, part)
            return start, stop
        start, stop = function(items, parts, parts - 1 - part)
        return items - stop, items - start

    with injected("hybridnn.comm.blocks:block_bounds", adapted, "hybridnn.training.trainer", "hybridnn.runs.data"):
        return train_digits(4, grid={"batch": 4})


# -- minibatches ------------------------------------------------------------------------------------------------------


def _call_minibatches(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    batches = [np.asarray(batch) for batch in function(inputs["order"], inputs["batch_size"])]
    return {"sizes": [len(batch) for batch in batches], "samples": np.concatenate([np.zeros(0, np.int64), *batches])}


def _minibatches_case(samples: int, batch_size: int, seed: int) -> Case:
    order = np.random.default_rng(seed).permutation(2 * samples)[:samples].astype(np.int64)
    return Case(f"{samples} samples, batches of {batch_size}", ({"order": order, "batch_size": batch_size},))


def _public_minibatches(variant: Variant) -> Sequence[Case]:
    return [_minibatches_case(12, 4, 1), _minibatches_case(10, 4, 2), _minibatches_case(3, 5, 3)]


def _hidden_minibatches(random: Random, variant: Variant, number: int) -> Case:
    batch = random.randint(3, 9)
    samples = 0 if number == 0 else batch * random.randint(3, 6) + random.randint(1, batch - 2)
    return _minibatches_case(samples, batch, random.randrange(10**6))


def _run_minibatches(function: Function, variant: Variant) -> Values:
    def adapted(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
        if variant["short_minibatch"] == "last":
            yield from function(order, batch_size)
        else:
            yield from reversed([batch[::-1] for batch in function(order[::-1], batch_size)])

    with injected("hybridnn.training.data_split:minibatches", adapted, "hybridnn.training.trainer"):
        return train_digits()


# -- buckets ----------------------------------------------------------------------------------------------------------


def _call_buckets(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    plan = function(inputs["ends"], inputs["size"], inputs["min_elements"])
    if not isinstance(plan, dict):
        return {"buckets": f"a {type(plan).__name__}"}
    return {"buckets": [f"{layer}: ({start}, {stop})" for layer, (start, stop) in plan.items()]}


def _buckets_case(layers: Sequence[int], elements: int, variant: Variant) -> Case:
    ends, size = ends_of(layers, variant)
    name = f"layers of {', '.join(map(str, layers))} elements, limit {elements}"
    return Case(name, ({"ends": ends, "size": size, "min_elements": elements},))


def _loss_is_last(variant: Variant) -> int:
    return int(variant["loss_place"] == "last")


def _public_buckets(variant: Variant) -> Sequence[Case]:
    exact = [2, 2, 6, 4 - _loss_is_last(variant)]  # the last two layers have exactly the limit
    sizes = ((exact, 10), ([2, 20, 3, 9], 10), ([7], 100))
    return [_buckets_case(layers, elements, variant) for layers, elements in sizes]


def _hidden_buckets(random: Random, variant: Variant, number: int) -> Case:
    """A case in which the two kinds of buckets differ."""
    while True:
        layers = [random.randint(2, 30) for _ in range(random.randint(4, 9))]
        elements = random.randint(5, 40)
        if number % 2:
            layers[0] = 1
            elements = layers[-1] + layers[-2] + _loss_is_last(variant)
        case = _buckets_case(layers, elements, variant)
        plans = [buckets_solution({"bucket_size": choice})(**case.inputs[0]) for choice in ("at least", "at most")]
        if plans[0] != plans[1]:
            return case


def _train_deep(_: Variant) -> Values:
    return train_digits(sizes=DEEP)


def _run_buckets(function: Function, variant: Variant) -> Values:
    with injected(
        "hybridnn.parallel.gradient_reduction:plan_buckets",
        lambda ends, size, _: function(ends, size, 300),
        "hybridnn.training.trainer",
    ):
        return train_digits(4, DEEP, grid={"batch": 4}, overlap=True)


# -- gradient ---------------------------------------------------------------------------------------------------------


def _call_gradient(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    found = function(group, inputs["weights"], inputs["bias"], inputs["x"], inputs["labels"])
    gradient, bias_gradient, loss = found
    return {"gradient": np.asarray(gradient), "bias gradient": np.asarray(bias_gradient), "loss": float(loss)}


def _gradient_case(samples: Sequence[int], features: int, outputs: int, seed: int) -> Case:
    random = np.random.default_rng(seed)
    weights, bias = random.normal(size=(outputs, features)), random.normal(size=outputs)
    inputs: list[Values] = [
        {
            "weights": weights,
            "bias": bias,
            "x": random.normal(size=(count, features)),
            "labels": random.integers(outputs, size=count).astype(np.int64),
        }
        for count in samples
    ]
    counts = ", ".join(map(str, samples))
    return Case(f"{len(samples)} {'ranks' if len(samples) > 1 else 'rank'} with {counts} samples", tuple(inputs))


def _public_gradient(variant: Variant) -> Sequence[Case]:
    return [
        _gradient_case([5], 3, 2, 1),
        _gradient_case([2, 2, 2, 2], 3, 4, 2),
        _gradient_case([3, 3, 2, 2], 5, 3, 3),
        _gradient_case([2, 1, 0], 4, 3, 4),
    ]


def _hidden_gradient(random: Random, variant: Variant, number: int) -> Case:
    ranks = random.randint(2, 5)
    samples = [random.randint(1, 6) for _ in range(ranks)]
    samples[0] = samples[1] + 1
    if number % 3 == 2:
        samples[-1] = 0
    return _gradient_case(samples, random.randint(2, 9), random.randint(2, 6), random.randrange(10**6))


def _gradient_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    if case.ranks == 1:
        return []
    calls = max(sum(call.rank == rank for call in answer.calls) for rank in range(case.ranks))
    outputs, features = case.inputs[0]["weights"].shape
    nbytes = sum(call.nbytes for call in answer.calls if call.rank == 0)
    least = 8 * (outputs * features + outputs + 2)
    return [Bound("all-reduces per call", calls, 2, outputs + 2), Bound("bytes per rank", nbytes, least, 2 * least)]


def _run_gradient(function: Function, variant: Variant) -> Values:
    found: dict[str, Any] = {}
    for ranks in RANKS:
        weights, loss = run_ranks(ranks, _descend, function, limit=LIMIT).results[0]
        found |= {f"weights on {ranks} ranks": weights, f"loss on {ranks} ranks": loss}
    return found


def _descend(comm: Any, function: Function) -> tuple[list[NDArray[np.float64]], float]:
    """Softmax regression on digits with the student's gradient: weights and biases, and the loss of the last epoch."""
    x, y = digits()
    weights, bias, group, total = np.zeros((10, x.shape[1])), np.zeros(10), make_group(comm), 0.0
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in minibatches(epoch_order(len(x), 0, epoch, True), BATCH):
            own = batch[block_slice(len(batch), comm.size, comm.rank)]
            gradient, bias_gradient, loss = function(group, weights.copy(), bias.copy(), x[own], y[own])
            weights, bias = weights - RATE * gradient, bias - RATE * bias_gradient
            total += float(loss) * len(batch)
    return [weights, bias], total / len(x)


def _expected_gradient(variant: Variant) -> Values:
    zeros = {"layers.0.weight": np.zeros((10, 64)), "layers.0.bias": np.zeros(10)}
    trained = train_digits(1, (64, 10), EPOCHS, RATE, initial_weights=zeros)
    weights = [trained["layers.0.weight"], trained["layers.0.bias"]]
    found: dict[str, Any] = {}
    for ranks in RANKS:
        found |= {f"weights on {ranks} ranks": weights, f"loss on {ranks} ranks": trained["losses"][-1]}
    return found


ASSIGNMENT = Assignment(
    id="a2",
    package="hybridnn_course.assignments.a2_batch",
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
            call=_call_bounds,
            solution=bounds_solution,
            public=_public_bounds,
            hidden=_hidden_bounds,
            points=Points(public=6, hidden=11, whole=3),
            axes=("longer_parts",),
            whole=WholeRun("digits on 4 ranks, 24 hidden units", _run_bounds, lambda _: train_digits()),
            mistakes=BOUNDS,
        ),
        Task(
            name="minibatches",
            file="blocks.py",
            target="hybridnn.training.data_split:minibatches",
            call=_call_minibatches,
            solution=minibatches_solution,
            public=_public_minibatches,
            hidden=_hidden_minibatches,
            points=Points(public=5, hidden=8, whole=2),
            axes=("short_minibatch",),
            whole=WholeRun("digits on 1 rank, a short minibatch of 38", _run_minibatches, lambda _: train_digits()),
            mistakes=MINIBATCHES,
        ),
        Task(
            name="gradient",
            file="gradient.py",
            target="hybridnn_course.assignments.a2_batch.solution:global_gradient",
            call=_call_gradient,
            solution=lambda _: global_gradient,
            public=_public_gradient,
            hidden=_hidden_gradient,
            points=Points(public=8, hidden=12, budget=6, whole=4),
            operations=("allreduce",),
            budget=_gradient_budget,
            whole=WholeRun("softmax regression on digits, 4 and 5 ranks", _run_gradient, _expected_gradient),
            mistakes=GRADIENT,
        ),
        Task(
            name="buckets",
            file="gradient.py",
            target="hybridnn.parallel.gradient_reduction:plan_buckets",
            call=_call_buckets,
            solution=buckets_solution,
            public=_public_buckets,
            hidden=_hidden_buckets,
            points=Points(public=4, hidden=7, whole=1),
            axes=("bucket_size",),
            whole=WholeRun("digits on 4 ranks, two buckets", _run_buckets, _train_deep),
            mistakes=BUCKETS,
        ),
        Task(
            name="reducer",
            file="gradient.py",
            target="hybridnn_course.assignments.a2_batch.solution:GradientReducer",
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
                lambda function, variant: run_reducer(function, variant, DEEP),
                _train_deep,
            ),
            mistakes=REDUCER,
        ),
    ),
)
