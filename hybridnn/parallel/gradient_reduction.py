"""Sum of the gradients over the batch group: in buckets while earlier layers are still in their backward pass, or once.

The gradient buffer ends with one more number, the sum of this rank's losses. It lies behind the last layer's gradient
and travels with it, so the loss over the global minibatch costs no message of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.request import Request

__all__ = ["BUCKET_BYTES", "GradientReducer", "plan_buckets"]

BUCKET_BYTES = 1 << 20
"""Gradients are sent when at least this many bytes are ready; smaller messages pay more latency than they hide."""


def plan_buckets(ends: Sequence[int], size: int, bucket_numbers: int) -> dict[int, tuple[int, int]]:
    """Which slice of the gradient buffer to send after the backward pass of which layer.

    Parameters
    ----------
    ends : sequence of int
        End of every layer in the buffer.
    size : int
        Numbers in the buffer, with the loss behind the last layer.
    bucket_numbers : int
        Numbers a bucket holds at least, but for the last one sent.

    Returns
    -------
    dict
        Layer to (start, stop). Backward goes from the last layer to layer 0, which always sends.
    """
    buckets: dict[int, tuple[int, int]] = {}
    stop = size
    for layer in reversed(range(len(ends))):
        start = ends[layer - 1] if layer else 0
        if stop - start >= bucket_numbers or layer == 0:
            buckets[layer] = (start, stop)
            stop = start
    return buckets


class GradientReducer:
    """Sums the gradient buffer over the batch group during a backward pass.

    Parameters
    ----------
    group : Group
        The batch group.
    gradient : ndarray, shape (size,)
        The flat buffer, summed in place.
    ends : sequence of int
        End of every layer in it.
    overlap : bool
        False: one all-reduce after the backward pass (Laugier et al. 2018, Algorithm 1).
    bucket_bytes : int
        Least size of an overlapped message.
    """

    def __init__(
        self, group: Group, gradient: NDArray[Any], ends: Sequence[int], overlap: bool, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._group = group
        numbers = bucket_bytes // gradient.itemsize if overlap else gradient.size
        plan = plan_buckets(ends, gradient.size, max(numbers, 1))
        self._buckets = {layer: gradient[start:stop] for layer, (start, stop) in plan.items()}
        self._pending: list[Request] = []

    def ready(self, layer: int) -> None:
        """The gradient of `layer` and of all above it is complete; send what is due, and let MPI progress."""
        if self._group.size == 1:
            return
        bucket = self._buckets.get(layer)
        if bucket is not None and layer == 0:
            # Nothing is left to overlap with; the blocking call is the faster one.
            self._group.allreduce(bucket)
        elif bucket is not None:
            self._pending.append(self._group.iallreduce(bucket))
        else:
            for request in self._pending:
                request.test()

    def finish(self) -> None:
        """Return when the whole buffer is summed."""
        for request in self._pending:
            request.wait()
        self._pending.clear()
