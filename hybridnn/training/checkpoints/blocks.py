"""The arrays of a checkpoint, and the blocks of them that a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.file_io import Rectangle
from hybridnn.kernels.backend import Array
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.nn.parameters import parameter_name, parameter_shapes
from hybridnn.parallel.stage import Stage

__all__ = ["HeldArray", "HeldBlock", "array_name", "array_shapes", "held_arrays", "held_blocks"]


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
        The numbers, on the host; those of a bias are a column.
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


@dataclass(frozen=True)
class HeldArray:
    """A flat buffer of this rank.

    Attributes
    ----------
    stage : Stage
        Whose parameters, or their companions, it holds.
    slot : str or None
        Of the optimizer; None for the weights.
    flat : array, shape (size,)
        On the device that trains.
    host : ndarray, shape (size,)
        Its numbers where the host can read and write them: the buffer itself, or a copy.
    """

    stage: Stage
    slot: str | None
    flat: Array
    host: NDArray[Any]

    def put_back(self) -> None:
        """Let the device have what the host has written."""
        self.stage.kernels.put(self.host, self.flat)


def held_arrays(stages: Sequence[Stage], states: Sequence[OptimizerState]) -> list[HeldArray]:
    """This rank's weights and what the optimizer remembers of them.

    Parameters
    ----------
    stages : sequence of Stage
    states : sequence of OptimizerState
        Of each of the stages.
    """
    return [
        HeldArray(stage, slot, flat, stage.kernels.to_host(flat))
        for stage, state in zip(stages, states, strict=True)
        for slot, flat in ((None, stage.weights), *state.slots.items())
    ]


def held_blocks(arrays: Sequence[HeldArray]) -> list[HeldBlock]:
    """The blocks in this rank's memory, as views of its flat buffers; ranks that hold the same ones list them alike."""
    blocks = []
    for array in arrays:
        stage, slot = array.stage, array.slot
        for shard, view in zip(stage.layout.shards, stage.layout.views(array.host), strict=True):
            layer = shard.layer
            weight = Rectangle((layer.outputs, layer.inputs), shard.rows, shard.columns)
            bias = Rectangle((layer.outputs, 1), shard.bias_rows, slice(0, 1))
            blocks.append(HeldBlock(array_name(parameter_name(layer, "weight"), slot), weight, view.weight))
            blocks.append(HeldBlock(array_name(parameter_name(layer, "bias"), slot), bias, view.bias_column))
    return blocks
