"""Sum of the gradients over the batch group: in buckets while earlier layers are still in their backward pass, or once.

The gradient buffer ends with one more number, the sum of this rank's losses. It lies behind the last layer's gradient
and travels with it, so the loss over the global minibatch costs no message of its own. Where gradients are rounded on
their way, it has one, and is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hybridnn.comm.group import Group
from hybridnn.comm.partition import pieces
from hybridnn.comm.request import Request
from hybridnn.kernels.backend import Array
from hybridnn.kernels.sixteen_bits import CompressedFormat
from hybridnn.parallel.compressed_allreduce import (
    CompressedAllreduce,
    CompressedReducer,
    CompressionWorkspace,
    StagedCompressedAllreduce,
    piece_sizes,
)

BUCKET_BYTES = 1 << 19
"""Gradients are sent when at least this many bytes are ready: smaller messages pay more latency than they hide."""

PIECE_BYTES = 1 << 19
IN_FLIGHT = 2
"""An overlapped bucket travels in pieces of `PIECE_BYTES`, so many at a time. Of the sizes and numbers tried with Open
MPI 5.0 these were the fastest (``benchmarks/allreduce_pieces.py``). The blocking call is faster still: on a node whose
cores are all busy, overlap has nothing to gain."""


@dataclass(frozen=True)
class BucketConfig:
    """How an overlapped sum is cut into messages.

    Attributes
    ----------
    bucket_bytes : int
        Gradients are sent when so many bytes are ready.
    piece_bytes, in_flight : int
        A bucket travels in pieces of so many bytes, so many at a time.
    single_blocks : bool
        Whether a single bucket is summed by a call that blocks.
    """

    bucket_bytes: int
    piece_bytes: int
    in_flight: int
    single_blocks: bool


HOST_BUCKETS = BucketConfig(BUCKET_BYTES, PIECE_BYTES, IN_FLIGHT, single_blocks=True)
DEVICE_BUCKETS = BucketConfig(1 << 24, 1 << 30, 1 << 10, single_blocks=False)
"""A device computes beside the messages, and its transports cut them as they need: nothing is held back. The bucket's
size is one at which a connection of many GB/s is busy for about as long as a collective takes to begin."""

STAGED_BUCKETS = BucketConfig(1 << 22, 1 << 22, 4, single_blocks=False)
"""Where the host rounds a device's gradients: the copies, the rounding and the messages of some pieces at a time."""

Sum = Request | CompressedAllreduce | StagedCompressedAllreduce


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


def bucket_numbers(size: int, itemsize: int, overlap: bool, pace: BucketConfig = HOST_BUCKETS) -> int:
    """Numbers that a bucket holds at least, of a buffer of `size` numbers."""
    return max(pace.bucket_bytes // itemsize if overlap else size, 1)


def compressed_piece_sizes(
    ends: Sequence[int], itemsize: int, overlap: bool, pace: BucketConfig = HOST_BUCKETS
) -> list[int]:
    """Numbers of every piece of the gradients of layers with these ends, where they are rounded on their way."""
    plan = plan_buckets(ends, ends[-1], bucket_numbers(ends[-1], itemsize, overlap, pace))
    return [n for start, stop in plan.values() for n in piece_sizes(stop - start, pace.piece_bytes // itemsize)]


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
    pace : BucketConfig
    words : CompressedFormat, optional
        What gradients are rounded to on their way, by the host; the last number of the buffer is not.

    Attributes
    ----------
    nbytes : int
        Of working memory.
    """

    def __init__(
        self,
        group: Group,
        gradient: Array,
        ends: Sequence[int],
        overlap: bool,
        pace: BucketConfig = HOST_BUCKETS,
        words: CompressedFormat | None = None,
    ) -> None:
        self._group, self._pace, self._words = group, pace, words
        self._begin: Callable[[Array], Sum] = group.iallreduce
        self._last, self._loss, self.nbytes = len(ends) - 1, gradient[-1:], 0
        if words is not None:
            gradient = gradient[:-1]
            piece = min(gradient.size, pace.piece_bytes // gradient.itemsize)
            rooms = [CompressionWorkspace(words, group.size, piece, gradient.dtype) for _ in range(pace.in_flight)]
            self._begin, self.nbytes = CompressedReducer(group, rooms).iallreduce, sum(room.nbytes for room in rooms)
        plan = plan_buckets(ends, gradient.size, bucket_numbers(gradient.size, gradient.itemsize, overlap, pace))
        self._buckets = {layer: gradient[start:stop] for layer, (start, stop) in plan.items()}
        self._waiting: deque[Callable[[], Sum]] = deque()
        self._in_flight: deque[Sum] = deque()

    def ready(self, layer: int) -> None:
        """The gradient of `layer` and of all above it is complete; send what is due, and let MPI progress."""
        bucket = self._buckets.get(layer)
        if self._group.size == 1:
            return
        if len(self._buckets) == 1 and self._pace.single_blocks and self._words is None:
            # One message after the last layer has nothing to overlap with; the blocking call is the faster one.
            if bucket is not None:
                self._group.allreduce(bucket)
            return
        if layer == self._last and self._words is not None:
            self._waiting.append(partial(self._group.iallreduce, self._loss))
        if bucket is not None:
            self._waiting.extend(partial(self._begin, piece) for piece in pieces(bucket, self._pace.piece_bytes))
        while self._in_flight and self._in_flight[0].test():
            self._in_flight.popleft()
        self._start()

    def finish(self) -> None:
        """Return when the whole buffer is summed."""
        while self._in_flight:
            self._in_flight.popleft().wait()
            self._start()

    def _start(self) -> None:
        # Ranks may start a piece at different moments, but all start the pieces in the same order, as MPI demands.
        while self._waiting and len(self._in_flight) < self._pace.in_flight:
            self._in_flight.append(self._waiting.popleft()())
