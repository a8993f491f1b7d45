"""Which rows of the arrays a rank writes, and which files it digests.

Model ranks each write a block of rows, whatever block they hold. Ranks that hold the same (batch replicas) share it:
the rows of all arrays, one after the other, are cut into as many stretches as there are replicas, so that every rank
writes about the same bytes and nearly all files have one writer. Where replicas hold whole arrays, the one that writes
most of a file also digests it, from memory; where the layers are split over model ranks nobody holds a whole array, and
the files are dealt to the ranks of the stage to be read again.

The arrays of a checkpoint, and the blocks of them that a rank holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.file_io import Rectangle
from hybridnn.comm.partition import block_bounds
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.nn.parameters import parameter_name, parameter_shapes
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.stage import Stage


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


UNCUT_BYTES = 1 << 20
"""A block of rows up to this size is written by one rank: opening a file costs more than writing so little."""


@dataclass(frozen=True)
class ArrayShare:
    """What the ranks do with one array.

    Attributes
    ----------
    rows : tuple of slice
        Rows that each model rank of this rank's replica writes.
    digests : bool
        Whether this rank digests the array, of which it holds the whole.
    """

    rows: tuple[slice, ...]
    digests: bool


def shares_of_rank(blocks: Sequence[HeldBlock], grid: ProcessGrid) -> list[ArrayShare]:
    """What this rank and its model group do with the array of each of their blocks."""

    def rows_of(batch_rank: int, model_rank: int) -> NDArray[np.int64]:
        bounds = np.array([block_bounds(block.where.shape[0], grid.model, model_rank) for block in blocks])
        row_bytes = np.array([block.where.shape[1] * block.memory.itemsize for block in blocks])
        return bounds[:, :1] + share_rows(bounds[:, 1] - bounds[:, 0], row_bytes, grid.batch, batch_rank, UNCUT_BYTES)

    mine = [rows_of(grid.batch_rank, model_rank) for model_rank in range(grid.model)]
    digests = [False] * len(blocks)
    if grid.model == 1:
        written = np.stack([np.diff(rows_of(batch_rank, 0))[:, 0] for batch_rank in range(grid.batch)])
        digests = (written.argmax(axis=0) == grid.batch_rank).tolist()
    return [
        ArrayShare(tuple(slice(*rows[place].tolist()) for rows in mine), digests[place]) for place in range(len(blocks))
    ]


def share_rows(
    heights: NDArray[np.int64], row_bytes: NDArray[np.int64], sharers: int, sharer: int, uncut: int
) -> NDArray[np.int64]:
    """First and last row of each array, as a slice has them, that one of several ranks with the same arrays writes.

    Parameters
    ----------
    heights, row_bytes : ndarray of int, shape (arrays,)
        Rows of every array, and bytes of such a row.
    sharers, sharer : int
        Ranks with these arrays, and which of them.
    uncut : int
        Bytes up to which an array is not cut.

    Returns
    -------
    ndarray of int, shape (arrays, 2)
    """
    sizes = heights * row_bytes
    starts = np.cumsum(sizes) - sizes

    def rows_before(part: int) -> NDArray[np.int64]:
        """Rows of each array before the stretch of rank `part`."""
        inside = sizes.sum() * part // sharers - starts
        cut: NDArray[np.int64] = np.clip(inside // row_bytes, 0, heights)
        return np.where(sizes <= uncut, heights * (inside > 0), cut).astype(np.int64)

    return np.stack([rows_before(sharer), rows_before(sharer + 1)], axis=1)


def files_to_read_again(blocks: Sequence[HeldBlock], grid: ProcessGrid, size_of: Callable[[str], int]) -> list[str]:
    """The arrays whose files this rank digests from disk."""
    if grid.model == 1:
        return []
    names = [block.name for block in blocks]
    readers = deal_files([size_of(name) for name in names], grid.batch * grid.model)
    mine = grid.batch_rank * grid.model + grid.model_rank
    return [name for name, reader in zip(names, readers, strict=True) if reader == mine]


def deal_files(sizes: Sequence[int], ranks: int) -> list[int]:
    """For each file of so many bytes the rank that reads it: the largest first, each to whoever has least so far."""
    loads = [0] * ranks
    readers = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        readers[place] = loads.index(min(loads))
        loads[readers[place]] += sizes[place]
    return readers
