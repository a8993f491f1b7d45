"""Shared replica: one replica for all batch ranks of a node, in a shared-memory window.

Every rank has a segment of the window for its gradients. When all backward passes are complete, each rank sums a slice
of all segments and updates that slice of the weights. Inside a node nothing is all-reduced, no element is updated
twice, and the weights and the optimizer's state are stored once. Between nodes, the owners of a slice all-reduce it.

The ranks synchronize twice in a step: at the all-reduce of the loss, after which no rank reads the weights of this step
or writes gradients, and at a barrier after the update.

A replica is divided into as many slices as the node with the most ranks has ranks, the same slices on every node. They
are assigned to a node's ranks in order. The owners of a slice, one per node, sum it over the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.comm.blocks import block_bounds
from hybridnn.comm.group import Group
from hybridnn.nn.kernels import NUMPY, SLICE_UNIT, HostArray, squared_norm
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.nodes import NodeMemory

SUM_BLOCK = 1 << 16  # elements that are summed and, while in the cache, updated: measured fastest between 2^12 and 2^24


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


def share_replicas(grid: ProcessGrid) -> Sharing | None:
    """Create the shared memory and groups of shared replicas; collective over the grid.

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


@dataclass(frozen=True)
class _Block:
    """A cache block of a slice of this rank."""

    where: slice
    own: HostArray
    of_ranks: tuple[HostArray, ...]  # the gradients of every rank of the node, in the order of the ranks
    workspace: HostArray  # of the same shape; shared by all blocks

    def sum_into(self, out: HostArray) -> HostArray:
        """Sum the gradients of the node's ranks into `out`, the workspace or the own ones, and return the sum."""
        total, *addends = self.of_ranks
        for number, addend in enumerate(addends, 2):
            # Only the last sum may overwrite the own gradients, which may still have to be added.
            target = out if number == len(self.of_ranks) else self.workspace
            NUMPY.add(total, addend, target)
            total = target
        return total


class SharedReplica:
    """A replica in a shared-memory window of the batch ranks of a node.

    Raises `EnvironmentProblem` if the node's shared memory is too small.

    Parameters
    ----------
    arrays : int
        Number of calls of `new_array`: versions of the weights, and slots of the optimizer.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
        This rank's segment of the window. Slices that it owns may hold the sum over all ranks after
        `squared_norm_into`, `clip`, `full_gradient`, or an update over several nodes.
    nbytes : int
        Bytes of the gradients and the workspace of this rank.
    """

    def __init__(self, sharing: Sharing, size: int, dtype: DTypeLike, arrays: int) -> None:
        self._sharing, self._memory, self._batch = sharing, sharing.memory, sharing.batch
        ranks, rank = sharing.memory.group.size, sharing.memory.group.rank
        window = sharing.memory.allocate((arrays + ranks, size), dtype)
        self._arrays = iter(window[:arrays])
        self.is_leader = self._memory.is_leader
        self.loss, self.total_loss = NUMPY.zeros((1,), dtype), NUMPY.zeros((1,), dtype)
        self._segments = window[arrays:]
        self.gradient = self._segments[rank]
        _, largest = slice_bounds(size, sharing.slices, 0)
        self._workspace = NUMPY.empty((min(SUM_BLOCK, largest),), dtype)
        of_rank = self.gradient, self.loss, self.total_loss, self._workspace
        self.nbytes: int = sum(array.nbytes for array in of_rank)
        self._slices = [self._blocks(item.number) for item in sharing.owned]
        self._states: list[OptimizerState] = []
        self._is_summed = False
        # The operating system places memory near the rank that writes it first.
        self.gradient[...] = 0
        for block in chain(*self._slices):
            window[:arrays, block.where] = 0
        self.publish()

    def new_array(self) -> HostArray:
        """The next of the shared arrays; all ranks must call this in the same order."""
        return next(self._arrays)

    def bytes_per_rank(self, nbytes: int) -> int:
        """`nbytes` divided by the number of ranks that share, rounded up."""
        return -(-nbytes // self._memory.group.size)

    def new_state(self, optimizer: Optimizer, weights: HostArray) -> OptimizerState:
        """State before the first update, its slots in the window."""
        slots = {name: self.new_array() for name in optimizer.slot_names}
        scratch = NUMPY.empty((2 * self._workspace.size,), weights.dtype)
        self._states = [
            OptimizerState({name: slot[block.where] for name, slot in slots.items()}, scratch, NUMPY)
            for block in chain(*self._slices)
        ]
        return OptimizerState(slots, scratch, NUMPY)

    def ready(self, layer: int) -> None:
        """Does nothing: the gradients are in shared memory as soon as they are computed."""

    def finish(self) -> None:
        """All-reduce the loss over the batch group, which completes only after all backward passes.

        After it no rank reads weights of this step or writes gradients.
        """
        NUMPY.copy(self.loss, self.total_loss)
        self._memory.publish(lambda: self._batch.allreduce(self.total_loss))
        self._is_summed = False

    def update(
        self, optimizer: Optimizer, weights: HostArray, state: OptimizerState, rate: float, out: HostArray | None = None
    ) -> None:
        """Update the slices of this rank, and return when all slices are updated."""
        if self._batch.size > self._memory.group.size:  # on several nodes
            self._sum()
        for block, block_state in zip(chain(*self._slices), self._states, strict=True):
            gradient = block.own if self._is_summed else block.sum_into(block.workspace)
            block_state.updates, block_state.delay = state.updates, state.delay
            where = block.where
            optimizer.update(weights[where], gradient, block_state, rate, None if out is None else out[where])
        state.updates += 1
        self.publish()

    def full_gradient(self) -> HostArray:
        """A copy of the sum of all gradients."""
        self._sum()
        self.publish()
        gradient: HostArray = NUMPY.empty(self.gradient.shape, self.gradient.dtype)
        ranks, slices = self._memory.group.size, self._sharing.slices
        for number in range(slices):
            where = slice(*slice_bounds(gradient.size, slices, number))
            NUMPY.copy(self._segments[number * ranks // slices, where], gradient[where])
        self.publish()
        return gradient

    def squared_norm_into(self, norm: HostArray) -> None:
        """Squared norm of the sum of all gradients, bitwise equal on all nodes."""
        self._sum()
        norms = np.zeros(self._sharing.slices)
        for item, blocks in zip(self._sharing.owned, self._slices, strict=True):
            norms[item.number] = sum(squared_norm(block.own) for block in blocks)
        self._memory.group.allreduce(norms)
        norm[0] = norms.sum()

    def clip(self, squared_norm: HostArray, limit: float) -> None:
        """Scale this rank's slices of the sum by limit / norm if the norm is above `limit`."""
        self._sum()
        for block in chain(*self._slices):
            NUMPY.clip_to_norm(block.own, squared_norm, limit)

    def publish(self) -> None:
        """See `PrivateReplica.publish`."""
        self._memory.publish()

    def synchronize_state(self, state: OptimizerState) -> None:
        """See `PrivateReplica.synchronize_state`."""
        updates = np.array([state.updates], np.int64)
        self._memory.group.broadcast(updates)
        self.publish()
        state.updates = int(updates[0])

    def _blocks(self, number: int) -> list[_Block]:
        """The cache blocks of a slice."""
        start, stop = slice_bounds(self.gradient.size, self._sharing.slices, number)
        bounds = ((first, min(first + SUM_BLOCK, stop)) for first in range(start, stop, SUM_BLOCK))
        return [
            _Block(
                slice(first, last),
                self.gradient[first:last],
                tuple(self._segments[:, first:last]),
                self._workspace[: last - first],
            )
            for first, last in bounds
        ]

    def _sum(self) -> None:
        """Replace the gradients in this rank's slices by the sum over all ranks, once per step."""
        if self._is_summed:
            return
        for item, blocks in zip(self._sharing.owned, self._slices, strict=True):
            for block in blocks:
                block.sum_into(block.own)
            if item.owners is not None and blocks:
                item.owners.allreduce(self.gradient[blocks[0].where.start : blocks[-1].where.stop])
        self._is_summed = True
