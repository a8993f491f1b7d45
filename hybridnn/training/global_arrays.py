"""Conversion between the shards of the ranks and the global arrays of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hybridnn.nn.kernels import Array, HostArray
from hybridnn.nn.mlp import MLP
from hybridnn.nn.parameters import parameter_name
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.pipeline.layout import Layout


class GlobalArrays:
    """The network's arrays over all stages of a pipeline; every method is collective over the grid."""

    def __init__(self, model: MLP, grid: ProcessGrid, layout: Layout, chunks: Sequence[ModelChunk]) -> None:
        self._model, self._grid, self._chunks = model, grid, chunks
        self._norms = [chunk.kernels.zeros((1,), np.float64) for chunk in chunks]
        self._stage_of = {
            layer.index: stage
            for stage in range(len(layout.stages))
            for layers in layout.layers_of(model, stage)
            for layer in layers
        }

    def squared_norms(self, flats: Sequence[HostArray]) -> NDArray[np.float64]:
        """Squared norms of all layers, shape (layers,), from a flat buffer for each chunk of this rank."""
        grid = self._grid
        norms = np.zeros(len(self._model.layers))
        for chunk, flat in zip(self._chunks, flats, strict=True):
            first = chunk.layout.shards[0].layer.index
            norms[first : first + len(chunk.shards)] = chunk.squared_norms(flat)
        if grid.pipeline > 1:
            if (grid.batch_rank, grid.model_rank) != (0, 0):
                norms[...] = 0
            grid.world.allreduce(norms)
        return norms

    def squared_gradient_norm(self) -> Array:
        """Squared norm of the last gradient of the whole network, each parameter counted once: float64, shape (1,).

        On the device, without synchronization unless MPI reduces it; the next call overwrites it.
        """
        grid, (norm, *chunk_norms) = self._grid, self._norms
        for chunk, chunk_norm in zip(self._chunks, self._norms, strict=True):
            chunk.squared_gradient_norm(chunk_norm)
        for chunk_norm in chunk_norms:
            self._chunks[0].kernels.add(norm, chunk_norm, norm)
        if grid.pipeline > 1:
            if (grid.batch_rank, grid.model_rank) != (0, 0):
                norm[...] = 0
            grid.world.allreduce(norm)
        return norm

    def collect(self, flats: Sequence[HostArray]) -> dict[str, HostArray]:
        """Gather the global arrays ``layers.<i>.weight`` and ``.bias`` from the shards in `flats`, on every rank."""
        own: dict[str, HostArray] = {}
        for chunk, flat in zip(self._chunks, flats, strict=True):
            own |= chunk.gather_parameters(flat)
        if self._grid.pipeline == 1:
            return own
        arrays: dict[str, HostArray] = {}
        for layer in self._model.layers:
            for kind, shape in (("weight", (layer.outputs, layer.inputs)), ("bias", (layer.outputs,))):
                name = parameter_name(layer, kind)
                array = own[name] if name in own else np.empty(shape, flats[0].dtype)
                self._grid.world.broadcast(array, self._grid.rank_at(self._stage_of[layer.index], 0, 0))
                arrays[name] = array
        return arrays

    def initialize(self, seed: int) -> None:
        """Draw the initial weights."""
        for chunk in self._chunks:
            chunk.replica.fill(partial(chunk.initialize, seed))

    def load(self, weights: Mapping[str, HostArray]) -> None:
        """Copy this rank's shards of the global arrays `weights`."""
        for chunk in self._chunks:
            chunk.replica.fill(partial(chunk.load, weights))
