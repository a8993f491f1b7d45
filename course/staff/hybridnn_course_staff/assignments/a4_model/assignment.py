"""A4: tasks, cases, and the trainings that those with the student's functions are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_slice
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Points, Variant
from hybridnn_course.exercises.a4_model.budgets import columns_budget, norm_budget, rows_budget
from hybridnn_course.exercises.a4_model.calls import (
    CLIP_NORM,
    GRIDS,
    WIDTHS,
    call_columns,
    call_norm,
    call_rows,
    call_split,
    initial_weights,
    run_columns,
    run_name,
    run_norm,
    run_rows,
    run_split,
)
from hybridnn_course.whole_run import train_digits
from hybridnn_course_staff.assignment import Assignment, Task, WholeRun
from hybridnn_course_staff.assignments.a4_model.layer_cases import (
    OPERATIONS,
    hidden_columns,
    hidden_rows,
    public_columns,
    public_rows,
)
from hybridnn_course_staff.assignments.a4_model.solution import (
    columns_solution,
    norm_solution,
    rows_solution,
    split_solution,
)


def _split_case(split: str, ranks: int, widths: Sequence[int], first: int = 0) -> Case:
    shown = ", ".join(map(str, widths))
    name = f"{split}, {ranks} rank{'s' * (ranks > 1)}, layers {first} to {first + len(widths) - 2}, widths {shown}"
    return Case(name, ({"split": split, "ranks": ranks, "widths": list(widths), "first": first},))


def _public_split(variant: Variant) -> Sequence[Case]:
    return [
        _split_case("columns", 2, [4, 6, 8]),
        _split_case("columns", 4, [5, 10, 3]),
        _split_case("alternating", 2, [4, 6, 8]),
        _split_case("alternating", 3, [7, 10, 8, 5], first=3),
        _split_case("alternating", 1, [4, 3, 2]),
    ]


def _hidden_split(random: Random, variant: Variant, number: int) -> Case:
    ranks = number + 2 if number > 3 else random.randint(3, 5)
    layers = [2, 3, 4, 5, 3, 1][number]
    widths = [ranks * random.randint(1, 4) + random.randint(1, ranks - 1) for _ in range(layers + 1)]
    if number == 4:
        widths[1] = ranks - 1
    split = "columns" if number in (1, 5) else "alternating"
    return _split_case(split, ranks, widths, first=2 * random.randint(0, 3) + (number in (2, 3)))


def _expected_split(variant: Variant) -> Values:
    return _serial(("columns", "alternating"), GRIDS)


# -- trainings --------------------------------------------------------------------------------------------------------


def _serial(splits: Sequence[str], grids: Sequence[Mapping[str, int]], **settings: Any) -> dict[str, Any]:
    """What `trainings` is compared with: a training on one rank."""
    trained = train_digits(1, WIDTHS, **settings)
    return {
        f"{run_name(split, grid)}: {name}": value
        for split in splits
        for grid in grids
        for name, value in trained.items()
    }


# -- layers -----------------------------------------------------------------------------------------------------------


def _expected_layers(split: str, variant: Variant) -> Values:
    weights = initial_weights()
    if variant["residual"] == "after activation":
        return _serial([split], GRIDS, network={"residual": True}, initial_weights=weights)
    # W x + b + x = (W + I) x + b: the same training without a residual layer, whose weights differ by I.
    identity = np.eye(WIDTHS[1])
    weights["layers.1.weight"] = weights["layers.1.weight"] + identity
    trained = _serial([split], GRIDS, initial_weights=weights)
    return {name: value - identity if name.endswith("layers.1.weight") else value for name, value in trained.items()}


# -- norm -------------------------------------------------------------------------------------------------------------


def _norm_case(ranks: int, sizes: Sequence[int], replicated: Sequence[int], seed: int) -> Case:
    """Blocks of arrays of `sizes` elements, and whole arrays of `replicated` elements."""
    random = np.random.default_rng(seed)
    blocks, whole = ([random.normal(size=size) for size in part] for part in (sizes, replicated))
    inputs: list[Values] = [
        {
            "gradients": [array[block_slice(array.size, ranks, rank)] for array in blocks] + whole,
            "is_replicated": [False] * len(blocks) + [True] * len(whole),
        }
        for rank in range(ranks)
    ]
    return Case(
        f"{ranks} rank{'s' * (ranks > 1)}, arrays: {len(sizes)} split, {len(replicated)} replicated", tuple(inputs)
    )


def _public_norm(variant: Variant) -> Sequence[Case]:
    return [_norm_case(1, [3], [2], 1), _norm_case(2, [4, 6], [], 2), _norm_case(4, [10, 3], [3, 2], 3)]


def _hidden_norm(random: Random, variant: Variant, number: int) -> Case:
    ranks = number + 2 if number > 3 else random.randint(2, 5)  # 6 and 7 in every term
    sizes = [random.randint(1, 12) for _ in range(random.randint(2, 4))]
    replicated = [random.randint(1, 6) for _ in range(random.randint(1, 3) if number else 0)]
    return _norm_case(ranks, [] if number == 5 else sizes, replicated, random.randrange(10**6))


def _expected_norm(variant: Variant) -> Values:
    return _serial(["alternating"], GRIDS, clip_norm=CLIP_NORM)


ASSIGNMENT = Assignment(
    id="a4",
    package="hybridnn_course_staff.assignments.a4_model",
    title="A4: Model parallelism",
    goal="Split the layers of a network over ranks, by outputs and by inputs, with one all-reduce for each pair of "
    "layers and direction",
    hours=8,
    imports={
        "hybridnn.comm.blocks": ("block_slice",),
        "hybridnn.comm.group": ("DONE",),
        "hybridnn.nn.parameters": ("LayerShard",),
    },
    axes={
        "first_split": {
            "outputs": "With the split `alternating`, the first, third, … layer is split by outputs, and the second, "
            "fourth, … by inputs.",
            "inputs": "With the split `alternating`, the first, third, … layer is split by inputs, and the second, "
            "fourth, … by outputs.",
        },
        "bias_owner": {
            "in blocks": "Of a layer split by inputs, each rank owns a block of the bias: the block of its outputs "
            "that the block partition gives to this rank.",
            "last rank": "Of a layer split by inputs, the last rank owns the whole bias, and the other ranks own "
            "nothing of it.",
        },
        "residual": {
            "after activation": "A residual layer adds its input after the activation: y = activation(W x + b) + x.",
            "before activation": "A residual layer adds its input before the activation: y = activation(W x + b + x).",
        },
    },
    tasks=(
        Task(
            name="split",
            file="split.py",
            target="hybridnn.parallel.dense:split_layers",
            call=call_split,
            solution=split_solution,
            public=_public_split,
            hidden=_hidden_split,
            points=Points(public=6, hidden=11, whole=3),
            axes=("first_split", "bias_owner"),
            whole=WholeRun("digits on 1 × 4 and 2 × 2 ranks, both splits", run_split, _expected_split),
        ),
        Task(
            name="columns",
            file="layers.py",
            target="hybridnn.parallel.dense:ColumnDense",
            call=call_columns,
            solution=columns_solution,
            public=public_columns,
            hidden=hidden_columns,
            hidden_cases=8,
            points=Points(public=9, hidden=14, budget=7, whole=3),
            axes=("residual",),
            operations=OPERATIONS,
            budget=columns_budget,
            whole=WholeRun(
                "digits on 1 × 4 and 2 × 2 ranks, columns, a residual layer",
                run_columns,
                lambda variant: _expected_layers("columns", variant),
            ),
        ),
        Task(
            name="rows",
            file="layers.py",
            target="hybridnn.parallel.dense:RowDense",
            call=call_rows,
            solution=rows_solution,
            public=public_rows,
            hidden=hidden_rows,
            hidden_cases=8,
            points=Points(public=9, hidden=14, budget=6, whole=3),
            axes=("residual",),
            operations=OPERATIONS,
            budget=rows_budget,
            whole=WholeRun(
                "digits on 1 × 4 and 2 × 2 ranks, alternating, a residual layer",
                run_rows,
                lambda variant: _expected_layers("alternating", variant),
            ),
        ),
        Task(
            name="norm",
            file="norm.py",
            target="hybridnn_course_staff.assignments.a4_model.solution:global_norm",
            call=call_norm,
            solution=norm_solution,
            public=_public_norm,
            hidden=_hidden_norm,
            points=Points(public=4, hidden=6, budget=3, whole=2),
            operations=("allreduce",),
            budget=norm_budget,
            whole=WholeRun("digits on 1 × 4 and 2 × 2 ranks, clipped gradients", run_norm, _expected_norm),
        ),
    ),
)
