"""The arrays of a checkpoint, and the blocks of them that a rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybridnn.comm.file_io import Rectangle
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.nn.parameters import parameter_name, parameter_shapes
from hybridnn.parallel.stage import Stage

__all__ = ["HeldBlock", "array_name", "array_shapes", "held_blocks"]


@dataclass(frozen=True)
class HeldBlock:
    """A block of an array of the checkpoint that this rank holds.

    Attributes
    ----------
    name : str
        Of the array: a parameter's, with the slot behind it for what the optimizer remembers.
    where : Rectangle
        Its place in the array.
    memory : array, shape (rows, columns)
        The numbers, on the device that trains; those of a bias are a column.
    kernels : Kernels
        Of that device.
    """

    name: str
    where: Rectangle
    memory: Array
    kernels: Kernels


def array_name(parameter: str, slot: str | None) -> str:
    """Name of an array of the checkpoint: ``layers.0.weight``, ``layers.0.weight.velocity``."""
    return parameter if slot is None else f"{parameter}.{slot}"


def array_shapes(model: MLP, slots: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every array of a checkpoint, in order."""
    return {array_name(name, slot): shape for name, shape in parameter_shapes(model).items() for slot in (None, *slots)}


def held_blocks(stages: Sequence[Stage], states: Sequence[OptimizerState]) -> list[HeldBlock]:
    """The blocks of this rank's weights and of what the optimizer remembers, as views of its flat buffers.

    Ranks that hold the same ones list them alike.

    Parameters
    ----------
    stages : sequence of Stage
    states : sequence of OptimizerState
        Of each of the stages.
    """
    return [
        block
        for stage, state in zip(stages, states, strict=True)
        for slot, flat in ((None, stage.weights), *state.slots.items())
        for block in _blocks_of(stage, slot, flat)
    ]


def _blocks_of(stage: Stage, slot: str | None, flat: Array) -> Iterator[HeldBlock]:
    for shard, view in zip(stage.layout.shards, stage.layout.views(flat), strict=True):
        layer = shard.layer
        weight = Rectangle((layer.outputs, layer.inputs), shard.rows, shard.columns)
        bias = Rectangle((layer.outputs, 1), shard.bias_rows, slice(0, 1))
        for part, where, memory in (("weight", weight, view.weight), ("bias", bias, view.bias_column)):
            yield HeldBlock(array_name(parameter_name(layer, part), slot), where, memory, stage.kernels)
