"""Shards of the arrays of a checkpoint: those that a rank holds, and the rows and files it is responsible for.

Model ranks write a block of rows each, whichever shard they hold. Replicas divide the rows of all arrays, in order,
into contiguous runs of about equal size, so that nearly every file has one writer. Without a model axis replicas hold
whole arrays, and the rank that writes most of a file also hashes it, from memory. With a model axis no rank holds a
whole array, and the files are read again and hashed by the ranks of the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.file_io import Rectangle
from hybridnn.checkpoints.folder import array_name
from hybridnn.comm.blocks import block_bounds
from hybridnn.nn.kernels import Array, Kernels
from hybridnn.nn.mlp import MLP
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.nn.parameters import parameter_name, parameter_shapes
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk

UNCUT_BYTES = 1 << 20
"""A block of rows up to this size is written by one rank: opening a file costs more than writing so little."""


@dataclass(frozen=True)
class ArrayShard:
    """The shard of an array that this rank holds: `memory`, shape (rows, columns), is a view of the rank's buffer.

    A bias is one column.
    """

    name: str
    region: Rectangle
    memory: Array
    kernels: Kernels
    by_inputs: bool  # whether the ranks of a model group hold blocks of columns, each perhaps all or none of them


@dataclass(frozen=True)
class WriteAssignment:
    """Work of a replica on one array: rows that each of its model ranks writes.

    With `hashes`, this rank hashes the file, from the whole array that it holds.
    """

    rows: tuple[slice, ...]
    hashes: bool


def array_shapes(model: MLP, slots: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every array of a checkpoint, in order."""
    return {array_name(name, slot): shape for name, shape in parameter_shapes(model).items() for slot in (None, *slots)}


def local_shards(chunks: Sequence[ModelChunk], states: Sequence[OptimizerState]) -> list[ArrayShard]:
    """The shards of this rank's weights and optimizer slots, in the same order on all replicas."""
    return [
        shard
        for chunk, state in zip(chunks, states, strict=True)
        for slot, flat in ((None, chunk.weights), *state.slots.items())
        for shard in _shards_of(chunk, slot, flat)
    ]


def _shards_of(chunk: ModelChunk, slot: str | None, flat: Array) -> Iterator[ArrayShard]:
    for shard, view in zip(chunk.layout.shards, chunk.layout.views(flat), strict=True):
        layer = shard.layer
        weight = Rectangle((layer.outputs, layer.inputs), shard.rows, shard.columns)
        bias = Rectangle((layer.outputs, 1), shard.bias_rows, slice(0, 1))
        for kind, region, memory, by_inputs in (
            ("weight", weight, view.weight, shard.by_inputs),
            ("bias", bias, view.bias_column, False),
        ):
            yield ArrayShard(array_name(parameter_name(layer, kind), slot), region, memory, chunk.kernels, by_inputs)


def assign_writes(shards: Sequence[ArrayShard], grid: ProcessGrid) -> list[WriteAssignment]:
    """What this rank and its model group do with the array of each of their shards."""

    def rows_of(batch_rank: int, model_rank: int) -> NDArray[np.int64]:
        bounds = np.array([block_bounds(shard.region.shape[0], grid.model, model_rank) for shard in shards])
        row_bytes = np.array([shard.region.shape[1] * shard.memory.itemsize for shard in shards])
        heights = bounds[:, 1] - bounds[:, 0]
        return bounds[:, :1] + divide_rows(heights, row_bytes, grid.batch, batch_rank, UNCUT_BYTES)

    rows = [rows_of(grid.batch_rank, model_rank) for model_rank in range(grid.model)]
    hashes = [False] * len(shards)
    if grid.model == 1:
        written = np.stack([np.diff(rows_of(batch_rank, 0))[:, 0] for batch_rank in range(grid.batch)])
        hashes = (written.argmax(axis=0) == grid.batch_rank).tolist()
    return [
        WriteAssignment(tuple(slice(*bounds[number].tolist()) for bounds in rows), hashes[number])
        for number in range(len(shards))
    ]


def divide_rows(
    heights: NDArray[np.int64], row_bytes: NDArray[np.int64], replicas: int, replica: int, uncut: int
) -> NDArray[np.int64]:
    """First row, and the row after the last, of each array that one of several replicas writes; shape (arrays, 2).

    `heights` and `row_bytes`, shape (arrays,), are the rows of every array, and bytes of such a row; arrays of up to
    `uncut` bytes are not divided.
    """
    sizes = heights * row_bytes
    starts = np.cumsum(sizes) - sizes

    def rows_before(number: int) -> NDArray[np.int64]:
        """Rows of each array that replicas before `number` write."""
        offset = sizes.sum() * number // replicas - starts
        divided: NDArray[np.int64] = np.clip(offset // row_bytes, 0, heights)
        return np.where(sizes <= uncut, heights * (offset > 0), divided).astype(np.int64)

    return np.stack([rows_before(replica), rows_before(replica + 1)], axis=1)


def files_to_hash(shards: Sequence[ArrayShard], grid: ProcessGrid, nbytes: Callable[[str], int]) -> list[str]:
    """The arrays whose files this rank reads again to hash them, given the size of each file."""
    if grid.model == 1:
        return []
    names = [shard.name for shard in shards]
    owners = assign_files([nbytes(name) for name in names], grid.batch * grid.model)
    rank = grid.batch_rank * grid.model + grid.model_rank
    return [name for name, owner in zip(names, owners, strict=True) if owner == rank]


def assign_files(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank that reads each file: in order of decreasing size, the rank with the fewest bytes so far."""
    loads = [0] * ranks
    owners = [0] * len(sizes)
    for file in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owners[file] = loads.index(min(loads))
        loads[owners[file]] += sizes[file]
    return owners
