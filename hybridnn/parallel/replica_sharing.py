"""Sharing of replicas: the ranks that share one, the slices that each of them owns, and the base of shared replicas.

The batch ranks of a node share a replica. It is divided into as many slices as the node with the most ranks has ranks,
the same slices on every node. They are assigned to a node's ranks in order. The owners of a slice, one per node, sum it
over the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Group
from hybridnn.nn.kernels import NUMPY, SLICE_UNIT, Array, Kernels
from hybridnn.nn.optimizers import OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory
from hybridnn.parallel.replica import Replica


@dataclass(frozen=True)
class OwnedSlice:
    """A slice that this rank owns."""

    number: int
    owners: Group | None  # its owners on all nodes; None if one node holds the whole batch group


@dataclass(frozen=True)
class Sharing:
    """The ranks of this node that share a replica, in a batch group that may span several nodes."""

    memory: NodeMemory
    batch: Group
    slices: int  # slices of the replica, on every node the same
    owned: tuple[OwnedSlice, ...]  # the slices that this rank owns, in order

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the batch group share one replica."""
        return self.batch.size == self.memory.group.size


def share_replicas(grid: ProcessGrid) -> Sharing | None:
    """Create the shared memory and groups of shared replicas; collective over the grid.

    Returns
    -------
    Sharing or None
        None if no node holds several ranks of this rank's batch group.
    """
    batch = grid.batch_group
    sharers = len(set(batch.members) & set(grid.node_group.members))
    extremes = np.array([sharers, -sharers], np.int64)
    batch.allreduce(extremes, "max")
    slices, fewest = int(extremes[0]), -int(extremes[1])
    most = extremes[:1].copy()
    grid.world.allreduce(most, "max")
    if most[0] == 1:
        return None
    # The ranks that share a node and a batch group, and so the weights.
    memory = NodeMemory(grid.node_group.split(batch.members[0], "batch"), "parallel.shared_replicas = false")
    if slices == 1:
        return None
    own = [number for number in range(slices) if number * sharers // slices == memory.group.rank]
    if sharers == batch.size:
        return Sharing(memory, batch, slices, tuple(OwnedSlice(number, None) for number in own))
    # No rank owns two slices whose numbers are congruent modulo `splits`: so many splits create all groups of owners.
    splits = -(-slices // fewest)
    owned = []
    for remainder in range(splits):
        number = next((number for number in own if number % splits == remainder), None)
        group = batch.split(slices if number is None else number, "batch", remainder)
        if number is not None:
            owned.append(OwnedSlice(number, group))
    # All owners reduce their slices in the order of the numbers, which avoids deadlocks.
    return Sharing(memory, batch, slices, tuple(sorted(owned, key=lambda item: item.number)))


def slice_bounds(size: int, slices: int, number: int) -> tuple[int, int]:
    """Start and stop of a slice of a flat buffer, in units of `SLICE_UNIT`; may be empty."""
    start, stop = block_bounds(-(-size // SLICE_UNIT), slices, number)
    return min(start * SLICE_UNIT, size), min(stop * SLICE_UNIT, size)


class NodeReplica(Replica):
    """Base class of replicas in memory that the batch ranks of a node share; see `PrivateReplica` for the interface.

    Parameters
    ----------
    memory : NodeMemory
        Of the ranks that share.
    kernels : Kernels
        Those of the host, or of the device of a single rank.
    """

    def __init__(
        self,
        memory: NodeMemory,
        batch: Group,
        arrays: Iterator[Array],
        dtype: DTypeLike,
        kernels: Kernels = NUMPY,
    ) -> None:
        self._memory, self._batch, self._arrays, self._kernels = memory, batch, arrays, kernels
        self.loss, self._total = kernels.zeros((1,), dtype), kernels.zeros((1,), dtype)

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
        self._kernels.copy(self.loss, self._total)
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
