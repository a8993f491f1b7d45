"""A4: references against whole layers, finite differences and one rank; budgets against closed forms."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.assignments.a4_model.assignment import ASSIGNMENT
from hybridnn.assignments.a4_model.layer_cases import (
    BACKWARD,
    FORWARD,
    LATER,
    LayerCase,
    expected_collectives,
    make_case,
)
from hybridnn.course.assignment import Task, Variant
from hybridnn.course.carrier import Worker
from hybridnn.course.checks import TaskKey, TrustedRunner, check_task
from hybridnn.course.execution import run_trusted
from hybridnn.course.handout import render_handout
from hybridnn.course.injection import find
from hybridnn.course.stubs import require_same_signature
from hybridnn.nn.mlp import DenseLayer
from hybridnn.parallel.dense import ColumnDense, RowDense, split_layers

Array = NDArray[np.float64]

VARIANTS = [dict(zip(ASSIGNMENT.axes, choice, strict=True)) for choice in product(*ASSIGNMENT.axes.values())]
AFTER = ASSIGNMENT.standard
BEFORE = {**AFTER, "residual": "before activation"}
KEY = b"a key of a term."


def _different(task: Task) -> list[dict[str, str]]:
    """One variant for each combination of the task's axes."""
    found = {tuple(variant[axis] for axis in task.axes): variant for variant in reversed(VARIANTS)}
    return list(found.values())


# -- points -----------------------------------------------------------------------------------------------------------


def test_there_are_100_points() -> None:
    assert ASSIGNMENT.points == 100


@pytest.mark.parametrize(
    ("name", "variant"), [(task.name, variant) for task in ASSIGNMENT.tasks for variant in _different(task)]
)
def test_the_reference_earns_all_points(name: str, variant: Variant) -> None:
    task = ASSIGNMENT.task(name)
    solution = task.solution(variant)
    require_same_signature(task, solution)
    outcome = check_task(TrustedRunner({name: solution}), TaskKey(ASSIGNMENT, task, variant, KEY))
    assert [check.name for check in outcome.checks if check.points < check.possible] == []


@pytest.mark.parametrize(("name", "function"), [("split", split_layers), ("columns", ColumnDense), ("rows", RowDense)])
def test_the_library_earns_all_points_in_the_standard_variant(name: str, function: Any) -> None:
    task = ASSIGNMENT.task(name)
    key = TaskKey(ASSIGNMENT, task, AFTER, KEY)
    outcome = check_task(TrustedRunner({name: function}), key, whole=False)
    assert outcome.points == pytest.approx(task.points.total - task.points.whole)


@pytest.mark.parametrize("name", ["columns", "rows"])
def test_methods_have_the_signatures_of_the_library(name: str) -> None:
    task = ASSIGNMENT.task(name)
    solution, target = task.solution(AFTER), find(task.target)
    for method in ("forward", "backward_input", "backward_weight"):
        own, library = (inspect.signature(getattr(item, method)) for item in (solution, target))
        assert [(item.name, item.kind) for item in own.parameters.values()] == [
            (item.name, item.kind) for item in library.parameters.values()
        ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_handout_has_no_unknown_names(variant: Variant) -> None:
    text = render_handout(ASSIGNMENT, variant)
    assert all(ASSIGNMENT.axes[axis][choice] in text for axis, choice in variant.items())


# -- a submission -----------------------------------------------------------------------------------------------------

OTHER = {"first_split": "inputs", "bias_owner": "last rank", "residual": "before activation"}

SPLIT = """
from hybridnn.comm.blocks import block_slice
from hybridnn.nn.parameters import LayerShard

def split_layers(layers, split, ranks, rank):
    shards = []
    for i, layer in enumerate(layers):
        ins, outs = block_slice(layer.inputs, ranks, rank), block_slice(layer.outputs, ranks, rank)
        if split == "alternating" and i % 2 == 0:
            bias = slice(0, layer.outputs) if rank == ranks - 1 else slice(0, 0)
            shards.append(LayerShard(layer, slice(0, layer.outputs), ins, bias, True, False))
        else:
            paired = split == "alternating" and i < len(layers) - 1
            shards.append(LayerShard(layer, outs, slice(0, layer.inputs), outs, False, not paired))
    return shards
"""

LAYERS = """
import numpy as np
from hybridnn.comm.group import DONE

class ColumnDense:
    def __init__(self, shard, group, overlap, kernels):
        self.shard, self.layer, self.group, self.overlap, self.kernels = shard, shard.layer, group, overlap, kernels

    def forward(self, p, s):
        z = p.weight @ s.x + p.bias_column
        if self.layer.residual:
            z = z + s.x[self.shard.rows]
        s.activation[...] = z
        self.kernels.activate(self.layer.activation, s.activation, s.scratch)
        s.local_y[...] = s.activation
        if self.shard.gathers:
            self.group.allgather_rows(s.y)

    def backward_input(self, p, s, bias_gradient=None):
        dz = np.empty_like(s.activation)
        self.kernels.gradient_of_activation(self.layer.activation, s.activation, s.own_dy.copy(), dz, s.scratch)
        s.dz[...] = dz
        if bias_gradient is not None:
            bias_gradient[...] = dz @ s.ones
        if s.dx is None:
            return DONE
        s.dx[...] = p.weight.T @ dz
        if self.layer.residual:
            s.dx[self.shard.rows] += dz
        request = self.group.iallreduce(s.dx)
        if self.overlap:
            return request
        request.wait()
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        gradient.weight[...] = s.dz @ s.x.T
        if biases:
            gradient.bias[...] = s.dz @ s.ones

class RowDense:
    def __init__(self, shard, group, kernels):
        self.shard, self.layer, self.group, self.kernels = shard, shard.layer, group, kernels

    def forward(self, p, s):
        s.activation[...] = p.weight @ s.x
        s.activation[self.shard.bias_rows] += p.bias_column
        if self.layer.residual:
            s.activation[self.shard.columns] += s.x
        self.group.allreduce(s.activation)
        self.kernels.activate(self.layer.activation, s.activation, s.scratch)
        s.y[...] = s.activation

    def backward_input(self, p, s, bias_gradient=None):
        self.kernels.gradient_of_activation(self.layer.activation, s.activation, s.dy, s.dz, s.scratch)
        if bias_gradient is not None:
            bias_gradient[...] = (s.dz @ s.ones)[self.shard.bias_rows]
        if s.dx is not None:
            s.dx[...] = p.weight.T @ s.dz
            if self.layer.residual:
                s.dx += s.dz[self.shard.columns]
        return DONE

    def backward_weight(self, s, gradient, *, biases=True):
        gradient.weight[...] = s.dz @ s.x.T
        if biases:
            gradient.bias[...] = (s.dz @ s.ones)[self.shard.bias_rows]
"""

NORM = """
import numpy as np

def global_norm(group, gradients, is_replicated):
    split = np.array([sum((g ** 2).sum() for g, same in zip(gradients, is_replicated) if not same)], float)
    group.allreduce(split)
    return np.sqrt(split[0] + sum((g ** 2).sum() for g, same in zip(gradients, is_replicated) if same))
"""


def test_a_submission_written_from_the_handout_earns_all_points() -> None:
    with Worker(ASSIGNMENT, {"split.py": SPLIT, "layers.py": LAYERS, "norm.py": NORM}, limit=30) as worker:
        outcomes = [check_task(worker, TaskKey(ASSIGNMENT, task, OTHER)) for task in ASSIGNMENT.tasks]
    assert [
        (check.name, check.message) for item in outcomes for check in item.checks if check.points < check.possible
    ] == []


def test_mistakes_of_a_submission_are_named_and_methods_count_one_by_one() -> None:
    key = TaskKey(ASSIGNMENT, ASSIGNMENT.task("columns"), OTHER)
    always = LAYERS.replace("if self.shard.gathers:", "if True:")
    with Worker(ASSIGNMENT, {"layers.py": always}, limit=30) as worker:
        outcome = check_task(worker, key, whole=False)
    wrong = [check for check in outcome.checks if check.kind == "public" and not check.passed]
    assert {check.mistake for check in wrong} == {"gathers-without-need"}
    unwritten = LAYERS.replace("dz = np.empty_like(s.activation)", "raise NotImplementedError('a4 columns')")
    with Worker(ASSIGNMENT, {"layers.py": unwritten}, limit=30) as worker:
        outcome = check_task(worker, key, whole=False)
    assert {check.name.partition(",")[0] for check in outcome.checks if check.passed} == {"forward"}


# -- split ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 13), min_size=1, max_size=6),
    st.integers(1, 5),
    st.sampled_from(["columns", "alternating"]),
    st.sampled_from(VARIANTS),
    st.integers(0, 3),
)
def test_shards_cover_the_layers_once_and_each_rank_has_the_inputs_it_reads(
    widths: list[int], ranks: int, split: str, variant: dict[str, str], first: int
) -> None:
    layers = [DenseLayer(first + i, *pair, "relu", False, "he") for i, pair in enumerate(zip(widths, widths[1:]))]  # noqa: B905, RUF007
    owners = [(np.zeros((layer.outputs, layer.inputs)), np.zeros(layer.outputs)) for layer in layers]
    for rank in range(ranks):
        shards = ASSIGNMENT.task("split").solution(variant)(layers, split, ranks, rank)
        available = set(range(widths[0]))
        for number, ((weight, bias), shard) in enumerate(zip(owners, shards, strict=True)):
            assert shard.layer is layers[number]
            weight[shard.rows, shard.columns] += 1
            bias[shard.bias_rows] += 1
            read = set(range(shard.columns.start, shard.columns.stop))
            assert read <= available
            if shard.by_inputs:
                assert shard.weight_shape[0] == shard.layer.outputs
                assert not shard.gathers
            else:
                assert shard.bias_rows == shard.rows
            has_all = shard.by_inputs or shard.gathers
            available = set(range(shard.layer.outputs) if has_all else range(shard.rows.start, shard.rows.stop))
            follower = shards[number + 1] if number + 1 < len(shards) else None
            if not shard.by_inputs:  # nothing is gathered that the next layer does not read
                assert shard.gathers == (follower is None or not follower.by_inputs)
        kinds = [shard.by_inputs for shard in shards]
        starts_with_inputs = variant["first_split"] == "inputs"
        assert kinds == [split == "alternating" and (i % 2 == 0) == starts_with_inputs for i in range(len(layers))]
    assert all((weight == 1).all() and (bias == 1).all() for weight, bias in owners)


# -- layers -----------------------------------------------------------------------------------------------------------


def _whole(case: LayerCase, by_inputs: bool, variant: Variant) -> dict[str, Array]:
    """Arrays of the layer that is not split, put together from the inputs of all ranks."""
    weight = np.full((case.outputs, case.inputs), np.nan)
    bias, x = np.full(case.outputs, np.nan), np.full((case.inputs, case.samples), np.nan)
    dy = np.full((case.outputs, case.samples), np.nan)
    for rank, inputs in enumerate(make_case(case, by_inputs, variant).inputs):
        shard = case.shards(by_inputs, variant, rank)[-1]
        weight[shard.rows, shard.columns], bias[shard.bias_rows] = inputs["weight"], inputs["bias"]
        x[shard.columns] = inputs["x"]
        dy[slice(None) if by_inputs or shard.gathers else shard.rows] = inputs["dy"]
    return {"weight": weight, "bias": bias, "x": x, "dy": dy}


def _output(case: LayerCase, whole: Mapping[str, Array], variant: Variant) -> Array:
    z = whole["weight"] @ whole["x"] + whole["bias"][:, None]
    if case.residual and variant["residual"] == "before activation":
        return np.tanh(z + whole["x"])
    return np.tanh(z) + (whole["x"] if case.residual else 0)


def _numerical_gradient(case: LayerCase, whole: dict[str, Array], name: str, variant: Variant) -> Array:
    """Central differences of the sum of dy * y."""
    gradient = np.empty_like(whole[name])
    for index in np.ndindex(gradient.shape):
        values = []
        for step in (1e-6, -1e-6):
            changed = whole[name].copy()
            changed[index] += step
            values.append(float(np.sum(whole["dy"] * _output(case, {**whole, name: changed}, variant))))
        gradient[index] = (values[0] - values[1]) / 2e-6
    return gradient


def _answers(name: str, case: LayerCase, variant: Variant) -> Sequence[Mapping[str, Any]]:
    task = ASSIGNMENT.task(name)
    answer = run_trusted(task, task.solution(variant), make_case(case, name == "rows", variant), variant)
    assert answer.failure is None
    return answer.outputs


LAYER_CASES = [
    ("columns", LayerCase("", 3, 4, 7, 3)),
    ("columns", LayerCase("", 3, 4, 7, 3, gathers=False, overlap=True)),
    ("columns", LayerCase("", 3, 5, 5, 2, residual=True, overlap=True)),
    ("columns", LayerCase("", 4, 5, 5, 2, residual=True, gathers=False)),
    ("columns", LayerCase("", 1, 3, 3, 2, residual=True)),
    ("rows", LayerCase("", 3, 7, 4, 3)),
    ("rows", LayerCase("", 4, 3, 5, 2)),
    ("rows", LayerCase("", 3, 5, 5, 2, residual=True)),
    ("rows", LayerCase("", 1, 3, 3, 2, residual=True)),
]


@pytest.mark.parametrize("variant", [AFTER, BEFORE, OTHER])
@pytest.mark.parametrize(("name", "case"), LAYER_CASES)
def test_references_equal_the_layer_that_is_not_split(name: str, case: LayerCase, variant: Variant) -> None:
    by_inputs = name == "rows"
    whole = _whole(case, by_inputs, variant)
    y = _output(case, whole, variant)
    shards = [case.shards(by_inputs, variant, rank)[-1] for rank in range(case.ranks)]
    for shard, outputs in zip(shards, _answers(name, _of_kind(case, FORWARD), variant), strict=True):
        own = slice(None) if by_inputs or shard.gathers else shard.rows
        np.testing.assert_allclose(outputs["y"], y[own], rtol=1e-12, atol=1e-12)
    gradients = {key: _numerical_gradient(case, whole, key, variant) for key in ("weight", "bias", "x")}
    for kind in (BACKWARD, LATER):
        for shard, outputs in zip(shards, _answers(name, _of_kind(case, kind), variant), strict=True):
            expected = {
                "weight gradient": gradients["weight"][shard.rows, shard.columns],
                "bias gradient": gradients["bias"][shard.bias_rows],
                "dx": gradients["x"][shard.columns],
            }
            for key, value in expected.items():
                np.testing.assert_allclose(outputs[key], value, rtol=1e-7, atol=1e-7)


def _of_kind(case: LayerCase, kind: str) -> LayerCase:
    return LayerCase(**{**vars(case), "kind": kind})


def test_a_pair_sends_one_allreduce_a_direction() -> None:
    width, samples, ranks = 6, 5, 3
    nbytes = width * samples * 8
    first, second = LayerCase(FORWARD, ranks, 4, width, samples, gathers=False), LayerCase(FORWARD, ranks, width, 6, 5)
    backward = [_of_kind(item, BACKWARD) for item in (first, second)]
    assert expected_collectives(first, False, AFTER) == []
    assert expected_collectives(second, True, AFTER) == [("allreduce", nbytes)]
    assert expected_collectives(backward[0], False, AFTER) == [("allreduce", 4 * samples * 8)]
    assert expected_collectives(backward[1], True, AFTER) == []


def test_a_residual_input_is_gathered_only_where_it_enters_after_the_activation() -> None:
    case = LayerCase(FORWARD, 3, 5, 5, 2, residual=True)
    assert expected_collectives(case, True, AFTER) == [("allreduce", 80), ("allgather", 80)]
    assert expected_collectives(case, True, BEFORE) == [("allreduce", 80)]
    assert expected_collectives(case, False, AFTER) == [("allgather", 80)]


# -- norm -------------------------------------------------------------------------------------------------------------


def test_the_norm_is_that_of_the_whole_arrays() -> None:
    task = ASSIGNMENT.task("norm")
    for case in TaskKey(ASSIGNMENT, task, AFTER, KEY).cases:
        arrays = []
        for number, replicated in enumerate(case.inputs[0]["is_replicated"]):
            blocks = [inputs["gradients"][number] for inputs in case.inputs]
            arrays.append(blocks[0] if replicated else np.concatenate(blocks))
        answer = run_trusted(task, task.solution(AFTER), case, AFTER)
        for outputs in answer.outputs:
            assert outputs["norm"] == pytest.approx(float(np.linalg.norm(np.concatenate(arrays))), rel=1e-12)
