"""A stage: consecutive layers as one rank holds them, with their parameters, gradients and passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import Group
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.parameters import LayerParameters, ParameterLayout, parameter_name
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays, parallel_dense
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.layer_split import split_layers
from hybridnn.parallel.node_memory import PrivateMemory
from hybridnn.parallel.replicas.fused_update import FusedUpdateReplica
from hybridnn.parallel.replicas.replica import PrivateReplica, Replica
from hybridnn.parallel.replicas.shared_replica import SharedReplica
from hybridnn.parallel.replicas.sharing import Sharing
from hybridnn.parallel.workspace import StageArrays, StageRole, Workspace, weight_gradient_input_sizes


class Stage:
    """Layers, parameters and gradients of this rank.

    Parameters
    ----------
    layers : sequence of DenseLayer
        Consecutive layers.
    grid : ProcessGrid
        The layers are split over its model group, the gradients summed over its batch group.
    split : {"columns", "alternating"}
    dtype : dtype
        float32 or float64.
    overlap : bool
        Let messages travel while the backward pass computes.
    sharing : Sharing, optional
        The ranks that share the replica; without it, this rank keeps its own.
    arrays : int
        As for `SharedReplica`.
    kernels : Kernels
        Of the device that holds the arrays.
    words : CompressedFormat, optional
        What gradients of a batch group that spans several nodes are rounded to between ranks that share no replica.
    products : bool
        Take weight gradients as products at the update: see `FusedUpdateReplica`. Of a batch group on one node.

    Attributes
    ----------
    kernels : Kernels
    layout : ParameterLayout
        Where the arrays of the layers lie in the flat buffers.
    shards : list of LayerShard
        The layers as this rank has them.
    parameters : list of LayerParameters
        Views of the weights.
    replica : Replica
        Keeps what follows, and brings the batch ranks together.
    weights : ndarray, shape (layout.size,)
    loss : ndarray, shape (1,)
        This rank's sum of the losses of the last minibatch.
    """

    def __init__(
        self,
        layers: Sequence[DenseLayer],
        grid: ProcessGrid,
        split: str,
        dtype: DTypeLike,
        overlap: bool,
        sharing: Sharing | None = None,
        arrays: int = 1,
        kernels: Kernels = NUMPY,
        words: CompressedFormat | None = None,
        products: bool = False,
    ) -> None:
        words = words if grid.batch_spans_nodes else None
        self.kernels, group = kernels, grid.model_group
        self.shards = split_layers(layers, split, group.size, group.rank)
        self._group = group
        self._dense = [parallel_dense(item, group, overlap, kernels) for item in self.shards]
        self.layout = ParameterLayout(self.shards)
        self.replica: Replica
        self._products: FusedUpdateReplica | None = None
        self._gradients: list[LayerParameters] = []
        if products:
            memory = PrivateMemory(grid.batch_group) if sharing is None else sharing.memory
            self.replica = self._products = FusedUpdateReplica(memory, grid.batch_group, self.layout, dtype, arrays)
        else:
            replica = self.replica = (
                PrivateReplica(grid.batch_group, self.layout.ends, dtype, overlap, kernels, words)
                if sharing is None
                else SharedReplica(sharing, self.layout.size, dtype, arrays, words)
            )
            self._gradients = self.layout.views(replica.gradient)
        self.weights: NDArray[Any] = self.replica.new_array()
        self.loss: NDArray[Any] = self.replica.loss
        self.parameters = self.layout.views(self.weights)

    def workspace(self, capacity: int, role: StageRole, **buffers: Any) -> Workspace:
        """Arrays for microbatches of up to `capacity` samples on this rank; `buffers` as for `Workspace`."""
        group, dtype = self._group, self.weights.dtype
        # Between stages and within a model group rows travel, and the kernels of a device read along them.
        travels = group.size > 1 or not all(role) or not self.kernels.on_host
        return Workspace(
            self.shards,
            group.size,
            group.rank,
            capacity,
            dtype,
            role,
            travels=travels,
            kernels=self.kernels,
            **buffers,
        )

    def training_workspace(self, capacity: int, role: StageRole) -> Workspace | None:
        """Arrays of the passes that train, where weight gradients are products; those of other ranks are only read."""
        if self._products is None:
            return None
        spaces = [
            self.workspace(capacity, role, keeps_dz=True, kept=arrays)
            for arrays in self._products.shown_arrays(weight_gradient_input_sizes(self.shards, capacity))
        ]
        self._products.take_from([partial(_layers, space) for space in spaces])
        return spaces[self._products.rank]

    def forward(self, arrays: StageArrays, parameters: Sequence[LayerParameters] | None = None) -> None:
        """Compute the outputs from the inputs in `arrays`, with the current weights or with others."""
        for dense, layer_parameters, layer in zip(
            self._dense, parameters or self.parameters, arrays.layers, strict=True
        ):
            dense.forward(layer_parameters, layer)

    def backward(
        self,
        arrays: StageArrays,
        parameters: Sequence[LayerParameters] | None = None,
        *,
        accumulate: bool = False,
        reduce: bool = False,
    ) -> None:
        """Compute the gradients from the output gradient in `arrays`.

        Parameters
        ----------
        parameters : sequence of LayerParameters, optional
            Weights to go back through; the current ones by default.
        accumulate : bool
            Add to the gradient buffer what is there of earlier microbatches.
        reduce : bool
            Begin to sum each layer's gradients over the batch group as soon as they are ready; `finish_reduction` ends.
        """
        if self._products is not None:
            self.input_gradient(arrays, parameters)
            self._products.computed(len(arrays.columns))
            return
        parameters = parameters or self.parameters
        for place in reversed(range(len(self._dense))):
            layer, dense = arrays.layers[place], self._dense[place]
            gradient = self._addends[1][place] if accumulate else self._gradients[place]
            sum_of_dx = dense.backward_input(parameters[place], layer, gradient.bias)
            dense.backward_weight(layer, gradient, biases=False)
            if accumulate:
                self._add(place)
            if reduce:
                self.replica.ready(place)
            sum_of_dx.wait()

    def input_gradient(
        self,
        arrays: StageArrays,
        parameters: Sequence[LayerParameters] | None = None,
        done: Callable[[int, LayerArrays], None] | None = None,
    ) -> None:
        """The part of `backward` that the stage before waits for.

        Parameters
        ----------
        parameters : sequence of LayerParameters, optional
            As for `backward`.
        done : callable, optional
            Called after each layer with its place and arrays; without a workspace that keeps ``dz``, the last moment to
            take what the weight gradient needs.
        """
        parameters = parameters or self.parameters
        for place in reversed(range(len(self._dense))):
            layer = arrays.layers[place]
            sum_of_dx = self._dense[place].backward_input(parameters[place], layer)
            if done is not None:
                done(place, layer)
            sum_of_dx.wait()

    def weight_gradient(
        self, layers: Sequence[WeightGradientArrays], *, accumulate: bool = False, reduce: bool = False
    ) -> None:
        """The rest of the backward pass, of the `layers` of one microbatch or of several joined."""
        for place in reversed(range(len(self._dense))):
            self._dense[place].backward_weight(
                layers[place], self._addends[1][place] if accumulate else self._gradients[place]
            )
            if accumulate:
                self._add(place)
            if reduce:
                self.replica.ready(place)

    def finish_reduction(self) -> None:
        """Return when the gradients and the loss are summed over the batch group."""
        self.replica.finish()

    def _add(self, place: int) -> None:
        """Add one layer's gradient to that of earlier microbatches."""
        total, addend = self._gradients[place], self._addends[1][place]
        self.kernels.add(total.weight, addend.weight, total.weight)
        self.kernels.add(total.bias, addend.bias, total.bias)

    @cached_property
    def _addends(self) -> tuple[NDArray[Any], list[LayerParameters]]:
        """Room for one layer's gradient before it is added, and its views as each of the layers."""
        sizes = [stop - start for start, stop in map(self.layout.bounds, range(len(self.shards)))]
        room = self.kernels.empty((max(sizes),), self.weights.dtype)
        return room, [ParameterLayout([item]).views(room)[0] for item in self.shards]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and gradients, of shared ones this rank's part."""
        addends = self.__dict__.get("_addends")
        held = self.replica.bytes_per_rank(self.weights.nbytes) + self.replica.nbytes
        return held + (0 if addends is None else addends[0].nbytes)

    def squared_norms(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        """Squared norm of every layer of a flat buffer, each parameter of the model counted once.

        Parameters
        ----------
        flat : ndarray, shape (at least layout.size,)

        Returns
        -------
        ndarray, shape (layers,)
        """
        bounds = map(self.layout.bounds, range(len(self.shards)))
        squares = [self.kernels.squared_norm(flat[start:stop]) for start, stop in bounds]
        return _summed(self._group, np.array(squares))

    def squared_gradient_norm(self, norm: Array) -> None:
        """Squared norm of the last gradient, summed over the batch group, each parameter of the model counted once.

        Parameters
        ----------
        norm : array of float64, shape (1,)
            Takes it; on a device nobody waits for it.
        """
        self.replica.squared_norm_into(norm)
        self._group.allreduce(norm)

    def gather_parameters(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Collect the global arrays that `flat` holds the blocks of; collective over the model group.

        Returns
        -------
        dict
            Name to array: ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.
        """
        whole: dict[str, NDArray[Any]] = {}
        flat = self.kernels.to_host(flat)
        for shard, view in zip(self.layout.shards, self.layout.views(flat), strict=True):
            weight = np.zeros((shard.layer.outputs, shard.layer.inputs), flat.dtype)
            weight[shard.rows, shard.columns] = view.weight
            bias = np.zeros(shard.layer.outputs, flat.dtype)
            bias[shard.bias_rows] = view.bias
            # No block is owned twice, so the sum of the blocks in their places is the array, exactly.
            whole[parameter_name(shard.layer, "weight")] = _summed(self._group, weight)
            whole[parameter_name(shard.layer, "bias")] = _summed(self._group, bias)
        return whole

    def initialize(self, seed: int) -> None:
        """Draw the initial weights, which the host does."""
        host = self.kernels.to_host(self.weights)
        self.layout.initialize(host, seed)
        self.kernels.put(host, self.weights)

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take this rank's blocks of global arrays."""
        host = self.kernels.to_host(self.weights)
        self.layout.load(host, weights)
        self.kernels.put(host, self.weights)


def _layers(space: Workspace, samples: int) -> list[LayerArrays]:
    return space.arrays(samples).layers


def _summed(group: Group, array: NDArray[Any]) -> NDArray[Any]:
    group.allreduce(array)
    return array
