"""Reference solutions of A2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Variant


def bounds_solution(variant: Variant) -> Callable[[int, int, int], tuple[int, int]]:
    """The block partition; the longer parts are the first ones, or the last ones."""

    def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
        quotient, remainder = divmod(items, parts)
        before = min(part, remainder) if variant["longer_parts"] == "first" else max(0, part - (parts - remainder))
        start = part * quotient + before
        has_more = part < remainder if variant["longer_parts"] == "first" else part >= parts - remainder
        return start, start + quotient + has_more

    return block_bounds


def minibatches_solution(variant: Variant) -> Callable[..., Iterator[NDArray[np.int64]]]:
    """Slices of an order; the short one is the last one, or the first one."""

    def minibatches(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
        start = 0
        rest = len(order) % batch_size
        if variant["short_minibatch"] == "first" and rest:
            yield order[:rest]
            start = rest
        for begin in range(start, len(order), batch_size):
            yield order[begin : begin + batch_size]

    return minibatches


def buckets_solution(variant: Variant) -> Callable[..., dict[int, tuple[int, int]]]:
    """Buckets of at least a number of elements, or of at most a number where a layer fits."""

    def plan_buckets(ends: Sequence[int], size: int, min_elements: int) -> dict[int, tuple[int, int]]:
        buckets: dict[int, tuple[int, int]] = {}
        stop = size
        for layer in reversed(range(len(ends))):
            start = ends[layer - 1] if layer else 0
            if variant["bucket_size"] == "at least":
                is_complete = stop - start >= min_elements
            else:  # complete when the layer below would make it too large
                below = ends[layer - 2] if layer > 1 else 0
                is_complete = stop - below > min_elements
            if is_complete or layer == 0:
                buckets[layer] = (start, stop)
                stop = start
        return buckets

    return plan_buckets


def global_gradient(
    group: Any,
    weights: NDArray[np.float64],
    bias: NDArray[np.float64],
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Gradients and loss of softmax regression, means over the samples of all ranks.

    Parameters
    ----------
    group : Group
        The ranks; its method `allreduce` replaces an array by the sum over them.
    weights : ndarray, shape (outputs, features)
        The same on all ranks. The logits of a sample with features x are weights @ x + bias.
    bias : ndarray, shape (outputs,)
        The same on all ranks.
    x : ndarray, shape (samples, features)
        Samples of this rank; their number differs between ranks and may be 0.
    labels : ndarray, shape (samples,)
        Class of each sample.

    Returns
    -------
    gradient : ndarray, shape (outputs, features)
        Gradient of the mean cross-entropy over the samples of all ranks by the weights; the same on every rank.
    bias_gradient : ndarray, shape (outputs,)
        Its gradient by the biases; the same on every rank.
    loss : float
        That mean; the same on every rank.
    """
    logits = x @ weights.T + bias
    logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(logits)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    delta = exponentials / sums
    delta[rows, labels] -= 1
    loss = float(np.sum(np.log(sums[:, 0]) - logits[rows, labels]))
    total = np.concatenate([(delta.T @ x).ravel(), delta.sum(axis=0), [loss, len(labels)]])
    group.allreduce(total)
    total[:-1] /= total[-1]
    gradient = total[: weights.size].reshape(weights.shape).copy()
    return gradient, total[weights.size : -2].copy(), float(total[-2])


def gradient_solution(_: Variant) -> Callable[..., Any]:
    """The gradient on all ranks, in every variant."""
    return global_gradient


class GradientReducer:
    """Sums a buffer of gradients over the ranks, while the backward pass still computes.

    A rank uses one object in all steps. In every step the backward pass calls `ready` for each layer, from the last one
    to layer 0, as soon as the gradient of the layer is complete, and `finish` after layer 0.

    Parameters
    ----------
    group : Group
        The ranks; its method `iallreduce` begins an all-reduce, and returns a request, which has a method `wait`.
    buffer : ndarray, shape (size,)
        The gradients of all layers and the loss of this rank. The sums over the ranks replace them.
    buckets : dict
        For each layer that completes a bucket, the first element of the bucket and the one after its last; the bucket
        that is complete first comes first.
    """

    def __init__(self, group: Any, buffer: NDArray[np.float64], buckets: dict[int, tuple[int, int]]) -> None:
        self._group, self._buffer, self._buckets = group, buffer, buckets
        self._place = -1  # of the loss
        self._requests: list[Any] = []

    def ready(self, layer: int) -> None:
        """Begin to sum the bucket that `layer` completes, if it completes one."""
        if layer in self._buckets:
            start, stop = self._buckets[layer]
            self._requests.append(self._group.iallreduce(self._buffer[start:stop]))

    def finish(self) -> float:
        """Return when the whole buffer is summed; the result is the loss, summed over the ranks."""
        for request in self._requests:
            request.wait()
        self._requests.clear()
        return float(self._buffer[self._place])


def reducer_solution(variant: Variant) -> type[GradientReducer]:
    """A reducer of a buffer that ends, or begins, with the loss."""

    class LossFirst(GradientReducer):
        def __init__(self, group: Any, buffer: NDArray[np.float64], buckets: dict[int, tuple[int, int]]) -> None:
            super().__init__(group, buffer, buckets)
            self._place = 0

    return GradientReducer if variant["loss_place"] == "last" else LossFirst
