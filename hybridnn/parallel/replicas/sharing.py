"""Which ranks share a replica, and which slices of it each of them updates.

The batch ranks of a node share one. It is cut into as many slices as the node with most of them has ranks: the same
slices on every node, dealt out to a node's ranks in order. The owners of a slice, one per node, sum it over the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_bounds
from hybridnn.nn.parameters import ALIGNMENT
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory


@dataclass(frozen=True)
class OwnedSlice:
    """A slice that this rank sums and updates.

    Attributes
    ----------
    number : int
    owners : Group or None
        Its owners on all nodes; None where one node holds the whole batch group.
    """

    number: int
    owners: Group | None


@dataclass(frozen=True)
class Sharing:
    """The ranks of a node that share a replica, and those of other nodes that share others.

    Attributes
    ----------
    memory : NodeMemory
        Of the ranks that share.
    batch : Group
        The whole batch group.
    slices : int
        Slices of the replica, on every node the same.
    owned : tuple of OwnedSlice
        Those of this rank, in order.
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
    """Let the batch ranks of every node share; collective over the grid.

    Returns
    -------
    Sharing or None
        None where no node holds several ranks of this rank's batch group.
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
    memory = NodeMemory(grid, replicas_only=True)  # all ranks of a node take part, whichever of them share
    if slices == 1:
        return None
    mine = [number for number in range(slices) if number * sharers // slices == memory.group.rank]
    if sharers == batch.size:
        return Sharing(memory, batch, slices, tuple(OwnedSlice(number, None) for number in mine))
    # No rank owns two slices whose numbers differ by a multiple of this: so many splits make all groups of owners.
    rounds = -(-slices // fewest)
    owned = []
    for turn in range(rounds):
        number = next((number for number in mine if number % rounds == turn), None)
        group = batch.split(slices if number is None else number, "batch")
        if number is not None:
            owned.append(OwnedSlice(number, group))
    # In the order of their numbers all owners come to them, so that nobody waits in a circle.
    return Sharing(memory, batch, slices, tuple(sorted(owned, key=lambda item: item.number)))


def slice_bounds(size: int, slices: int, number: int) -> tuple[int, int]:
    """First number of a slice of a flat buffer, and the one after its last: whole lines of the cache; may be empty."""
    start, stop = block_bounds(-(-size // ALIGNMENT), slices, number)
    return min(start * ALIGNMENT, size), min(stop * ALIGNMENT, size)
