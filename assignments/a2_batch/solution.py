"""Reference solutions of A2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.course.assignment import Variant


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
    group: Any, weights: NDArray[np.float64], x: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """Gradient and loss of softmax regression, means over the samples of all ranks.

    Parameters
    ----------
    group : Group
        The ranks; its method `allreduce` replaces an array by the sum over them.
    weights : ndarray, shape (outputs, features)
        The same on all ranks. The logits of a sample with features x are weights @ x.
    x : ndarray, shape (samples, features)
        Samples of this rank; their number differs between ranks and may be 0.
    labels : ndarray, shape (samples,)
        Class of each sample.

    Returns
    -------
    gradient : ndarray, shape (outputs, features)
        Gradient of the mean cross-entropy over the samples of all ranks; the same on every rank.
    loss : float
        That mean; the same on every rank.
    """
    logits = x @ weights.T
    logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(logits)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    delta = exponentials / sums
    delta[rows, labels] -= 1
    total = np.empty(weights.size + 2)
    total[:-2] = (delta.T @ x).ravel()
    total[-2] = float(np.sum(np.log(sums[:, 0]) - logits[rows, labels]))
    total[-1] = len(labels)
    group.allreduce(total)
    total[:-1] /= total[-1]
    return total[:-2].reshape(weights.shape).copy(), float(total[-2])
