"""Calls of the student's functions of A2, and the trainings with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice
from hybridnn.in_process import run_ranks
from hybridnn.parallel.gradient_reduction import plan_buckets
from hybridnn.training.data_split import epoch_order, minibatches
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.execution import make_group
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import LIMIT, digits, train_digits

EPOCHS, RATE, BATCH = 2, 0.5, 100
DEEP = (64, 24, 16, 10)
RANKS = (4, 5)


def call_bounds(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    found = [function(*inputs["of"], part) for part in range(inputs["of"][1])]
    return {"bounds": [list(bounds) if isinstance(bounds, (tuple, list)) else repr(bounds) for bounds in found]}


def run_bounds(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(items: int, parts: int, part: int) -> tuple[int, int]:
        if variant["longer_parts"] == "first":
            start, stop = function(items, parts, part)
            return start, stop
        start, stop = function(items, parts, parts - 1 - part)
        return items - stop, items - start

    with injected("hybridnn.comm.blocks:block_bounds", adapted, "hybridnn.training.trainer", "hybridnn.runs.data"):
        return train_digits(4, grid={"batch": 4})


def call_minibatches(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    batches = list(function(inputs["order"], inputs["batch_size"]))
    if kinds := sorted({type(batch).__name__ for batch in batches if not isinstance(batch, np.ndarray)}):
        raise TypeError(f"a minibatch is an array, not of type {', '.join(kinds)}")
    return {"sizes": [len(batch) for batch in batches], "samples": np.concatenate([np.zeros(0, np.int64), *batches])}


def run_minibatches(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
        if variant["short_minibatch"] == "last":
            yield from function(order, batch_size)
        else:
            yield from reversed([batch[::-1] for batch in function(order[::-1], batch_size)])

    with injected("hybridnn.training.data_split:minibatches", adapted, "hybridnn.training.trainer"):
        return train_digits()


def call_buckets(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    plan = function(inputs["ends"], inputs["size"], inputs["min_elements"])
    if not isinstance(plan, dict):
        return {"buckets": f"a {type(plan).__name__}"}
    return {"buckets": [f"{layer}: ({start}, {stop})" for layer, (start, stop) in plan.items()]}


def run_buckets(function: Function, variant: Variant) -> Values:
    """The training with the function, which sees the loss where the variant has it; the library has it last."""

    def adapted(ends: Sequence[int], size: int, _: int) -> dict[int, tuple[int, int]]:
        first = int(variant["loss_place"] == "first")
        plan = function([first + end for end in ends], size, 300)
        return {
            layer: (max(0, start - first), stop if stop == size else stop - first)
            for layer, (start, stop) in plan.items()
        }

    with injected("hybridnn.parallel.gradient_reduction:plan_buckets", adapted, "hybridnn.training.trainer"):
        return train_digits(4, DEEP, grid={"batch": 4}, overlap=True)


def call_gradient(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    found = function(group, inputs["weights"], inputs["bias"], inputs["x"], inputs["labels"])
    gradient, bias_gradient, loss = found
    return {"gradient": np.asarray(gradient), "bias gradient": np.asarray(bias_gradient), "loss": float(loss)}


def run_gradient(function: Function, variant: Variant) -> Values:
    """The training with the function."""
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


def call_reducer(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """Two steps of a backward pass. Each layer begins with a barrier, by which the budget knows when it computes."""
    place, ends = inputs["place"], inputs["ends"]
    buffer = np.zeros(len(inputs["steps"][0]))
    reducer = function(group, buffer, {layer: (start, stop) for layer, start, stop in inputs["buckets"]})
    found: dict[str, Any] = {}
    for number, own in enumerate(inputs["steps"], 1):
        buffer[place] = own[place]
        for layer in reversed(range(len(ends))):
            group.barrier()
            gradient = slice(ends[layer] - inputs["layers"][layer], ends[layer])
            buffer[gradient] = own[gradient]
            reducer.ready(layer)
        loss = reducer.finish()
        found |= {f"buffer in step {number}": buffer.copy(), f"loss in step {number}": float(loss)}
    return found


class _InLibrary:
    """A student's reducer in the place of the library's, whose buffer ends with the loss."""

    nbytes = 0

    def __init__(self, function: Function, variant: Variant, group: Any, gradient: NDArray[Any], ends: Sequence[int]):
        self._gradient, self._last = gradient, len(ends) - 1
        self._first = int(variant["loss_place"] == "first")
        self._place = 0 if self._first else -1
        self._starts, self._ends = [0, *ends[:-1]], ends
        self._buffer = np.zeros_like(gradient)
        shifted = [end + self._first for end in ends]
        self._reducer = function(group, self._buffer, plan_buckets(shifted, gradient.size, 300))

    def ready(self, layer: int) -> None:
        """Copy the gradient of a layer, and for the last one the loss."""
        if layer == self._last:
            self._buffer[self._place] = self._gradient[-1]
        start, end = self._starts[layer], self._ends[layer]
        self._buffer[start + self._first : end + self._first] = self._gradient[start:end]
        self._reducer.ready(layer)

    def finish(self) -> None:
        """Copy the sums back."""
        loss = float(self._reducer.finish())
        size = len(self._gradient) - 1
        self._gradient[:size] = self._buffer[self._first : self._first + size]
        self._gradient[-1] = loss


def run_reducer(function: Function, variant: Variant) -> Values:
    """Train on 4 ranks with the student's reducer in the place of the library's."""

    def adapted(group: Any, gradient: NDArray[Any], ends: Sequence[int], *_: Any) -> _InLibrary:
        return _InLibrary(function, variant, group, gradient, ends)

    with injected("hybridnn.parallel.gradient_reduction:GradientReducer", adapted, "hybridnn.training.trainer"):
        return train_digits(4, DEEP, grid={"batch": 4}, overlap=True)
