"""Model chunk: consecutive layers on one rank, with their parameters, gradients, replica and passes.

The term is Megatron-LM's: a rank has one model chunk, or several in an interleaved schedule. Its replica holds weights,
gradients and optimizer state, kept equal over the batch group: a `PrivateReplica` of every batch rank, which
all-reduces the gradients, or one `SharedReplica` (``shared_replica.py``) of the batch ranks of a node. Both have the
same interface, documented at `PrivateReplica`, whose methods are collective over the batch group, except `ready` and
`bytes_per_rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.comm.group import DONE, Group
from hybridnn.nn.kernels import NUMPY, Array, Kernels
from hybridnn.nn.mlp import DenseLayer
from hybridnn.nn.optimizers import Optimizer, OptimizerState, new_state
from hybridnn.nn.parameters import LayerParameters, ParameterLayout, parameter_name
from hybridnn.parallel.dense import LayerArrays, WeightGradientArrays, parallel_dense, split_layers
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.workspace import StageArrays

if TYPE_CHECKING:
    from hybridnn.parallel.shared_replica import SharedReplica, Sharing


class ModelChunk:
    """Layers, parameters and gradients of this rank.

    Parameters
    ----------
    grid : ProcessGrid
        The layers are split over its model group, the gradients summed over its batch group.
    sharing : Sharing, optional
        The ranks of the node that share a replica; by default it is private.
    arrays : int
        Arrays of a shared replica: versions of the weights, and slots of the optimizer.

    Attributes
    ----------
    layout : ParameterLayout
        Offsets of the layers' arrays in the flat buffers.
    replica : PrivateReplica or SharedReplica
        Owns the buffers below and synchronizes the batch ranks.
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
        kernels: Kernels = NUMPY,
        sharing: Sharing | None = None,
        arrays: int = 1,
    ) -> None:
        self.kernels, group = kernels, grid.model_group
        self.shards = split_layers(layers, split, group.size, group.rank)
        self._group = group
        self._dense = [parallel_dense(shard, group, overlap, kernels) for shard in self.shards]
        self.layout = ParameterLayout(self.shards)
        self.replica: PrivateReplica | SharedReplica
        if sharing is None:
            self.replica = PrivateReplica(grid.batch_group, self.layout.ends, dtype, overlap, kernels)
        else:
            from hybridnn.parallel.shared_replica import SharedReplica  # one process needs none

            self.replica = SharedReplica(sharing, self.layout.size, dtype, arrays)
        self._gradients = self.layout.views(self.replica.gradient)
        self.weights: NDArray[Any] = self.replica.new_array()
        self.loss: NDArray[Any] = self.replica.loss
        self.parameters = self.layout.views(self.weights)

    def forward(self, arrays: StageArrays, parameters: Sequence[LayerParameters] | None = None) -> None:
        """Compute the outputs from the inputs in `arrays`, with the current weights by default."""
        for dense, of_layer, layer in zip(self._dense, parameters or self.parameters, arrays.layers, strict=True):
            dense.forward(of_layer, layer)

    def backward(
        self,
        arrays: StageArrays,
        parameters: Sequence[LayerParameters] | None = None,
        *,
        accumulate: bool = False,
        reduce: bool = False,
    ) -> None:
        """Compute the gradients from the output gradient in `arrays`.

        With `accumulate`, they are added to those of earlier microbatches in the gradient buffer. With `reduce`, the
        all-reduce of each layer's gradients starts as soon as they are complete; `replica.finish` completes it.
        """
        parameters = parameters or self.parameters
        for index in reversed(range(len(self._dense))):
            layer, dense = arrays.layers[index], self._dense[index]
            gradient = self._addends[1][index] if accumulate else self._gradients[index]
            dx_request = dense.backward_input(parameters[index], layer, gradient.bias)
            dense.backward_weight(layer, gradient, biases=False)
            if accumulate:
                self._add(index)
            if reduce:
                self.replica.ready(index)
            if dx_request is not DONE:
                dx_request.wait()

    def input_gradient(
        self,
        arrays: StageArrays,
        parameters: Sequence[LayerParameters] | None = None,
        done: Callable[[int, LayerArrays], None] | None = None,
    ) -> None:
        """Compute the gradient of the input only, for which the previous stage waits.

        `done` is called after each layer with its index and arrays, before the operands of its weight gradient may be
        overwritten (in a workspace that does not keep ``dz``).
        """
        parameters = parameters or self.parameters
        for index in reversed(range(len(self._dense))):
            layer = arrays.layers[index]
            dx_request = self._dense[index].backward_input(parameters[index], layer)
            if done is not None:
                done(index, layer)
            if dx_request is not DONE:
                dx_request.wait()

    def weight_gradient(
        self, layers: Sequence[WeightGradientArrays], *, accumulate: bool = False, reduce: bool = False
    ) -> None:
        """Compute the weight gradients, from the `layers` of one microbatch or of several concatenated ones."""
        for index in reversed(range(len(self._dense))):
            self._dense[index].backward_weight(
                layers[index], self._addends[1][index] if accumulate else self._gradients[index]
            )
            if accumulate:
                self._add(index)
            if reduce:
                self.replica.ready(index)

    def _add(self, index: int) -> None:
        """Add the gradient of one layer to that of earlier microbatches."""
        total, addend = self._gradients[index], self._addends[1][index]
        self.kernels.add(total.weight, addend.weight, total.weight)
        self.kernels.add(total.bias, addend.bias, total.bias)

    @cached_property
    def _addends(self) -> tuple[NDArray[Any], list[LayerParameters]]:
        """Workspace for the gradient of one layer before it is added, and its views for each of the layers."""
        sizes = [stop - start for start, stop in map(self.layout.bounds, range(len(self.shards)))]
        flat = self.kernels.empty((max(sizes),), self.weights.dtype)
        return flat, [ParameterLayout([shard]).views(flat)[0] for shard in self.shards]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and gradients; of shared arrays, this rank's share."""
        addends = self.__dict__.get("_addends")
        owned = self.replica.bytes_per_rank(self.weights.nbytes) + self.replica.nbytes
        return owned + (0 if addends is None else addends[0].nbytes)

    def squared_norms(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        """Squared norm of every layer of a flat buffer, shape (layers,), each parameter of the model counted once."""
        norms = self.kernels.squared_norms(flat, self.layout.ends)
        self._group.allreduce(norms)
        return norms

    def squared_gradient_norm(self, norm: Array) -> None:
        """Squared norm of the last gradient, summed over the batch group, each parameter of the model counted once.

        `norm`, an array of float64 and shape (1,), receives it; asynchronous on a device.
        """
        self.replica.squared_norm_into(norm)
        self._group.allreduce(norm)

    def gather_parameters(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Gather the global arrays whose blocks `flat` holds; collective over the model group.

        By name: ``layers.<i>.weight``, shape (outputs, inputs), and ``layers.<i>.bias``.
        """
        arrays: dict[str, NDArray[Any]] = {}
        flat = self.kernels.to_host(flat)
        for shard, view in zip(self.layout.shards, self.layout.views(flat), strict=True):
            weight = np.zeros((shard.layer.outputs, shard.layer.inputs), flat.dtype)
            weight[shard.rows, shard.columns] = view.weight
            bias = np.zeros(shard.layer.outputs, flat.dtype)
            bias[shard.bias_rows] = view.bias
            arrays |= {parameter_name(shard.layer, "weight"): weight, parameter_name(shard.layer, "bias"): bias}
        for array in arrays.values():
            self._group.allreduce(array)  # exactly: every element is owned by one rank, and 0 on the others
        return arrays

    def load(self, weights: Mapping[str, NDArray[Any]] | None, seed: int = 0) -> None:
        """Copy this rank's blocks of global arrays to the weights; None: draw the initial weights, on the host."""
        host = self.kernels.to_host(self.weights)
        if weights is None:
            self.layout.initialize(host, seed)
        else:
            self.layout.load(host, weights)
        self.kernels.put(host, self.weights)


# -- private replicas --------------------------------------------------------------------------------------------------


class PrivateReplica:
    """A replica in this rank's own memory.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
    loss : ndarray, shape (1,)
        This rank's sum of losses, which backward passes write. It follows the gradient in memory and travels with it.
    total_loss : ndarray, shape (1,)
        Sum of the losses over the batch group, after `finish`.
    is_leader : bool
        Whether this rank writes the replica in `Engine.restore`.
    ready, finish : callable
        Those of a `GradientReducer`; a group of one rank has none.
    """

    is_leader = True

    def __init__(self, group: Group, ends: Sequence[int], dtype: DTypeLike, overlap: bool, kernels: Kernels) -> None:
        self._kernels = kernels
        flat = kernels.zeros((ends[-1] + 1,), dtype)
        self.gradient, self.loss, self.nbytes = flat[:-1], flat[-1:], flat.nbytes
        self.total_loss = self.loss
        if group.size > 1:
            from hybridnn.parallel.gradient_reduction import GradientReducer

            reducer = GradientReducer(group, flat, ends, overlap)
            self.ready, self.finish = reducer.ready, reducer.finish

    def new_array(self) -> Array:
        """Zeros, shape (size,), for a version of the weights or a slot of the optimizer."""
        return self._kernels.zeros(self.gradient.shape, self.gradient.dtype)

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """State of the optimizer before the first update."""
        return new_state(optimizer, weights, self._kernels)

    def bytes_per_rank(self, nbytes: int) -> int:
        """This rank's share of an array of `nbytes`: all of them."""
        return nbytes

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """Apply the sum of all gradients to `weights` in place, or leave them unchanged and write to `out`."""
        optimizer.update(weights, self.gradient, state, rate, out)

    def full_gradient(self) -> Array:
        """The sum of all gradients, shape (size,); read-only."""
        return self.gradient

    def squared_norm_into(self, norm: Array) -> None:
        """Squared norm of the sum of all gradients into `norm`, an array of float64 and shape (1,)."""
        self._kernels.squared_norm_into(self.gradient, norm)

    def clip(self, squared_norm: Array, limit: float) -> None:
        """Scale the sum of all gradients by limit / norm if the norm is above `limit`.

        `squared_norm`, an array of float64 and shape (1,), is that of all layers, of which these may be some.
        """
        self._kernels.clip_to_norm(self.gradient, squared_norm, limit)

    def publish(self) -> None:
        """Return when all writes to the replica are visible to every rank; no other rank reads this one."""

    def synchronize_state(self, state: OptimizerState) -> None:
        """After the leaders have written replica and state, make both equal on all ranks; here they are."""
