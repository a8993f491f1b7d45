"""Shared replica: one replica for all batch ranks of a node, in a shared-memory window.

Every rank has a segment of the window for its gradients. When all backward passes are complete, each rank sums a slice
of all segments and updates that slice of the weights. Inside a node nothing is all-reduced, no element is updated
twice, and the weights and the optimizer's state are stored once. Between nodes, the owners of a slice all-reduce it.

The ranks synchronize twice in a step: at the all-reduce of the loss, after which no rank reads the weights of this step
or writes gradients, and at a barrier after the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import DTypeLike

from hybridnn.nn.kernels import NUMPY, HostArray, squared_norm
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.replica_sharing import NodeReplica, Sharing, slice_bounds

SUM_BLOCK = 1 << 16  # elements that are summed and, while in the cache, updated: measured fastest between 2^12 and 2^24


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


class SharedReplica(NodeReplica):
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
    """

    def __init__(self, sharing: Sharing, size: int, dtype: DTypeLike, arrays: int) -> None:
        self._sharing = sharing
        ranks, rank = sharing.memory.group.size, sharing.memory.group.rank
        window = sharing.memory.allocate((arrays + ranks, size), dtype)
        super().__init__(sharing.memory, sharing.batch, iter(window[:arrays]), dtype)
        self._segments = window[arrays:]
        self.gradient = self._segments[rank]
        _, largest = slice_bounds(size, sharing.slices, 0)
        self._workspace = NUMPY.empty((min(SUM_BLOCK, largest),), dtype)
        self._slices = [self._blocks(item.number) for item in sharing.owned]
        self._states: list[OptimizerState] = []
        self._is_summed = False
        # The operating system places memory near the rank that writes it first.
        self.gradient[...] = 0
        for block in chain(*self._slices):
            window[:arrays, block.where] = 0
        self.publish()

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients and the workspace of this rank."""
        return sum(item.nbytes for item in (self.gradient, self.loss, self._total, self._workspace))

    def new_state(self, optimizer: Optimizer, weights: HostArray) -> OptimizerState:
        """State before the first update, its slots in the window."""
        slots = {name: self.new_array() for name in optimizer.slot_names}
        scratch = NUMPY.empty((2 * self._workspace.size,), weights.dtype)
        self._states = [
            OptimizerState({name: slot[block.where] for name, slot in slots.items()}, scratch, NUMPY)
            for block in chain(*self._slices)
        ]
        return OptimizerState(slots, scratch, NUMPY)

    def finish(self) -> None:
        """See `NodeReplica.finish`; after it no rank reads weights of this step or writes gradients."""
        super().finish()
        self._is_summed = False

    def update(
        self, optimizer: Optimizer, weights: HostArray, state: OptimizerState, rate: float, out: HostArray | None = None
    ) -> None:
        """Update the slices of this rank, and return when all slices are updated."""
        if not self._sharing.is_whole:
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
