"""Sharing of replicas: the ranks that share one, and the slices that each of them owns, sums and updates.

The batch ranks of a node share a replica. It is divided into as many slices as the node with the most ranks has ranks,
the same slices on every node. They are assigned to a node's ranks in order. The owners of a slice, one per node, sum it
over the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Group
from hybridnn.nn.parameters import ALIGNMENT
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory


@dataclass(frozen=True)
class OwnedSlice:
    """A slice that this rank owns.

    Attributes
    ----------
    owners : Group or None
        Its owners on all nodes; None if one node holds the whole batch group.
    """

    number: int
    owners: Group | None


@dataclass(frozen=True)
class Sharing:
    """The ranks of this node that share a replica, in a batch group that may span several nodes.

    Attributes
    ----------
    memory : NodeMemory
        Of the ranks that share.
    batch : Group
        The whole batch group.
    slices : int
        Slices of the replica, on every node the same.
    owned : tuple of OwnedSlice
        The slices that this rank owns, in order.
    """

    memory: NodeMemory
    batch: Group
    slices: int
    owned: tuple[OwnedSlice, ...]

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
    memory = NodeMemory(grid, replicas_only=True)  # collective over the node, whichever of its ranks share
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
        group = batch.split(slices if number is None else number, "batch")
        if number is not None:
            owned.append(OwnedSlice(number, group))
    # All owners reduce their slices in the order of the numbers, which avoids deadlocks.
    return Sharing(memory, batch, slices, tuple(sorted(owned, key=lambda item: item.number)))


def slice_bounds(size: int, slices: int, number: int) -> tuple[int, int]:
    """Start and stop of a slice of a flat buffer, in whole cache lines; may be empty."""
    start, stop = block_bounds(-(-size // ALIGNMENT), slices, number)
    return min(start * ALIGNMENT, size), min(stop * ALIGNMENT, size)
