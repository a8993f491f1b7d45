"""A4: tasks, cases and the trainings with the student's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_slice
from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerShard
from hybridnn_course.answers import Answer, Values
from hybridnn_course.assignment import Assignment, Bound, Case, Function, Points, Task, Variant, WholeRun
from hybridnn_course.assignments.a4_model.layer_cases import (
    ITEM_BYTES,
    OPERATIONS,
    call_columns,
    call_rows,
    columns_budget,
    hidden_columns,
    hidden_rows,
    public_columns,
    public_rows,
    rows_budget,
)
from hybridnn_course.assignments.a4_model.layer_mistakes import COLUMNS, ROWS
from hybridnn_course.assignments.a4_model.mistakes import NORM, SPLIT
from hybridnn_course.assignments.a4_model.solution import (
    Array,
    ColumnDense,
    RowDense,
    global_norm,
    in_variant,
    split_solution,
)
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import train_digits

WIDTHS = (64, 24, 24, 10)
GRIDS = ({"model": 4}, {"batch": 2, "model": 2})
CLIP_NORM = 0.5


# -- split ------------------------------------------------------------------------------------------------------------


def _layers_of(inputs: Values) -> list[DenseLayer]:
    widths, first = inputs["widths"], inputs["first"]
    return [DenseLayer(first + number, *pair, "relu", False, "he") for number, pair in enumerate(pairwise(widths))]


def _call_split(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    found: dict[str, Any] = {}
    layers, ranks = _layers_of(inputs), inputs["ranks"]
    for rank in range(ranks):
        shards = list(function(layers, inputs["split"], ranks, rank))
        found[f"shards of rank {rank}"] = len(shards)
        for layer, shard in zip(layers, shards, strict=False):
            found |= {f"rank {rank}, layer {layer.index}: {name}": value for name, value in _values_of(shard, layer)}
    return found


def _values_of(shard: LayerShard, layer: DenseLayer) -> list[tuple[str, Any]]:
    blocks = [(name, _bounds(getattr(shard, name))) for name in ("rows", "columns", "bias_rows")]
    flags = [("by_inputs", bool(shard.by_inputs)), ("gathers", bool(shard.gathers))]
    return [("is of the layer", shard.layer == layer), *blocks, *flags]


def _bounds(block: slice) -> list[int]:
    """Bounds of a block; equal for all empty ones."""
    start, stop = int(block.start), int(block.stop)
    return [] if start == stop else [start, stop]


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
    ranks = random.randint(3, 5)
    layers = [2, 3, 4, 5, 3, 1][number]
    widths = [ranks * random.randint(1, 4) + random.randint(1, ranks - 1) for _ in range(layers + 1)]
    if number == 4:
        widths[1] = ranks - 1
    split = "columns" if number in (1, 5) else "alternating"
    return _split_case(split, ranks, widths, first=2 * random.randint(0, 3) + (number in (2, 3)))


def _run_split(function: Function, variant: Variant) -> Values:
    def adapted(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
        skipped = split == "alternating" and variant["first_split"] == "inputs"
        # With a layer in front, which is split by inputs, the others are split as in the library.
        shards: list[LayerShard] = list(function([*layers[:skipped], *layers], split, ranks, rank))
        return shards[skipped:]

    found: dict[str, Any] = {}
    for split in ("columns", "alternating"):
        with injected("hybridnn.parallel.dense:split_layers", adapted, "hybridnn.training.trainer"):
            found |= _trainings(split, GRIDS)
    return found


def _expected_split(variant: Variant) -> Values:
    return _serial(("columns", "alternating"), GRIDS)


# -- trainings --------------------------------------------------------------------------------------------------------


def _trainings(split: str, grids: Sequence[Mapping[str, int]], **settings: Any) -> dict[str, Any]:
    """Trainings on several grids."""
    found: dict[str, Any] = {}
    for grid in grids:
        trained = train_digits(4, WIDTHS, grid=grid, model_split=split, **settings)
        found |= {f"{_run_name(split, grid)}: {name}": value for name, value in trained.items()}
    return found


def _serial(splits: Sequence[str], grids: Sequence[Mapping[str, int]], **settings: Any) -> dict[str, Any]:
    """What `_trainings` is compared with: a training on one rank."""
    trained = train_digits(1, WIDTHS, **settings)
    return {
        f"{_run_name(split, grid)}: {name}": value
        for split in splits
        for grid in grids
        for name, value in trained.items()
    }


def _run_name(split: str, grid: Mapping[str, int]) -> str:
    return f"{split}, {grid.get('batch', 1)} × {grid['model']} ranks"


# -- layers -----------------------------------------------------------------------------------------------------------


def _initial_weights() -> dict[str, Array]:
    """Initial weights of the trainings with a residual layer, whose variants start equal."""
    random = np.random.default_rng(4)
    weights: dict[str, Array] = {}
    for index, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        weights[f"layers.{index}.weight"] = random.normal(size=(outputs, inputs)) / np.sqrt(inputs)
        weights[f"layers.{index}.bias"] = np.zeros(outputs)
    return weights


def _run_layers(kind: str, split: str, function: Function) -> Values:
    def replaced() -> AbstractContextManager[None]:
        return injected(f"hybridnn.parallel.dense:{kind}", function, "hybridnn.training.trainer")

    settings: dict[str, Any] = {"network": {"residual": True}, "initial_weights": _initial_weights()}
    found: dict[str, Any] = {}
    for grid, overlap in zip(GRIDS, (False, True), strict=True):
        with replaced():
            found |= _trainings(split, [grid], overlap=overlap, **settings)
    return found


def _expected_layers(split: str, variant: Variant) -> Values:
    weights = _initial_weights()
    if variant["residual"] == "after activation":
        return _serial([split], GRIDS, network={"residual": True}, initial_weights=weights)
    # W x + b + x = (W + I) x + b: the same training without a residual layer, whose weights differ by I.
    identity = np.eye(WIDTHS[1])
    weights["layers.1.weight"] = weights["layers.1.weight"] + identity
    trained = _serial([split], GRIDS, initial_weights=weights)
    return {name: value - identity if name.endswith("layers.1.weight") else value for name, value in trained.items()}


def _run_columns(function: Function, variant: Variant) -> Values:
    return _run_layers("ColumnDense", "columns", function)


def _run_rows(function: Function, variant: Variant) -> Values:
    return _run_layers("RowDense", "alternating", function)


# -- norm -------------------------------------------------------------------------------------------------------------


def _call_norm(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    gradients = [np.array(gradient) for gradient in inputs["gradients"]]
    return {"norm": float(function(group, gradients, list(inputs["is_replicated"])))}


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
    ranks = random.randint(2, 5)
    sizes = [random.randint(1, 12) for _ in range(random.randint(2, 4))]
    replicated = [random.randint(1, 6) for _ in range(random.randint(1, 3) if number else 0)]
    return _norm_case(ranks, [] if number == 5 else sizes, replicated, random.randrange(10**6))


def _norm_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    if case.ranks == 1:
        return []
    calls = [call for call in answer.calls if call.rank == 0]
    nbytes = sum(bytes_sent_by_rank(call.name, call.nbytes, case.ranks, is_root=True) for call in calls)
    least = bytes_sent_by_rank("allreduce", ITEM_BYTES, case.ranks)
    return [Bound("collectives", len(calls), 1, 3), Bound("bytes sent by a rank", nbytes, 2 * least, 8 * least)]


def _run_norm(function: Function, variant: Variant) -> Values:
    def adapted(chunk: Any, norm: Array) -> None:
        """The weights' blocks, and the whole biases on every rank."""
        gradients: list[Array] = []
        whole = chunk.gather_parameters(chunk.replica.gradient)
        for shard, view in zip(chunk.shards, chunk.layout.views(chunk.replica.gradient), strict=True):
            gradients += [view.weight.copy(), whole[f"layers.{shard.layer.index}.bias"]]
        norm[0] = float(function(chunk._group, gradients, [False, True] * len(chunk.shards))) ** 2

    target = "hybridnn.parallel.model_chunk:ModelChunk.squared_gradient_norm"
    with injected(target, adapted, "hybridnn.training.trainer"):
        return _trainings("alternating", GRIDS, clip_norm=CLIP_NORM, shared_replicas=False)


def _expected_norm(variant: Variant) -> Values:
    return _serial(["alternating"], GRIDS, clip_norm=CLIP_NORM)


ASSIGNMENT = Assignment(
    id="a4",
    package="hybridnn_course.assignments.a4_model",
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
            call=_call_split,
            solution=split_solution,
            public=_public_split,
            hidden=_hidden_split,
            points=Points(public=6, hidden=11, whole=3),
            axes=("first_split", "bias_owner"),
            whole=WholeRun("digits on 1 × 4 and 2 × 2 ranks, both splits", _run_split, _expected_split),
            mistakes=SPLIT,
        ),
        Task(
            name="columns",
            file="layers.py",
            target="hybridnn.parallel.dense:ColumnDense",
            call=call_columns,
            solution=in_variant(ColumnDense),
            public=public_columns,
            hidden=hidden_columns,
            hidden_cases=8,
            points=Points(public=9, hidden=14, budget=7, whole=3),
            axes=("residual",),
            operations=OPERATIONS,
            budget=columns_budget,
            whole=WholeRun(
                "digits on 1 × 4 and 2 × 2 ranks, columns, a residual layer",
                _run_columns,
                lambda variant: _expected_layers("columns", variant),
            ),
            mistakes=COLUMNS,
        ),
        Task(
            name="rows",
            file="layers.py",
            target="hybridnn.parallel.dense:RowDense",
            call=call_rows,
            solution=in_variant(RowDense),
            public=public_rows,
            hidden=hidden_rows,
            hidden_cases=8,
            points=Points(public=9, hidden=14, budget=6, whole=3),
            axes=("residual",),
            operations=OPERATIONS,
            budget=rows_budget,
            whole=WholeRun(
                "digits on 1 × 4 and 2 × 2 ranks, alternating, a residual layer",
                _run_rows,
                lambda variant: _expected_layers("alternating", variant),
            ),
            mistakes=ROWS,
        ),
        Task(
            name="norm",
            file="norm.py",
            target="hybridnn_course.assignments.a4_model.solution:global_norm",
            call=_call_norm,
            solution=lambda _: global_norm,
            public=_public_norm,
            hidden=_hidden_norm,
            points=Points(public=4, hidden=6, budget=3, whole=2),
            operations=("allreduce",),
            budget=_norm_budget,
            whole=WholeRun("digits on 1 × 4 and 2 × 2 ranks, clipped gradients", _run_norm, _expected_norm),
            mistakes=NORM,
        ),
    ),
)
