"""Calls of the student's functions of A4, and the trainings with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerParameters, LayerShard
from hybridnn.parallel.dense import LayerArrays, split_layers
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn_course.answers import UNWRITTEN, Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import train_digits

Array = NDArray[np.float64]


def owned_bias(variant: Variant, layer: DenseLayer, ranks: int, rank: int) -> slice:
    """Rows of the bias of a layer split by inputs that a rank owns."""
    if variant["bias_owner"] == "in blocks":
        return block_slice(layer.outputs, ranks, rank)
    return slice(0, layer.outputs if rank == ranks - 1 else 0)


FORWARD, BACKWARD, LATER = "forward", "backward", "backward, biases later"


class MethodNotWrittenError(RuntimeError):
    """A method of the class still raises `NotImplementedError`, while others may be written."""


@dataclass(frozen=True)
class LayerCase:
    """A pass of a layer, and how the layer is split."""

    kind: str  # one of `PASSES`
    ranks: int
    inputs: int
    outputs: int
    samples: int
    activation: str = "tanh"
    residual: bool = False
    gathers: bool = True  # only for a layer split by outputs
    overlap: bool = False  # only for a layer split by outputs
    index: int = 1  # the input of layer 0 has no gradient
    seed: int = 1

    def layer(self) -> DenseLayer:
        """The layer."""
        return DenseLayer(self.index, self.inputs, self.outputs, self.activation, self.residual, "he")

    def shards(self, by_inputs: bool, variant: Variant, rank: int) -> list[LayerShard]:
        """The layer's shard on a rank, after the shard that its input comes from, if that is split."""
        layer = self.layer()
        if not by_inputs:
            return [replace(split_layers([layer], "columns", self.ranks, rank)[0], gathers=self.gathers)]
        before = DenseLayer(0, 1, self.inputs, "identity", False, "he")
        first, shard = split_layers([before, layer], "alternating", self.ranks, rank)
        return [first, replace(shard, bias_rows=owned_bias(variant, layer, self.ranks, rank))]

    def name(self, by_inputs: bool) -> str:
        """What is special about it."""
        width = f"{self.inputs} inputs" if by_inputs else f"{self.outputs} outputs"
        parts = [self.kind, f"{self.ranks} rank{'s' * (self.ranks > 1)}", width]
        if self.residual:
            parts.append("residual")
        if self.overlap:
            parts.append("overlap")
        if not by_inputs and not self.gathers:
            parts.append("not gathered")
        if self.index == 0:
            parts.append("layer 0")
        return ", ".join(parts)


def call_columns(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """One pass of a layer split by outputs."""
    item = LayerCase(**inputs["case"])
    shard, arrays = _arrays(item, False, group, variant)
    return _pass(function(shard, group, item.overlap, NUMPY), item, arrays, inputs, group)


def call_rows(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """One pass of a layer split by inputs."""
    item = LayerCase(**inputs["case"])
    shard, arrays = _arrays(item, True, group, variant)
    return _pass(function(shard, group, NUMPY), item, arrays, inputs, group)


def _arrays(item: LayerCase, by_inputs: bool, group: Any, variant: Variant) -> tuple[LayerShard, LayerArrays]:
    shards = item.shards(by_inputs, variant, group.rank)
    workspace = Workspace(shards, item.samples, np.float64, StageRole(item.index == 0, False))
    layer = workspace.arrays(item.samples).layers[-1]
    for name, array in vars(layer).items():
        if isinstance(array, np.ndarray) and name != "ones":
            array.fill(UNWRITTEN)
    return shards[-1], layer


def _pass(dense: Any, item: LayerCase, s: LayerArrays, inputs: Values, group: Any) -> Values:
    weight, bias = inputs["weight"].copy(), inputs["bias"].copy()
    p = LayerParameters(weight, bias, bias[:, None])
    np.copyto(s.x, inputs["x"])
    run = _forward if item.kind == FORWARD else _backward
    outputs = run(dense, item, p, s, inputs, group)
    given = [(weight, inputs["weight"]), (bias, inputs["bias"]), (s.x, inputs["x"])]
    return {**outputs, "input and parameters unchanged": all(np.array_equal(own, was) for own, was in given)}


def _forward(
    dense: Any, item: LayerCase, p: LayerParameters, s: LayerArrays, inputs: Values, group: Any
) -> dict[str, Any]:
    dense.forward(p, s)
    return {"y": np.array(s.y)} | ({"activation": np.array(s.activation)} if item.residual else {})


def _backward(
    dense: Any, item: LayerCase, p: LayerParameters, s: LayerArrays, inputs: Values, group: Any
) -> dict[str, Any]:
    np.copyto(s.y, inputs["y"])
    np.copyto(s.activation, inputs["activation"])
    np.copyto(s.dy, inputs["dy"])
    bias = np.full_like(p.bias, UNWRITTEN)
    gradient = LayerParameters(np.full_like(p.weight, UNWRITTEN), bias, bias[:, None])
    later = item.kind == LATER
    try:
        request = dense.backward_input(p, s, None if later else bias)
        if not hasattr(request, "wait"):
            raise TypeError(f"backward_input returned {type(request).__name__}, not a request or DONE")
        if item.overlap:
            group.barrier()  # marks the moment: an all-reduce that ended before it did not overlap
        dense.backward_weight(s, gradient, biases=later)
    except NotImplementedError as error:
        raise MethodNotWrittenError(f"{error}: a method of the backward pass") from None
    request.wait()
    outputs = {"weight gradient": np.array(gradient.weight), "bias gradient": np.array(bias)}
    return outputs | ({} if s.dx is None else {"dx": np.array(s.dx)})


WIDTHS = (64, 24, 24, 10)
GRIDS = ({"model": 4}, {"batch": 2, "model": 2})
CLIP_NORM = 0.5


def _layers_of(inputs: Values) -> list[DenseLayer]:
    widths, first = inputs["widths"], inputs["first"]
    return [DenseLayer(first + number, *pair, "relu", False, "he") for number, pair in enumerate(pairwise(widths))]


def call_split(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
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


def run_split(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(layers: Sequence[DenseLayer], split: str, ranks: int, rank: int) -> list[LayerShard]:
        skipped = split == "alternating" and variant["first_split"] == "inputs"
        # With a layer in front, which is split by inputs, the others are split as in the library.
        shards: list[LayerShard] = list(function([*layers[:skipped], *layers], split, ranks, rank))
        return shards[skipped:]

    found: dict[str, Any] = {}
    for split in ("columns", "alternating"):
        with injected("hybridnn.parallel.dense:split_layers", adapted, "hybridnn.training.trainer"):
            found |= trainings(split, GRIDS)
    return found


def trainings(split: str, grids: Sequence[Mapping[str, int]], **settings: Any) -> dict[str, Any]:
    """Trainings on several grids."""
    found: dict[str, Any] = {}
    for grid in grids:
        trained = train_digits(4, WIDTHS, grid=grid, model_split=split, **settings)
        found |= {f"{run_name(split, grid)}: {name}": value for name, value in trained.items()}
    return found


def run_name(split: str, grid: Mapping[str, int]) -> str:
    """The training with the function."""
    return f"{split}, {grid.get('batch', 1)} × {grid['model']} ranks"


def initial_weights() -> dict[str, Array]:
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

    settings: dict[str, Any] = {"network": {"residual": True}, "initial_weights": initial_weights()}
    found: dict[str, Any] = {}
    for grid, overlap in zip(GRIDS, (False, True), strict=True):
        with replaced():
            found |= trainings(split, [grid], overlap=overlap, **settings)
    return found


def run_columns(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    return _run_layers("ColumnDense", "columns", function)


def run_rows(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    return _run_layers("RowDense", "alternating", function)


def call_norm(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    gradients = [np.array(gradient) for gradient in inputs["gradients"]]
    return {"norm": float(function(group, gradients, list(inputs["is_replicated"])))}


def run_norm(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(chunk: Any, norm: Array) -> None:
        """The weights' blocks, and the whole biases on every rank."""
        gradients: list[Array] = []
        whole = chunk.gather_parameters(chunk.replica.gradient)
        for shard, view in zip(chunk.shards, chunk.layout.views(chunk.replica.gradient), strict=True):
            gradients += [view.weight.copy(), whole[f"layers.{shard.layer.index}.bias"]]
        norm[0] = float(function(chunk._group, gradients, [False, True] * len(chunk.shards))) ** 2

    target = "hybridnn.parallel.model_chunk:ModelChunk.squared_gradient_norm"
    with injected(target, adapted, "hybridnn.training.trainer"):
        return trainings("alternating", GRIDS, clip_norm=CLIP_NORM, shared_replicas=False)
