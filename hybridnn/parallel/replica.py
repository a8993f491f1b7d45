"""Replicas: the weights, gradients and optimizer state of a stage, kept equal over its batch group.

`PrivateReplica`: every batch rank has its own and all-reduces the gradients. `SharedReplica` (``shared_replica.py``):
the batch ranks of a node have one in a shared-memory window. They have the same interface, documented at
`PrivateReplica`, whose methods are collective over the batch group, except `ready` and `bytes_per_rank`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.nn.kernels import NUMPY, Array, Kernels
from hybridnn.nn.optimizers import Optimizer, OptimizerState, new_state


class PrivateReplica:
    """A replica in this rank's own memory.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
    loss : ndarray, shape (1,)
        This rank's sum of losses, which backward passes write. It follows the gradient in memory and travels with it.
    is_leader : bool
        Whether this rank writes the replica in `fill`.
    ready, finish : callable
        Those of a `GradientReducer`; in a group of one rank they do nothing.
    """

    is_leader = True

    def __init__(
        self,
        group: Group,
        ends: Sequence[int],
        dtype: DTypeLike,
        overlap: bool,
        kernels: Kernels = NUMPY,
    ) -> None:
        self._kernels = kernels
        flat = kernels.zeros((ends[-1] + 1,), dtype)
        self.gradient, self.loss = flat[:-1], flat[-1:]
        self.nbytes = flat.nbytes
        self.ready: Callable[[int], None] = _nothing_to_reduce
        self.finish: Callable[[], None] = _nothing_to_reduce
        if group.size > 1:
            from hybridnn.parallel.gradient_reduction import GradientReducer

            reducer = GradientReducer(group, flat, ends, overlap)
            self.ready, self.finish = reducer.ready, reducer.finish

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


def _nothing_to_reduce(layer: int = 0) -> None:
    """Stands for the reduction in a group of one rank."""
