"""From measured seconds to coefficients that are not negative: linear models, alpha and beta by size, algorithms.

All fits minimize the relative error, so that 10 % of a microsecond count as much as 10 % of a second.

The fits of all measured operations, and how well each predicts the sizes that were held out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, log, sqrt
from statistics import mean, median

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from hybridnn.cost.calibration.samples import TimedCase
from hybridnn.cost.collectives import ALGORITHMS, CommunicationCounts, counts
from hybridnn.cost.machine.machine import CollectiveCost, Segment

Timing = tuple[int, float]
"""Bytes and seconds."""

SEGMENTS = 3
"""Eager, rendezvous and large."""

LEAST_POINTS = 3
"""Sizes in a segment; two would fit any noise."""

CLOCK_ERROR = 0.01
"""Relative error below which a better fit proves nothing."""

CHEAPEST_STEP = 0.8
"""Seconds just above the end of a segment over those just below, at least: a larger message costs about as much or
more. Libraries that change their algorithm do step down a little."""

USUAL = {
    "broadcast": "binomial",
    "allgather": "bruck",
    "reduce_scatter": "recursive_halving",
    "allreduce": "rabenseifner",
    "scatter": "linear",
    "gather": "linear",
}
"""Algorithm of an operation where the measurements do not tell them apart: one size of group fits all alike."""


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of a linear model of seconds.

    Attributes
    ----------
    coefficients : tuple of float
        Seconds per unit of every feature, none negative.
    mean_relative_error : float
        Over the fitted samples.
    """

    coefficients: tuple[float, ...]
    mean_relative_error: float

    def seconds(self, features: ArrayLike) -> NDArray[np.float64]:
        """Seconds for rows of features, or for one row."""
        result: NDArray[np.float64] = np.asarray(features, np.float64) @ np.array(self.coefficients)
        return result


def fit_linear(features: ArrayLike, seconds: ArrayLike) -> LinearFit:
    """Non-negative least squares on the relative error.

    Parameters
    ----------
    features : array_like, shape (samples, features)
        What a sample has of everything that takes time: messages, bytes, multiply-adds.
    seconds : array_like, shape (samples,)
        Measured, each above 0.

    Returns
    -------
    LinearFit
        A feature that is 0 in all samples has coefficient 0.
    """
    measured = np.asarray(seconds, np.float64)
    rows = np.asarray(features, np.float64) / measured[:, None]
    # Features differ by many orders of magnitude; the solver wants columns of one length.
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, np.ones(len(measured)))
    coefficients = solution / scale
    error = float(np.abs(rows @ coefficients - 1).mean())
    return LinearFit(tuple(coefficients.tolist()), error)


def fit_segments(
    timings: Iterable[Timing],
    counts_of: Callable[[int], CommunicationCounts] = lambda nbytes: CommunicationCounts(1, nbytes),
    max_segments: int = SEGMENTS,
) -> tuple[Segment, ...]:
    """Alpha and beta by size.

    Every division of the measured sizes into runs of at least three is tried. More segments must earn their keep by
    the Bayesian information criterion (Schwarz 1978), with three parameters for each further one, and must not make a
    larger message much cheaper than a smaller one. Where a size was measured several times, its median counts.

    Parameters
    ----------
    timings : iterable of (int, float)
        Bytes and seconds, at least one. With a single size alpha and beta cannot be told apart: that size is met.
    counts_of : callable
        Messages and bytes on the critical path, for the bytes of an operation; by default one message.
    max_segments : int
        Segments at most.

    Returns
    -------
    tuple of Segment
        A segment ends half way, on a logarithmic scale, between the last size it was fitted to and the next.
    """
    sizes, seconds = _medians(timings)
    rows = [(needed.messages, needed.nbytes) for needed in map(counts_of, sizes)]
    runs = _Runs(np.array(rows), np.array(seconds))
    best: tuple[int, ...] = (0, len(sizes))
    best_score = inf
    for segments in range(1, max_segments + 1):
        for cuts in _divisions(len(sizes), segments):
            score = runs.score(cuts)
            if score < best_score and runs.rises(cuts):
                best, best_score = cuts, score
    ends = [_between(sizes[stop - 1], sizes[stop]) for stop in best[1:-1]] + [None]
    return tuple(
        Segment(up_to_bytes=end, alpha_seconds=alpha, beta_seconds_per_byte=beta)
        for end, (alpha, beta) in zip(ends, map(runs.coefficients, best, best[1:]), strict=False)
    )


def fit_collective(
    operation: str,
    timings: Mapping[int, Sequence[Timing]],
    *,
    spans_nodes: bool = False,
    max_segments: int = SEGMENTS,
) -> tuple[CollectiveCost, ...]:
    """Alpha and beta of a collective for every measured size of group, all by the same algorithm.

    In a group of one size all algorithms fit about alike. The one is kept whose alpha and beta, fitted in a group of
    one size, best predict the seconds in the next smaller and larger one that were measured.

    Parameters
    ----------
    operation : str
        As in ``ALGORITHMS``.
    timings : mapping
        From ranks, 2 or more, to bytes of the full vector and seconds.
    spans_nodes : bool
        Whether the groups had ranks on several nodes.
    max_segments : int
        Segments at most.

    Returns
    -------
    tuple of CollectiveCost
        By ranks.
    """
    candidates = {
        algorithm: tuple(
            CollectiveCost(
                operation=operation,
                ranks=ranks,
                spans_nodes=spans_nodes,
                algorithm=algorithm,
                segments=fit_segments(timings[ranks], _in_group(operation, algorithm, ranks), max_segments),
            )
            for ranks in sorted(timings)
        )
        for algorithm in ALGORITHMS[operation]
    }
    usual = USUAL.get(operation)
    best = min(candidates, key=lambda name: (_carried_error(candidates[name], timings), name != usual))
    return candidates[best]


def _in_group(operation: str, algorithm: str, ranks: int) -> Callable[[int], CommunicationCounts]:
    return lambda nbytes: counts(operation, algorithm, nbytes, ranks)


def _medians(timings: Iterable[Timing]) -> tuple[list[int], list[float]]:
    """Sizes, increasing, and the median seconds of each."""
    by_size: dict[int, list[float]] = {}
    for nbytes, seconds in timings:
        by_size.setdefault(nbytes, []).append(seconds)
    sizes = sorted(by_size)
    return sizes, [median(by_size[size]) for size in sizes]


class _Runs:
    """Fits of runs of neighbouring sizes, each made once."""

    def __init__(self, rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        self._rows = rows
        self._seconds = seconds
        self._fits: dict[tuple[int, int], tuple[tuple[float, float], float]] = {}

    def coefficients(self, start: int, stop: int) -> tuple[float, float]:
        """Alpha and beta of the sizes from `start` up to, not including, `stop`."""
        return self._fit(start, stop)[0]

    def score(self, cuts: tuple[int, ...]) -> float:
        """Bayesian information criterion of a division: lower is better."""
        points, segments = len(self._seconds), len(cuts) - 1
        squares = sum(self._fit(start, stop)[1] for start, stop in pairwise(cuts))
        parameters = 3 * segments - 1  # alpha and beta of each, and the ends of all but the last
        return points * log(squares / points + CLOCK_ERROR**2) + parameters * log(points)

    def rises(self, cuts: tuple[int, ...]) -> bool:
        """Whether no segment begins much below the end of the one before, at the sizes on both sides of the border."""
        for (start, border), (_, stop) in pairwise(pairwise(cuts)):
            below, above = self.coefficients(start, border), self.coefficients(border, stop)
            for row in self._rows[border - 1 : border + 1]:
                if float(row @ above) < CHEAPEST_STEP * float(row @ below):
                    return False
        return True

    def _fit(self, start: int, stop: int) -> tuple[tuple[float, float], float]:
        key = (start, stop)
        if key not in self._fits:
            rows, seconds = self._rows[start:stop], self._seconds[start:stop]
            fit = fit_linear(rows, seconds)
            alpha, beta = fit.coefficients
            self._fits[key] = ((alpha, beta), float(((fit.seconds(rows) / seconds - 1) ** 2).sum()))
        return self._fits[key]


def _divisions(points: int, segments: int) -> Iterable[tuple[int, ...]]:
    """All ways to cut a row of points into so many runs that are long enough; one run may be short."""
    if segments == 1:
        return [(0, points)]
    inner = combinations(range(LEAST_POINTS, points - LEAST_POINTS + 1), segments - 1)
    return ((0, *cuts, points) for cuts in inner if all(high - low >= LEAST_POINTS for low, high in pairwise(cuts)))


def _between(low: int, high: int) -> float:
    return sqrt(max(low, 1) * high)


def _carried_error(costs: Sequence[CollectiveCost], timings: Mapping[int, Sequence[Timing]]) -> float:
    """Mean relative error where the seconds of each size of group are predicted from its neighbours in the list."""
    errors = [
        abs(cost.seconds(nbytes, other.ranks) / seconds - 1)
        for pair in pairwise(costs)
        for cost, other in (pair, pair[::-1])
        for nbytes, seconds in timings[other.ranks]
    ]
    return float(np.mean(errors)) if errors else 0.0


LARGE_BYTES = 1 << 16
"""Sizes for which the accuracy of a machine file is stated."""

NONBLOCKING = {"iallreduce": "allreduce"}


@dataclass(frozen=True)
class HeldOutError:
    """Relative error of predicted seconds on sizes that were held out of the fit.

    Attributes
    ----------
    sizes : int
        How many.
    mean, max : float
    """

    sizes: int
    mean: float
    max: float


@dataclass(frozen=True)
class FittedOperation:
    """A measured operation in a group, what was fitted, and its samples.

    Attributes
    ----------
    operation : str
        As in `Case`.
    cost : CollectiveCost
        Of ``"iallreduce"`` that of the blocking all-reduce.
    factor : float
        On its seconds: 1, but for ``"iallreduce"``.
    samples : tuple of TimedCase
        Fitted and held out.
    """

    operation: str
    cost: CollectiveCost
    factor: float
    samples: tuple[TimedCase, ...]

    def seconds(self, nbytes: int) -> float:
        """Predicted seconds in the group that was measured."""
        return self.cost.seconds(nbytes, self.cost.ranks) * self.factor

    def held_out_error(self, least_bytes: int = 0) -> HeldOutError | None:
        """Error on held-out sizes from `least_bytes` up; None if there are none."""
        errors = [
            abs(self.seconds(sample.nbytes) / sample.seconds - 1)
            for sample in self.samples
            if sample.held_out and sample.nbytes >= least_bytes
        ]
        return HeldOutError(len(errors), mean(errors), max(errors)) if errors else None


def fit_operations(samples: Sequence[TimedCase]) -> tuple[FittedOperation, ...]:
    """Fit every operation inside a node and across nodes, for every size of group.

    The non-blocking all-reduce is the blocking one times a factor, the same for all sizes and groups.
    """
    kinds = dict.fromkeys((sample.operation, sample.spans_nodes) for sample in samples)
    fits = [
        fitted
        for operation, spans_nodes in kinds
        if operation not in NONBLOCKING
        for fitted in _fit(operation, spans_nodes, samples)
    ]
    factor = nonblocking_factor(samples, fits)
    for operation, spans_nodes in kinds:
        if operation in NONBLOCKING:
            blocking = [
                fit for fit in fits if fit.operation == NONBLOCKING[operation] and fit.cost.spans_nodes == spans_nodes
            ]
            fits += [
                FittedOperation(operation, fit.cost, factor, _of(samples, operation, spans_nodes, fit.cost.ranks))
                for fit in blocking
            ]
    return tuple(fits)


def nonblocking_factor(samples: Sequence[TimedCase], fits: Sequence[FittedOperation]) -> float:
    """Median over sizes and groups of the time of a non-blocking all-reduce over that of the fitted blocking one.

    Large sizes count where there are some; held-out ones do not. Without samples it is 1.
    """
    costs = {(fit.cost.ranks, fit.cost.spans_nodes): fit.cost for fit in fits if fit.operation in NONBLOCKING.values()}
    ratios = [
        (sample.nbytes, sample.seconds / costs[sample.ranks, sample.spans_nodes].seconds(sample.nbytes, sample.ranks))
        for sample in samples
        if sample.operation in NONBLOCKING and not sample.held_out
    ]
    large = [ratio for nbytes, ratio in ratios if nbytes >= LARGE_BYTES]
    return median(large or [ratio for _, ratio in ratios] or [1.0])


def _fit(operation: str, spans_nodes: bool, samples: Sequence[TimedCase]) -> list[FittedOperation]:
    by_ranks: dict[int, list[tuple[int, float]]] = {}
    for sample in samples:
        if (sample.operation, sample.spans_nodes, sample.held_out) == (operation, spans_nodes, False):
            by_ranks.setdefault(sample.ranks, []).append((sample.nbytes, sample.seconds))
    fits = []
    for cost in fit_collective(operation, by_ranks, spans_nodes=spans_nodes):
        own = _of(samples, operation, spans_nodes, cost.ranks)
        large = FittedOperation(operation, cost, 1.0, own).held_out_error(LARGE_BYTES)
        found = {"held_out_error": large.mean if large else None, "ranks_per_node": own[0].ranks_per_node}
        judged = cost.model_copy(update=found)
        fits.append(FittedOperation(operation, judged, 1.0, own))
    return fits


def _of(samples: Sequence[TimedCase], operation: str, spans_nodes: bool, ranks: int) -> tuple[TimedCase, ...]:
    wanted = (operation, spans_nodes, ranks)
    return tuple(sample for sample in samples if (sample.operation, sample.spans_nodes, sample.ranks) == wanted)
