"""One replica for all batch ranks of a node, in memory that they share.

Backward passes write to the window at once: every rank has a segment of it for its gradients. When all are there, each
rank sums a slice of everybody's gradients and updates that slice of the weights. So nothing is all-reduced inside a
node, nothing is updated twice, and a node holds the weights and the optimizer's state once. Between nodes, the owners
of a slice all-reduce it, rounded to 16 bits on its way where that is asked for.

All ranks meet twice in a step. First at the all-reduce of the loss, which nobody leaves before all have come: from then
on no rank reads weights of this step, nor writes gradients. Then at a barrier behind the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hybridnn.kernels import numpy_kernels as kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.nn.optimizers import Optimizer, OptimizerState
from hybridnn.parallel.compressed_allreduce import PIECE_ELEMENTS, CompressedReducer, CompressionWorkspace
from hybridnn.parallel.replicas.node_replica import NodeReplica
from hybridnn.parallel.replicas.sharing import Sharing, slice_bounds

Array = NDArray[Any]

SUM_BLOCK = 1 << 16
"""Numbers that are summed and, while they are in the cache, updated: measured fastest between 2^12 and 2^24."""


@dataclass(frozen=True)
class _Piece:
    """A block of a slice of this rank.

    Attributes
    ----------
    where : slice
        Of a flat buffer.
    own : ndarray
        This rank's gradients there.
    of_ranks : tuple of ndarray
        Those of every rank of the node, in their order.
    room : ndarray
        Working memory of the same shape; all pieces have the same.
    """

    where: slice
    own: Array
    of_ranks: tuple[Array, ...]
    room: Array

    def add_up(self, out: Array) -> Array:
        """Sum the gradients of the node's ranks into `out`, the room or the own ones, and return where the sum is."""
        total, *others = self.of_ranks
        for place, other in enumerate(others, 2):
            # The own ones may still have to be added.
            into = out if place == len(self.of_ranks) else self.room
            kernels.add(total, other, into)
            total = into
        return total


class SharedReplica(NodeReplica):
    """A replica that the batch ranks of a node have in common, who write their gradients side by side.

    Parameters
    ----------
    sharing : Sharing
    size : int
        Numbers of a flat buffer.
    dtype : dtype
    arrays : int
        How often `new_array` will be asked: for weights, each of their versions, and each slot of the optimizer.
    words : CompressedFormat, optional
        What sums of a node's gradients are rounded to on their way to other nodes.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
        This rank's segment of the window. Slices that it owns may hold the sum over all ranks once that was needed.
    loss : ndarray, shape (1,)

    Raises
    ------
    EnvironmentProblem
        If the node's shared memory is too small.
    """

    def __init__(
        self, sharing: Sharing, size: int, dtype: DTypeLike, arrays: int, words: CompressedFormat | None = None
    ) -> None:
        self._sharing = sharing
        ranks, rank = sharing.memory.group.size, sharing.memory.group.rank
        window = sharing.memory.allocate((arrays + ranks, size), dtype)
        super().__init__(sharing.memory, sharing.batch, iter(window[:arrays]), dtype)
        self._segments = window[arrays:]
        self.gradient = self._segments[rank]
        _, largest = slice_bounds(size, sharing.slices, 0)
        self._room = kernels.empty((min(SUM_BLOCK, largest),), dtype)
        self._slices = [self._pieces(item.number) for item in sharing.owned]
        self._wire_rooms = [
            CompressionWorkspace(words, item.owners.size, min(largest, PIECE_ELEMENTS), dtype)
            for item in sharing.owned[:1]
            if item.owners is not None and words is not None
        ]
        self._states: list[OptimizerState] = []
        self._is_summed = False
        # Memory lies near the rank that touches it first.
        self.gradient[...] = 0
        for piece in chain(*self._slices):
            window[:arrays, piece.where] = 0
        self.publish()

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients and the working memory of this rank."""
        arrays = (self.gradient, self.loss, self._total, self._room)
        return sum(array.nbytes for array in arrays) + sum(room.nbytes for room in self._wire_rooms)

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """State before the first update, its slots in the window."""
        slots = {name: self.new_array() for name in optimizer.slot_names}
        scratch = kernels.empty((2 * self._room.size,), weights.dtype)
        self._states = [
            OptimizerState({name: slot[piece.where] for name, slot in slots.items()}, scratch)
            for piece in chain(*self._slices)
        ]
        return OptimizerState(slots, scratch)

    def finish(self) -> None:
        """See `NodeReplica.finish`; from then on no rank reads weights of this step, nor writes gradients."""
        super().finish()
        self._is_summed = False

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """Update the slices of this rank, and return when all slices are."""
        if not self._sharing.is_whole:
            self._sum()
        for piece, part in zip(chain(*self._slices), self._states, strict=True):
            gradient = piece.own if self._is_summed else piece.add_up(piece.room)
            part.updates = state.updates
            where = piece.where
            optimizer.update(weights[where], gradient, part, rate, None if out is None else out[where])
        state.updates += 1
        self.publish()

    def full_gradient(self) -> Array:
        """A copy of the sum of all gradients."""
        self._sum()
        self.publish()
        whole = kernels.empty(self.gradient.shape, self.gradient.dtype)
        ranks, slices = self._memory.group.size, self._sharing.slices
        for number in range(slices):
            part = slice(*slice_bounds(whole.size, slices, number))
            kernels.copy(self._segments[number * ranks // slices, part], whole[part])
        self.publish()
        return whole

    def squared_norm_into(self, norm: Array) -> None:
        """Squared norm of the sum of all gradients, the same to the last bit on every node."""
        self._sum()
        norms = np.zeros(self._sharing.slices)
        for item, pieces in zip(self._sharing.owned, self._slices, strict=True):
            norms[item.number] = sum(kernels.squared_norm(piece.own) for piece in pieces)
        self._memory.group.allreduce(norms)
        norm[0] = norms.sum()

    def clip(self, squared_norm: Array, limit: float) -> None:
        """Scale this rank's slices of the sum where the norm is above `limit`."""
        self._sum()
        for piece in chain(*self._slices):
            NUMPY.clip_to_norm(piece.own, squared_norm, limit)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _pieces(self, number: int) -> list[_Piece]:
        """A slice in blocks that stay in the cache."""
        start, stop = slice_bounds(self.gradient.size, self._sharing.slices, number)
        bounds = ((first, min(first + SUM_BLOCK, stop)) for first in range(start, stop, SUM_BLOCK))
        return [
            _Piece(
                slice(first, last),
                self.gradient[first:last],
                tuple(self._segments[:, first:last]),
                self._room[: last - first],
            )
            for first, last in bounds
        ]

    def _sum(self) -> None:
        """Let the slices of this rank hold the sum over all ranks; once in a step, and only where that is needed."""
        if self._is_summed:
            return
        for item, pieces in zip(self._sharing.owned, self._slices, strict=True):
            for piece in pieces:
                piece.add_up(piece.own)
            if item.owners is not None and pieces:
                whole = self.gradient[pieces[0].where.start : pieces[-1].where.stop]
                group = CompressedReducer(item.owners, self._wire_rooms) if self._wire_rooms else item.owners
                group.allreduce(whole)
        self._is_summed = True
