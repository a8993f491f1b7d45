"""Gradient reduction: all-reduce of the gradients over the batch group, at once or overlapped with the backward pass.

In Laugier et al. 2018 (lines counted from ``procedure``) it is the AllReduce of Algorithm 1, line 14, after the
backward pass, and of Algorithm 3, line 16, after every layer. With overlap, the buffer is divided into buckets of
consecutive layers, each all-reduced while earlier layers are still in their backward pass.

The gradient buffer ends with one more element, the sum of this rank's losses. It follows the last layer's gradient and
travels with it, so the loss over the global minibatch needs no message of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hybridnn.comm.blocks import pieces
from hybridnn.comm.group import Group, Request
from hybridnn.nn.kernels import Array


def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
    """Buckets of the gradient buffer, each with the layer after whose backward pass it is complete.

    The buffer has `size` elements, including the loss. From layer to (start, stop), from the last layer to layer 0,
    which always has a bucket.
    """
    buckets: dict[int, tuple[int, int]] = {}
    stop = size
    for layer in reversed(range(len(ends))):
        start = ends[layer - 1] if layer else 0
        if stop - start >= min_elements or layer == 0:
            buckets[layer] = (start, stop)
            stop = start
    return buckets


class GradientReducer:
    """All-reduces the gradient buffer over a batch group of several ranks during a backward pass.

    The flat buffer `gradient`, shape (size,), is summed in place. Without `overlap` there is one all-reduce after the
    backward pass (Laugier et al. 2018, Algorithm 1, line 14).
    """

    def __init__(self, group: Group, gradient: Array, ends: Sequence[int], overlap: bool) -> None:
        self._group, self._config = group, group.transport.buckets
        # Without overlap the buffer is one bucket.
        min_elements = max(self._config.bucket_bytes // gradient.itemsize if overlap else gradient.size, 1)
        plan = plan_buckets(ends, gradient.size, min_elements)
        self._buckets = {layer: gradient[start:stop] for layer, (start, stop) in plan.items()}
        self._waiting: deque[Array] = deque()  # pieces of complete buckets
        self._in_flight: deque[Request] = deque()

    def ready(self, layer: int) -> None:
        """Send the bucket that the complete gradient of `layer` completes, if any, and let MPI make progress."""
        bucket = self._buckets.get(layer)
        if len(self._buckets) == 1 and self._config.single_blocks:
            # One message after the last layer has nothing to overlap with; the blocking call is faster.
            if bucket is not None:
                self._group.allreduce(bucket)
            return
        if bucket is not None:
            self._waiting.extend(pieces(bucket, self._config.piece_bytes))
        while self._in_flight and self._in_flight[0].test():
            self._in_flight.popleft()
        self._start()

    def finish(self) -> None:
        """Return when the whole buffer is summed."""
        while self._in_flight:
            self._in_flight.popleft().wait()
            self._start()

    def _start(self) -> None:
        # Ranks may start a piece at different moments, but all start the pieces in the same order, as MPI requires.
        while self._waiting and len(self._in_flight) < self._config.in_flight:
            self._in_flight.append(self._group.iallreduce(self._waiting.popleft()))
