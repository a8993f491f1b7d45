"""Cases of the layers of A4: one pass of one layer, in the arrays that the library allocates for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random

import numpy as np

from hybridnn.nn.kernels import NUMPY
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Case, Variant
from hybridnn_course.exercises.a4_model.calls import BACKWARD, FORWARD, LATER, Array, LayerCase

OPERATIONS = ("allreduce", "iallreduce", "allgather_rows", "iallgather_rows", "barrier")
PASSES = (FORWARD, BACKWARD, LATER)


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
    ranks, residual = number if number > 5 else random.randint(3, 5), number in (1, 2, 3, 5)
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
    ranks, residual = number if number > 5 else random.randint(3, 5), number in (1, 3, 5)
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
