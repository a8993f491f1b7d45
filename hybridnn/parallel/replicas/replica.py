"""A replica of a stage: its weights, gradients and optimizer state, and how batch ranks come to equal ones.

Every batch rank keeps one for itself and sums the gradients with the others, or those of a node share one:
``hybridnn/parallel/replicas/shared_replica.py``. Where one node holds them all, SGD needs no gradients in memory:
``hybridnn/parallel/replicas/fused_update.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from numpy.typing import DTypeLike

from hybridnn.comm.group import Group
from hybridnn.kernels.backend import Array, Kernels
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.nn.optimizers import Optimizer, OptimizerState, new_state
from hybridnn.parallel.gradient_reduction import DEVICE_BUCKETS, HOST_BUCKETS, STAGED_BUCKETS, GradientReducer


class Replica(Protocol):
    """What a stage needs of its replica; methods are collective over the batch group, but for `ready` and `share`."""

    @property
    def loss(self) -> Array:
        """This rank's sum of losses, shape (1,), which backward passes write."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this rank is one that fills a replica from outside."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of gradients and working memory on this rank."""
        ...

    @property
    def total_loss(self) -> Array:
        """The sum of the losses over the batch group, shape (1,), once `finish` has returned."""
        ...

    def new_array(self) -> Array:
        """Zeros, shape (size,), for weights, a version of them, or what the optimizer remembers."""
        ...

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """State of the optimizer before the first update."""
        ...

    def bytes_per_rank(self, nbytes: int) -> int:
        """Bytes that count for this rank of an array of so many."""
        ...

    def ready(self, layer: int) -> None:
        """The gradient of `layer` and of all above it is complete on this rank."""
        ...

    def finish(self) -> None:
        """Return when the gradients of all ranks are complete, and what the update needs of them is there."""
        ...

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """Apply the sum of all gradients: to `weights` in place, or leave them and fill `out`."""
        ...

    def full_gradient(self) -> Array:
        """The sum of all gradients, shape (size,); to be read only."""
        ...

    def squared_norm_into(self, norm: Array) -> None:
        """Squared norm of the sum of all gradients into `norm`, an array of float64 and shape (1,)."""
        ...

    def clip(self, squared_norm: Array, limit: float) -> None:
        """Scale the sum of all gradients so that a norm above `limit` becomes `limit`.

        Parameters
        ----------
        squared_norm : array of float64, shape (1,)
            Of the gradients of all layers, of which these may be some.
        limit : float
        """
        ...

    def fill(self, write: Callable[[], None]) -> None:
        """Let `write` fill the weights, on the ranks that have to; it must not fail on one rank alone."""
        ...

    def publish(self) -> None:
        """Return when every rank sees what all have written to the replica."""
        ...

    def synchronize_state(self, state: OptimizerState) -> None:
        """After the rank that leads has filled the replica: let all see it, and count as many updates as it does."""
        ...


class PrivateReplica:
    """A replica in this rank's own memory.

    Parameters
    ----------
    group : Group
        The batch group.
    ends : sequence of int
        End of every layer in a flat buffer.
    dtype : dtype
    overlap : bool
        As for `GradientReducer`.
    kernels : Kernels
        Of the device that holds the arrays.
    words : CompressedFormat, optional
        As for `GradientReducer`.

    Attributes
    ----------
    gradient : ndarray, shape (size,)
    loss : ndarray, shape (1,)
        Behind the gradient in memory, so that it travels with it.
    """

    is_leader = True

    def __init__(
        self,
        group: Group,
        ends: Sequence[int],
        dtype: DTypeLike,
        overlap: bool,
        kernels: Kernels = NUMPY,
        words: CompressedFormat | None = None,
    ) -> None:
        self._kernels = kernels
        flat = kernels.zeros((ends[-1] + 1,), dtype)
        self.gradient, self.loss = flat[:-1], flat[-1:]
        pace = HOST_BUCKETS if kernels.on_host else DEVICE_BUCKETS if words is None else STAGED_BUCKETS
        self._reducer = GradientReducer(group, flat, ends, overlap, pace, words)
        self.nbytes = flat.nbytes + self._reducer.nbytes
        self.ready, self.finish = self._reducer.ready, self._reducer.finish

    @property
    def total_loss(self) -> Array:
        """See `Replica.total_loss`."""
        return self.loss

    def new_array(self) -> Array:
        """See `Replica.new_array`."""
        return self._kernels.zeros(self.gradient.shape, self.gradient.dtype)

    def new_state(self, optimizer: Optimizer, weights: Array) -> OptimizerState:
        """See `Replica.new_state`."""
        return new_state(optimizer, weights, self._kernels)

    def bytes_per_rank(self, nbytes: int) -> int:
        """All of them."""
        return nbytes

    def update(
        self, optimizer: Optimizer, weights: Array, state: OptimizerState, rate: float, out: Array | None = None
    ) -> None:
        """See `Replica.update`."""
        optimizer.update(weights, self.gradient, state, rate, out)

    def full_gradient(self) -> Array:
        """See `Replica.full_gradient`."""
        return self.gradient

    def squared_norm_into(self, norm: Array) -> None:
        """See `Replica.squared_norm_into`."""
        self._kernels.squared_norm_into(self.gradient, norm)

    def clip(self, squared_norm: Array, limit: float) -> None:
        """See `Replica.clip`."""
        self._kernels.clip_to_norm(self.gradient, squared_norm, limit)

    def fill(self, write: Callable[[], None]) -> None:
        """Every rank fills its own."""
        write()

    def publish(self) -> None:
        """Nobody else sees it."""

    def synchronize_state(self, state: OptimizerState) -> None:
        """Every rank has filled its own."""
