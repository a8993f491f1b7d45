"""Reference solutions of A7.

The docstrings of the functions at the end of the file are those of the stubs; the others make the solution of a
variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn_course.assignment import Function, Variant
from hybridnn_course.exercises.a7_cost.calls import stage_cost

Array = NDArray[np.float64]
Counts = tuple[float, float, float]
"""Messages, bytes and reduced bytes on the critical path."""

RADIX = 4  # of the k-nomial tree
NODE = 4  # ranks of a node in the two-level all-reduce

SUMMARIES: dict[str, Callable[[Array], Any]] = {"median": np.median, "least": np.min}
ONE_WAYS = {"replicated": 2, "sharded": 3}
"""Times that the weights of a rank, or gradients of their size, pass one way along the batch axis in a step."""


# -- fit --------------------------------------------------------------------------------------------------------------


def merged(features: Array, seconds: Array, summary: Callable[[Array], Any]) -> tuple[Array, Array]:
    """Different rows of features, and one number of seconds for each."""
    rows, which = np.unique(features, axis=0, return_inverse=True)
    return rows, np.array([float(summary(seconds[which.ravel() == row])) for row in range(len(rows))])


def non_negative(rows: Array, values: Array) -> Array:
    """Non-negative least squares, with columns of similar length."""
    from scipy.optimize import nnls

    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    found: Array = nnls(rows / scale, values)[0] / scale
    return found


def fit_solution(variant: Variant) -> Function:
    """The fit for a summary of repetitions."""

    def fit_costs(features: Array, seconds: Array) -> Array:
        rows, measured = merged(features, seconds, SUMMARIES[variant["repetitions"]])
        return non_negative(rows / measured[:, None], np.ones(len(measured)))

    return fit_costs


# -- collectives ------------------------------------------------------------------------------------------------------


def block(nbytes: int, ranks: int, number: int) -> int:
    """Bytes of a block: the first ``nbytes mod ranks`` blocks have one more."""
    return nbytes // ranks + (number < nbytes % ranks)


def doublings(ranks: int) -> int:
    """Rounds of a binomial tree."""
    return (ranks - 1).bit_length()


def ring_solution(_: Variant) -> Function:
    """The ring all-reduce, in every variant."""
    return ring_counts


def neighbour_exchange(nbytes: int, ranks: int) -> Counts:
    """All-gather by neighbour exchange; with an odd number of ranks, round a ring."""
    first = block(nbytes, ranks, 0)
    if ranks % 2:
        return ranks - 1, (ranks - 1) * first, 0
    return ranks // 2, first + (ranks // 2 - 1) * (first + block(nbytes, ranks, 1)), 0


def knomial_tree(nbytes: int, ranks: int) -> Counts:
    """Broadcast in a k-nomial tree."""
    messages, reached = 0, 1
    while reached < ranks:
        messages += min(RADIX - 1, -(-(ranks - reached) // reached))
        reached *= RADIX
    return messages, messages * nbytes, 0


def two_level(nbytes: int, ranks: int) -> Counts:
    """Reduce inside the nodes, ring all-reduce among the first ranks of the nodes, broadcast inside the nodes."""
    inner = doublings(min(NODE, ranks))
    messages, sent, reduced = ring_counts(nbytes, -(-ranks // NODE))
    return messages + 2 * inner, sent + 2 * inner * nbytes, reduced + inner * nbytes


COLLECTIVES = {"neighbour exchange": neighbour_exchange, "4-nomial tree": knomial_tree, "two levels": two_level}


def collective_solution(variant: Variant) -> Function:
    """The counts of the collective of a variant."""

    def collective_counts(nbytes: int, ranks: int) -> Counts:
        return COLLECTIVES[variant["collective"]](nbytes, ranks)

    return collective_counts


# -- cuts -------------------------------------------------------------------------------------------------------------


def cuts_solution(variant: Variant) -> Function:
    """The best cuts, by dynamic programming over the first layers in so many stages."""

    def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> list[int]:
        cost = partial(stage_cost, seconds, boundaries, waits=variant["messages"] == "waited for")
        return least_slowest(len(seconds), stages, cost)

    return best_cuts


def least_slowest(layers: int, stages: int, cost: Callable[[int, int], float]) -> list[int]:
    """Counts of layers with the least greatest cost."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for stage in range(1, stages + 1):
        found: dict[int, tuple[float, list[int]]] = {}
        for end in range(stage, layers - (stages - stage) + 1):
            candidates = (
                (max(slowest, cost(first, end)), [*counts, end - first])
                for first, (slowest, counts) in best.items()
                if first < end
            )
            found[end] = min(candidates)
        best = found
    return best[layers][1]


# -- grid -------------------------------------------------------------------------------------------------------------


def one_way(nbytes: float, ranks: int) -> tuple[float, float]:
    """Messages and bytes of an all-gather or a reduce-scatter in the model of the task."""
    return (ranks - 1).bit_length(), nbytes * (ranks - 1) / ranks


def step_counts(widths: Sequence[int], batch: int, grid: tuple[int, int], weight_passes: int) -> tuple[float, float]:
    """Messages and bytes of a step on a grid."""
    batch_ranks, model_ranks = grid
    samples = batch / batch_ranks
    passes = [(samples * width * 4, model_ranks, 1) for width in widths[1:]]
    passes += [(samples * width * 4, model_ranks, 2) for width in widths[1:-1]]
    passes += [(inputs * outputs / model_ranks * 4, batch_ranks, weight_passes) for inputs, outputs in pairwise(widths)]
    found = [(times, *one_way(nbytes, ranks)) for nbytes, ranks, times in passes]
    return sum(times * messages for times, messages, _ in found), sum(times * sent for times, _, sent in found)


def fitting_grids(widths: Sequence[int], batch: int, ranks: int) -> list[tuple[int, int]]:
    """Grids without idle ranks, those with the longer batch axis first."""
    pairs = [(ranks // model, model) for model in range(1, ranks + 1) if ranks % model == 0]
    return [pair for pair in pairs if pair[0] <= batch and pair[1] <= max(widths[1:])]


def grid_solution(variant: Variant) -> Function:
    """The first of the fastest grids for replicated or sharded weights, and its seconds."""

    def best_grid(
        widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
    ) -> tuple[tuple[int, int], float]:
        def seconds(grid: tuple[int, int]) -> float:
            messages, sent = step_counts(widths, batch, grid, ONE_WAYS[variant["weights"]])
            return messages * alpha + sent * beta

        best = min(fitting_grids(widths, batch, ranks), key=seconds)
        return best, seconds(best)

    return best_grid


# -- what a student writes --------------------------------------------------------------------------------------------


def fit_costs(features: Array, seconds: Array) -> Array:
    """Seconds per unit of every feature, fitted to measurements.

    Of all coefficients that are 0 or more, these have the least sum, over the measurements, of the squares of the
    relative error ``(predicted - measured) / measured``, where ``predicted = features @ coefficients``.

    Parameters
    ----------
    features : ndarray, shape (samples, features)
        Messages, bytes, multiply-adds, … of every sample. Equal rows, in any order, are repetitions of one measurement.
    seconds : ndarray, shape (samples,)
        Measured seconds of every sample, above 0.

    Returns
    -------
    ndarray, shape (features,)
        The coefficient of each feature; 0 for a feature that is 0 in all samples.
    """
    result: Array = fit_solution({"repetitions": "median"})(features, seconds)
    return result


def ring_counts(nbytes: int, ranks: int) -> Counts:
    """Messages, bytes and reduced bytes on the critical path of a ring all-reduce.

    A reduce-scatter round a ring, then an all-gather round the ring. The vector is cut into one block for each rank;
    the first ``nbytes mod ranks`` blocks have one byte more than the others. Every rank sends one message in every
    round, empty blocks included, and a round takes as long as its largest message.

    Parameters
    ----------
    nbytes : int
        Bytes of the vector, 0 or more.
    ranks : int
        Ranks of the group, 1 or more.

    Returns
    -------
    messages, nbytes, reduced : int
        Of all rounds: the messages that follow one another, the bytes of the largest message, and the received bytes
        that are added to a rank's own.
    """
    rounds, largest = ranks - 1, block(nbytes, ranks, 0)
    return 2 * rounds, 2 * rounds * largest, rounds * largest


def collective_counts(nbytes: int, ranks: int) -> Counts:
    """Messages, bytes and reduced bytes on the critical path of the collective of the handout.

    Parameters
    ----------
    nbytes : int
        Bytes of the whole vector, 0 or more.
    ranks : int
        Ranks of the group, 1 or more.

    Returns
    -------
    messages, nbytes, reduced : int
        Of all rounds: the messages that follow one another, the bytes of the largest message of every round, and the
        received bytes that are added to a rank's own.
    """
    return neighbour_exchange(nbytes, ranks)


def best_cuts(seconds: Sequence[float], boundaries: Sequence[float], stages: int) -> list[int]:
    """Layers of every stage, for which the slowest part of a pipeline is as fast as possible.

    Of several partitions that are equally fast, any.

    Parameters
    ----------
    seconds : sequence of float
        Seconds of every layer; at least as many layers as stages.
    boundaries : sequence of float
        ``boundaries[i]`` are the seconds of the messages between layer i and layer i+1, if they are on different
        stages; one fewer than the layers.
    stages : int
        1 or more.

    Returns
    -------
    list of int
        Number of layers of every stage, 1 or more each.
    """
    result: list[int] = cuts_solution({"messages": "overlapped"})(seconds, boundaries, stages)
    return result


def best_grid(
    widths: Sequence[int], batch: int, ranks: int, alpha: float, beta: float
) -> tuple[tuple[int, int], float]:
    """The process grid that communicates least in a step, and the seconds of its communication.

    Parameters
    ----------
    widths : sequence of int
        Input width and the outputs of every layer; layer l has ``widths[l] * widths[l-1]`` weights.
    batch : int
        Samples of a minibatch.
    ranks : int
        All ranks are used: the grids are the pairs of batch ranks and model ranks whose product is `ranks`.
    alpha, beta : float
        Seconds per message and per byte; an element has 4 bytes.

    Returns
    -------
    grid : tuple of int
        Batch ranks and model ranks. At most `batch` batch ranks, and at most as many model ranks as the widest layer
        has outputs. Of equally fast grids the one with more batch ranks.
    seconds : float
        Of that grid.
    """
    result: tuple[tuple[int, int], float] = grid_solution({"weights": "replicated"})(widths, batch, ranks, alpha, beta)
    return result
