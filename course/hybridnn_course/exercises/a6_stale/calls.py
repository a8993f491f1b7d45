"""Calls of the student's functions of A6: from plain values to plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.nn.kernels import NUMPY
from hybridnn.nn.optimizers import SGD, new_state
from hybridnn_course.answers import MEASURED, UNWRITTEN, Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.measuring import CountedArray, counted, measure

Array = NDArray[np.float64]

OPTIMIZER = SGD(lr=0.9)  # made here: the first one looks up modules of the library, which are hidden from submissions


# -- rules and distance -----------------------------------------------------------------------------------------------


def call_rules(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """Three tables of versions, a row for each stage and a column for each minibatch."""
    table = _table(inputs, lambda k, t: function(inputs["method"], k, inputs["stages"], t))
    reads = [[[index(version) for version in _of_length(3, entry)] for entry in row] for row in table]
    return {name: np.array(reads)[:, :, part] for part, name in enumerate(("forward", "activations", "backward"))}


def call_distance(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """A table of versions and one of distances for each pass."""
    minibatches = inputs["minibatches"]
    table = _table(inputs, lambda k, t: function(k, inputs["stages"], t, minibatches))
    reads = np.array(table, np.float64)
    if reads.shape[2:] != (2, 2):
        raise ValueError("predicted_reads did not return two pairs")
    parts = [(name, part) for name in ("forward", "backward") for part in ("version", "distance")]
    return {f"{name} {part}": reads[:, :, number // 2, number % 2] for number, (name, part) in enumerate(parts)}


def _table(inputs: Values, read: Function) -> list[list[Any]]:
    return [[read(k, t) for t in range(inputs["minibatches"])] for k in range(inputs["stages"])]


def _of_length(length: int, values: Any) -> Any:
    if len(values) != length:
        raise ValueError(f"{length} values expected, got {len(values)}")
    return values


# -- store ------------------------------------------------------------------------------------------------------------


def call_store(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What every read returns, with the number of buffers and the bytes that updates must have copied."""
    random = np.random.default_rng(inputs["seed"])
    buffers: list[Array] = [random.normal(size=(inputs["size"],))]  # kept, so that no address is used twice
    versions = function(buffers[0], inputs["versions"])
    copied = 0
    found: list[Array] = []
    for step, *ages in inputs["steps"]:
        if step == "read":
            buffers.append(versions.read(ages[0]))
            found.append(np.array(buffers[-1], np.float64))
            continue
        gradient: Array = random.normal(size=(inputs["size"],))

        def rule(old: Array, new: Array, ages: list[int] = ages, gradient: Array = gradient) -> None:
            nonlocal copied
            if 1 in ages and np.shares_memory(old, new):
                copied += old.nbytes
            buffers.append(new)
            np.multiply(old, 0.75, out=new)
            new -= gradient

        versions.update(rule, tuple(ages))
    addresses = {address_of(buffer) for buffer in buffers}
    return {"read": np.array(found), MEASURED: {"buffers": len(addresses), "bytes copied": copied}}


def address_of(array: Array) -> int:
    """Address of the memory of an array."""
    return int(array.__array_interface__["data"][0])


# -- stage ------------------------------------------------------------------------------------------------------------


def call_stage(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """Outputs of the network, weights of all stages after some minibatches, and the bytes that the stages held.

    All stages compute in one process, in the order of Kang 2019, Table 3.
    """
    layers, batches = inputs["layers"], inputs["batches"]
    last = len(layers) - 1
    stages = [
        function(layer.copy(), "identity" if k == last else "tanh", inputs["method"], inputs["rate"])
        for k, layer in enumerate(layers)
    ]
    outputs: list[Array] = []
    gradients: list[Any] = [None] * len(layers)
    held = [0] * len(layers)
    for step in range(len(batches) + last):
        if step < len(batches):
            x = batches[step]
            for k, stage in enumerate(stages):
                received = x.copy()
                x = np.array(stage.forward(step, received), np.float64)
                received[:] = UNWRITTEN
                held[k] = max(held[k], held_bytes(stage))
            outputs.append(x)
            gradients[last] = x - inputs["targets"][step]
        for k, stage in enumerate(stages):
            t = step - (last - k)
            if 0 <= t < len(batches):
                dx = np.array(stage.backward(t, gradients[k].copy()), np.float64)
                if k:
                    gradients[k - 1] = dx
    return {
        **{f"y of the last stage, minibatch {t}": y for t, y in enumerate(outputs)},
        "dx of the first stage, last minibatch": dx,
        **{f"weights of stage {k}": np.array(stage.weights, np.float64) for k, stage in enumerate(stages)},
        MEASURED: {"bytes held": sum(held)},
    }


def held_bytes(stage: Any) -> int:
    """Bytes of all arrays that an object holds, each memory once."""
    return sum({id(array): array.nbytes for array in _arrays(stage, set())}.values())


def _arrays(value: Any, seen: set[int]) -> Iterator[Array]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield value
        return
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        yield from _arrays(part, seen)


# -- predict ----------------------------------------------------------------------------------------------------------


def call_predict(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """The predicted weights, the arguments after the call, and whether calls loop over elements or allocate arrays."""
    predict, weights, velocity, out = _prediction(function, inputs, inputs["size"])
    predict()
    small, large = (_prediction(counted(function), inputs, size, CountedArray)[0] for size in (10, LARGE))
    return {
        "out": out,
        "weights after the call": weights,
        "velocity after the call": velocity,
        MEASURED: measure(small, large),
    }


def _prediction(
    function: Function, inputs: Values, size: int, kind: type[Array] = np.ndarray
) -> tuple[Callable[[], None], Array, Array, Array]:
    """A call with arrays of a size, and these arrays: weights, velocity and what it writes to."""
    weights, velocity = np.random.default_rng(inputs["seed"]).normal(size=(2, size))
    optimizer = replace(OPTIMIZER, momentum=inputs["momentum"])
    state = new_state(optimizer, weights, NUMPY)
    state.slots["velocity"] = velocity.view(kind)
    out = np.full_like(weights, UNWRITTEN)
    return partial(function, optimizer, weights, state, inputs["lr"], inputs["steps"], out), weights, velocity, out


LARGE = 40_000
"""Elements of arrays of which none may be allocated; any is larger than `TEMPORARY_BYTES` of the measurement."""
