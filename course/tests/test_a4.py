"""A4: references against whole layers and finite differences; budgets against closed forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybridnn.nn.mlp import DenseLayer
from hybridnn_course.assignment import Variant
from hybridnn_course.checks import check_task
from hybridnn_course.exercises.a4_model.budgets import expected_collectives
from hybridnn_course_staff.assignments.a4_model.assignment import ASSIGNMENT
from hybridnn_course_staff.assignments.a4_model.layer_cases import BACKWARD, FORWARD, LATER, LayerCase, make_case
from hybridnn_course_staff.task_key import TaskKey
from hybridnn_course_staff.trusted import TrustedRunner, run_trusted

Array = NDArray[np.float64]

VARIANTS = [dict(zip(ASSIGNMENT.axes, choice, strict=True)) for choice in product(*ASSIGNMENT.axes.values())]
AFTER = ASSIGNMENT.standard
BEFORE = {**AFTER, "residual": "before activation"}
OTHER = {"first_split": "inputs", "bias_owner": "last rank", "residual": "before activation"}
KEY = b"a key of a term."


# -- methods ----------------------------------------------------------------------------------------------------------


def test_methods_count_one_by_one() -> None:
    task = ASSIGNMENT.task("columns")

    class Unwritten(task.solution(OTHER)):  # type: ignore[misc]
        def backward_input(self, *_: Any, **__: Any) -> None:
            raise NotImplementedError("a4 columns")

    outcome = check_task(TrustedRunner({"columns": Unwritten}), TaskKey(ASSIGNMENT, task, OTHER), whole=False)
    assert {check.name.partition(",")[0] for check in outcome.checks if check.passed} == {"forward"}


# -- split ------------------------------------------------------------------------------------------------------------


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
