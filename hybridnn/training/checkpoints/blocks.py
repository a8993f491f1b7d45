"""The arrays of a checkpoint, and the blocks of them that a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.file_io import Rectangle
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.nn.parameters import parameter_name, parameter_shapes
from hybridnn.parallel.stage import Stage

__all__ = ["HeldBlock", "array_name", "array_shapes", "held_blocks"]


@dataclass(frozen=True)
class HeldBlock:
    """A block of an array of the checkpoint, in this rank's memory.

    Attributes
    ----------
    name : str
        Of the array: a parameter's, with the slot behind it for what the optimizer remembers.
    where : Rectangle
        Its place in the array.
    memory : ndarray, shape (rows, columns)
        The numbers; those of a bias are a column.
    """

    name: str
    where: Rectangle
    memory: NDArray[Any]


def array_name(parameter: str, slot: str | None) -> str:
    """Name of an array of the checkpoint: ``layers.0.weight``, ``layers.0.weight.velocity``."""
    return parameter if slot is None else f"{parameter}.{slot}"


def array_shapes(model: MLP, slots: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every array of a checkpoint, in order."""
    return {array_name(name, slot): shape for name, shape in parameter_shapes(model).items() for slot in (None, *slots)}


def held_blocks(stages: Sequence[Stage], states: Sequence[OptimizerState]) -> list[HeldBlock]:
    """The blocks in this rank's memory, as views of its flat buffers; ranks that hold the same ones list them alike.

    Parameters
    ----------
    stages : sequence of Stage
    states : sequence of OptimizerState
        Of each of the stages.
    """
    blocks = []
    for stage, state in zip(stages, states, strict=True):
        for slot, flat in ((None, stage.weights), *state.slots.items()):
            for shard, view in zip(stage.layout.shards, stage.layout.views(flat), strict=True):
                layer = shard.layer
                weight = Rectangle((layer.outputs, layer.inputs), shard.rows, shard.columns)
                bias = Rectangle((layer.outputs, 1), shard.bias_rows, slice(0, 1))
                blocks.append(HeldBlock(array_name(parameter_name(layer, "weight"), slot), weight, view.weight))
                blocks.append(HeldBlock(array_name(parameter_name(layer, "bias"), slot), bias, view.bias_column))
    return blocks
