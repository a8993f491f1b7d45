"""Calls of the student's functions of A3, and the trainings with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Group
from hybridnn_course.answers import Values
from hybridnn_course.assignment import Function, Variant
from hybridnn_course.injection import injected
from hybridnn_course.whole_run import train_digits

Array = NDArray[Any]


def block_of(rank: int, ranks: int, variant: Variant) -> int:
    """Number of the block that belongs to a rank."""
    if variant["block_of_rank"] == "own":
        return rank
    return (rank + 1) % ranks if variant["block_of_rank"] == "next" else ranks - 1 - rank


class _Messages:
    """The messages of a group of the library, for functions of a variant in which another block belongs to a rank.

    Its ranks are numbered so that the block that belongs to a number in the variant is that of the rank in the library.
    """

    def __init__(self, group: Group, variant: Variant) -> None:
        self._group = group
        self._rank_of = [block_of(number, group.size, variant) for number in range(group.size)]
        self.rank, self.size = self._rank_of.index(group.rank), group.size

    def isend(self, array: Array, peer: int, tag: int = 0) -> Any:
        """Send to a rank by its number."""
        return self._group.isend(array, self._rank_of[peer], tag)

    def ireceive(self, array: Array, peer: int, tag: int = 0) -> Any:
        """Receive from a rank by its number."""
        return self._group.ireceive(array, self._rank_of[peer], tag)


def _train(name: str, replacement: Function, **grid: int) -> Values:
    """Train on 4 ranks with another method of `Group`."""
    with injected(f"hybridnn.comm.group:Group.{name}", replacement, "hybridnn.training.trainer"):
        return train_digits(4, grid=grid)


def run_reduce_scatter(function: Function, variant: Variant) -> Values:
    """The training with the function."""
    library = Group.allreduce

    def adapted(group: Group, array: Array, operation: str = "sum") -> None:
        if operation != "sum" or group.size == 1:
            library(group, array, operation)
            return
        flat = array.reshape(-1)
        start, stop = block_bounds(flat.size, group.size, group.rank)
        out = np.empty(stop - start, array.dtype)
        function(_Messages(group, variant), flat, out)
        flat[start:stop] = out
        group.allgather_rows(flat)

    return _train("allreduce", adapted, batch=2, model=2)


def run_allgather(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(group: Group, array: Array) -> None:
        function(_Messages(group, variant), array)

    return _train("allgather_rows", adapted, model=4)


def run_allreduce(function: Function, variant: Variant) -> Values:
    """The training with the function."""

    def adapted(group: Group, array: Array, operation: str = "sum") -> None:
        function(_Messages(group, {"block_of_rank": "own"}), array, operation)

    return _train("allreduce", adapted, batch=2, model=2)


def call_shift(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    array = inputs["array"]
    return {"result": np.array(function(group, array)), "array": array}


def call_reduce_scatter(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    array, out = inputs["array"], inputs["out"]
    function(group, array, out)
    return {"out": out, "array": array}


def call_allgather(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    function(group, inputs["array"])
    return {"array": inputs["array"]}


def call_allreduce(function: Function, inputs: Values, group: Any, variant: Variant) -> Values:
    """What the function returns or writes, as values."""
    array = inputs["array"]
    # Without the argument where the sum is asked for: it is the default.
    function(group, array, *([] if inputs["operation"] == "sum" else [inputs["operation"]]))
    return {"array": array}
