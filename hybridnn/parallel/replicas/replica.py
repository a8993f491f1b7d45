"""Replicas: the weights, gradients and optimizer state of a stage, kept equal over its batch group.

`PrivateReplica`: every batch rank has its own and all-reduces the gradients. `SharedReplica` (``shared_replica.py``):
the batch ranks of a node have one in a shared-memory window. `FusedUpdateReplica` (``fused_update.py``): all batch
ranks are on one node, and weight gradients are computed during the update. They have the same interface, documented at
`PrivateReplica`, whose methods are collective over the batch group, except `ready` and `bytes_per_rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.kernels import numpy_kernels
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.compressed_formats import CompressedFormat
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.nn.optimizers import Optimizer, OptimizerState, new_state
from hybridnn.parallel.gradient_reduction import DEVICE_BUCKETS, HOST_BUCKETS, STAGED_BUCKETS, GradientReducer
from hybridnn.parallel.node_memory import NodeMemory, PrivateMemory


class PrivateReplica:
    """A replica in this rank's own memory.

    Parameters
    ----------
    group : Group
        The batch group.
    ends : sequence of int
        End of every layer in a flat buffer.
    overlap : bool
        As for `GradientReducer`.
    compression : CompressedFormat, optional
        As for `GradientReducer`.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
    loss : ndarray, shape (1,)
        This rank's sum of losses, which backward passes write. It follows the gradient in memory and travels with it.
    nbytes : int
        Bytes of gradients and workspace on this rank.
    is_leader : bool
        Whether this rank writes the replica in `fill`.
    ready, finish : callable
        As of `GradientReducer`.
    """

    is_leader = True

    def __init__(
        self,
        group: Group,
        ends: Sequence[int],
        dtype: DTypeLike,
        overlap: bool,
        kernels: Kernels = NUMPY,
        compression: CompressedFormat | None = None,
    ) -> None:
        self._kernels = kernels
        flat = kernels.zeros((ends[-1] + 1,), dtype)
        self.gradient, self.loss = flat[:-1], flat[-1:]
        config = HOST_BUCKETS if kernels.on_host else DEVICE_BUCKETS if compression is None else STAGED_BUCKETS
        self._reducer = GradientReducer(group, flat, ends, overlap, config, compression)
        self.nbytes = flat.nbytes + self._reducer.nbytes
        self.ready, self.finish = self._reducer.ready, self._reducer.finish

    @property
    def total_loss(self) -> Array:
        """Sum of the losses over the batch group, shape (1,), after `finish`."""
        return self.loss

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

        Parameters
        ----------
        squared_norm : array of float64, shape (1,)
            Of the gradients of all layers, of which these may be some.
        """
        self._kernels.clip_to_norm(self.gradient, squared_norm, limit)

    def fill(self, write: Callable[[], None]) -> None:
        """Call `write`, which writes the weights, on the leaders: all ranks. It must not fail on one rank alone."""
        write()

    def publish(self) -> None:
        """Return when all writes to the replica are visible to every rank; no other rank reads this one."""

    def synchronize_state(self, state: OptimizerState) -> None:
        """After the leaders have written replica and state, make both equal on all ranks; here they are."""


class NodeReplica:
    """Base class of replicas in memory that the batch ranks of a node share; see `PrivateReplica` for the interface.

    Parameters
    ----------
    memory : NodeMemory or PrivateMemory
        Of the ranks that share; `PrivateMemory` for a group of one rank.
    batch : Group
        The whole batch group.
    arrays : iterator of ndarray
        Shared memory for `new_array`.

    Attributes
    ----------
    loss : ndarray, shape (1,)
    """

    def __init__(
        self, memory: NodeMemory | PrivateMemory, batch: Group, arrays: Iterator[Array], dtype: DTypeLike
    ) -> None:
        self._memory, self._batch, self._arrays = memory, batch, arrays
        self.loss, self._total = numpy_kernels.zeros((1,), dtype), numpy_kernels.zeros((1,), dtype)

    @property
    def is_leader(self) -> bool:
        """True on one of the ranks that share."""
        return self._memory.is_leader

    @property
    def total_loss(self) -> Array:
        """See `PrivateReplica.total_loss`."""
        return self._total

    def new_array(self) -> Array:
        """The next of the shared arrays; all ranks must call this in the same order."""
        return next(self._arrays)

    def bytes_per_rank(self, nbytes: int) -> int:
        """`nbytes` divided by the number of ranks that share, rounded up."""
        return -(-nbytes // self._memory.group.size)

    def ready(self, layer: int) -> None:
        """Does nothing: the gradients are in shared memory as soon as they are computed."""

    def finish(self) -> None:
        """All-reduce the loss over the batch group, which completes only after all backward passes."""
        numpy_kernels.copy(self.loss, self._total)
        self._memory.publish(lambda: self._batch.allreduce(self._total))

    def fill(self, write: Callable[[], None]) -> None:
        """Call `write` on the leader, after all ranks have stopped reading."""
        self.publish()
        if self.is_leader:
            write()
        self.publish()

    def publish(self) -> None:
        """See `PrivateReplica.publish`."""
        self._memory.publish()

    def synchronize_state(self, state: OptimizerState) -> None:
        """See `PrivateReplica.synchronize_state`."""
        updates = np.array([state.updates], np.int64)
        self._memory.group.broadcast(updates)
        self.publish()
        state.updates = int(updates[0])
