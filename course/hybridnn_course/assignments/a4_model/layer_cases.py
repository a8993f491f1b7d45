"""Cases of the layers of A4: one pass of one layer, in the arrays that the library allocates for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import numpy as np

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.prediction.memory import layer_collectives
from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerParameters, LayerShard
from hybridnn.parallel.dense import LayerArrays, split_layers
from hybridnn.parallel.workspace import StageRole, Workspace
from hybridnn_course.answers import Answer, Values
from hybridnn_course.assignment import Bound, Case, Function, Variant
from hybridnn_course.assignments.a4_model.solution import Array, owned_bias

OPERATIONS = ("allreduce", "iallreduce", "allgather_rows", "iallgather_rows", "barrier")
UNUSED = 9.0  # what the arrays hold before a pass writes them
FORWARD, BACKWARD, LATER = "forward", "backward", "backward, biases later"
PASSES = (FORWARD, BACKWARD, LATER)
ITEM_BYTES = 8


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


def make_case(item: LayerCase, by_inputs: bool, variant: Variant) -> Case:
    """The inputs of all ranks: blocks of the whole layer's arrays."""
    random = np.random.default_rng(item.seed)
    weight = random.normal(size=(item.outputs, item.inputs))
    bias = random.normal(size=item.outputs)
    x = random.normal(size=(item.inputs, item.samples))
    dy = random.normal(size=(item.outputs, item.samples))
    activation, y = whole_forward(item, weight, bias, x, variant)
    inputs: list[Values] = []
    for rank in range(item.ranks):
        shard = item.shards(by_inputs, variant, rank)[-1]
        given = slice(None) if by_inputs or shard.gathers else shard.rows
        inputs.append(
            {
                "case": {field.name: getattr(item, field.name) for field in fields(item)},
                "weight": weight[shard.rows, shard.columns].copy(),
                "bias": bias[shard.bias_rows].copy(),
                "x": x[shard.columns].copy(),
                "activation": activation[shard.rows].copy(),
                "y": y[given].copy(),
                "dy": dy[given].copy(),
            }
        )
    return Case(item.name(by_inputs), tuple(inputs))


def whole_forward(item: LayerCase, weight: Array, bias: Array, x: Array, variant: Variant) -> tuple[Array, Array]:
    """Output of the activation, and of the layer, of the layer that is not split."""
    z = weight @ x + bias[:, None]
    is_before = variant["residual"] == "before activation"
    if item.residual and is_before:
        z += x
    NUMPY.activate(item.activation, z, np.empty_like(z))
    return z, z + x if item.residual and not is_before else z.copy()


# -- call -------------------------------------------------------------------------------------------------------------


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
            array.fill(UNUSED)
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
    bias = np.full_like(p.bias, UNUSED)
    gradient = LayerParameters(np.full_like(p.weight, UNUSED), bias, bias[:, None])
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


# -- budget -----------------------------------------------------------------------------------------------------------


def columns_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Collectives and bytes of a layer split by outputs, and whether its all-reduce overlaps."""
    item = LayerCase(**case.inputs[0]["case"])
    bounds = _budget(item, False, answer, variant)
    if item.overlap and item.ranks > 1:
        begun = {call.rank: call.begun for call in answer.calls if call.name == "barrier"}
        early = {call.rank for call in answer.calls if call.name == "allreduce" and call.waited < begun[call.rank]}
        bounds.append(Bound("ranks that wait before the weight gradient", len(early), 0, 1))
    return bounds


def rows_budget(case: Case, answer: Answer, variant: Variant) -> Sequence[Bound]:
    """Collectives and bytes of a layer split by inputs."""
    return _budget(LayerCase(**case.inputs[0]["case"]), True, answer, variant)


def _budget(item: LayerCase, by_inputs: bool, answer: Answer, variant: Variant) -> list[Bound]:
    if item.ranks == 1:
        return []
    counts, sent = [0] * item.ranks, [0] * item.ranks
    for call in answer.calls:
        if call.name != "barrier":
            counts[call.rank] += 1
            sent[call.rank] += bytes_sent_by_rank(call.name, call.nbytes, item.ranks, is_root=True)
    expected = expected_collectives(item, by_inputs, variant)
    nbytes = sum(bytes_sent_by_rank(name, size, item.ranks) for name, size in expected)
    return [
        Bound("collectives", max(counts), len(expected), len(expected) + 2),
        Bound("bytes sent by a rank", max(sent), nbytes, 2 * nbytes + ITEM_BYTES),
    ]


def expected_collectives(item: LayerCase, by_inputs: bool, variant: Variant) -> list[tuple[str, int]]:
    """Operation and bytes of the collectives of a pass, as the library predicts them."""
    calls = layer_collectives(item.shards(by_inputs, variant, 0)[-1], item.ranks, ITEM_BYTES)
    found = calls.forward if item.kind == FORWARD else calls.backward
    if by_inputs and variant["residual"] == "before activation":  # nothing has to be gathered
        found = tuple(call for call in found if call[0] != "allgather")
    return [(name, nbytes * item.samples) for name, nbytes in found]


# -- cases ------------------------------------------------------------------------------------------------------------


def public_columns(variant: Variant) -> Sequence[Case]:
    """Small cases of a layer split by outputs."""
    items = [
        LayerCase(FORWARD, 1, 3, 2, 2),
        LayerCase(FORWARD, 4, 3, 10, 2, "relu"),
        LayerCase(FORWARD, 3, 4, 7, 3, gathers=False),
        LayerCase(FORWARD, 2, 5, 5, 2, residual=True),
        LayerCase(BACKWARD, 4, 3, 10, 2, "relu"),
        LayerCase(BACKWARD, 3, 4, 7, 3, gathers=False, overlap=True),
        LayerCase(BACKWARD, 2, 5, 5, 2, residual=True),
        LayerCase(LATER, 3, 4, 2, 3, index=0),
    ]
    return [make_case(item, False, variant) for item in items]


def hidden_columns(random: Random, variant: Variant, number: int) -> Case:
    """Uneven blocks of outputs; each case has another pass."""
    ranks, residual = random.randint(3, 5), number in (1, 2, 3, 5)
    outputs = ranks * random.randint(1, 3) + random.randint(1, ranks - 1)
    item = LayerCase(
        kind=[FORWARD, FORWARD, BACKWARD, BACKWARD, LATER, LATER, FORWARD, BACKWARD][number],
        ranks=ranks,
        inputs=outputs if residual else random.randint(3, 9),
        outputs=outputs,
        samples=random.randint(2, 6),
        activation=random.choice(["tanh", "sigmoid"]),
        residual=residual,
        gathers=number not in (3, 4, 6),
        overlap=number in (2, 3),
        seed=random.randrange(10**6),
    )
    if number == 7:  # more ranks than outputs
        item = replace(item, outputs=ranks - 1, inputs=ranks + 2)
    return make_case(item, False, variant)


def public_rows(variant: Variant) -> Sequence[Case]:
    """Small cases of a layer split by inputs."""
    items = [
        LayerCase(FORWARD, 1, 3, 2, 2),
        LayerCase(FORWARD, 4, 10, 3, 2, "relu"),
        LayerCase(FORWARD, 3, 5, 5, 2, residual=True),
        LayerCase(BACKWARD, 4, 10, 3, 2, "relu"),
        LayerCase(BACKWARD, 3, 5, 5, 2, residual=True),
        LayerCase(LATER, 3, 2, 7, 3),
    ]
    return [make_case(item, True, variant) for item in items]


def hidden_rows(random: Random, variant: Variant, number: int) -> Case:
    """Uneven blocks of inputs; each case has another pass."""
    ranks, residual = random.randint(3, 5), number in (1, 3, 5)
    inputs = ranks * random.randint(1, 3) + random.randint(1, ranks - 1)
    item = LayerCase(
        kind=[FORWARD, FORWARD, BACKWARD, BACKWARD, LATER, LATER, FORWARD, BACKWARD][number],
        ranks=ranks,
        inputs=inputs,
        outputs=inputs if residual else ranks * random.randint(1, 2) + 1,
        samples=random.randint(2, 6),
        activation=random.choice(["tanh", "sigmoid"]),
        residual=residual,
        seed=random.randrange(10**6),
    )
    if number == 7:  # more ranks than inputs
        item = replace(item, inputs=ranks - 1)
    return make_case(item, True, variant)
