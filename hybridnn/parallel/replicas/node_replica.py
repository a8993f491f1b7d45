"""What replicas in the memory of a node have in common, whatever their gradients are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.backend import Array
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.node_memory import NodeMemory, PrivateMemory


class NodeReplica:
    """Weights and optimizer state that ranks of a node share: see `Replica` for what the methods do.

    Parameters
    ----------
    memory : NodeMemory or PrivateMemory
        Of the ranks that share; of one rank, which shares with nobody.
    batch : Group
        The whole batch group.
    arrays : iterator of ndarray
        What `new_array` hands out, from memory that is shared.
    dtype : dtype

    Attributes
    ----------
    loss : ndarray, shape (1,)
    """

    def __init__(
        self, memory: NodeMemory | PrivateMemory, batch: Group, arrays: Iterator[Array], dtype: DTypeLike
    ) -> None:
        self._memory, self._batch, self._arrays = memory, batch, arrays
        self.loss, self._total = kernels.zeros((1,), dtype), kernels.zeros((1,), dtype)

    @property
    def is_leader(self) -> bool:
        """One rank of the node fills the replica."""
        return self._memory.is_leader

    @property
    def total_loss(self) -> Array:
        """The sum of the losses over the batch group, once `finish` has returned."""
        return self._total

    def new_array(self) -> Array:
        """The next of the arrays that there is room for; all ranks must ask for them in the same order."""
        return next(self._arrays)

    def bytes_per_rank(self, nbytes: int) -> int:
        """Its part of a shared array."""
        return -(-nbytes // self._memory.group.size)

    def ready(self, layer: int) -> None:
        """Nothing: the others see what a rank has computed as soon as it is written."""

    def finish(self) -> None:
        """Sum the loss over the batch group, which also says that all ranks have computed their part."""
        kernels.copy(self.loss, self._total)
        self._memory.publish(lambda: self._batch.allreduce(self._total))

    def fill(self, write: Callable[[], None]) -> None:
        """One rank of the node fills the replica, when nobody reads it any more."""
        self.publish()
        if self.is_leader:
            write()
        self.publish()

    def publish(self) -> None:
        """Return when every rank of the node sees what all have written."""
        self._memory.publish()

    def synchronize_state(self, state: OptimizerState) -> None:
        """Let all see what the rank that leads has written, and count as many updates as it does."""
        updates = np.array([state.updates], np.int64)
        self._memory.group.broadcast(updates)
        self.publish()
        state.updates = int(updates[0])
