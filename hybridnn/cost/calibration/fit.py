"""Fits of measured seconds: linear models, alpha and beta by size, algorithms of collectives.

All coefficients are non-negative, and all fits minimize the relative error, so that 10 % of a microsecond count as much
as 10 % of a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, pairwise
from math import log, sqrt
from statistics import mean, median

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from hybridnn.cost.calibration.communication import TimedCase
from hybridnn.cost.collectives import ALGORITHMS, CommunicationCounts, counts
from hybridnn.cost.machine import CollectiveCost, MessageOverhead, Segment

Timing = tuple[int, float]  # bytes and seconds
SEGMENTS = 3  # eager, rendezvous and large messages
LEAST_POINTS = 3  # sizes in a segment; two would fit any noise
CLOCK_ERROR = 0.01  # relative error below which a better fit is not significant

LEAST_STEP = 0.8
"""Least ratio of the seconds at the start of a segment to those at the end of the one before.

Larger messages cost about as much or more; libraries that change their algorithm may be a little faster."""

DEFAULT_ALGORITHM = {
    "broadcast": "binomial",
    "allgather": "bruck",
    "reduce_scatter": "recursive_halving",
    "allreduce": "rabenseifner",
    "scatter": "linear",
    "gather": "linear",
}
"""Algorithm of an operation if the measurements do not distinguish them: one size of group fits all equally well."""

LEAST_OVERHEAD = 1e-6  # seconds; less than that is noise
LARGE_BYTES = 1 << 16  # sizes for which the accuracy of a machine file is stated

# -- linear models ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearFit:
    """Seconds per unit of every feature, none negative, and their error over the fitted samples."""

    coefficients: tuple[float, ...]
    mean_relative_error: float

    def seconds(self, features: ArrayLike) -> NDArray[np.float64]:
        """Seconds for rows of features, or for one row."""
        return np.asarray(np.asarray(features, np.float64) @ np.array(self.coefficients))


def fit_linear(features: ArrayLike, seconds: ArrayLike) -> LinearFit:
    """Non-negative least squares on the relative error.

    The features, shape (samples, features), are the messages, bytes, multiply-adds, … of every sample. A feature that
    is 0 in all has coefficient 0. All seconds, shape (samples,), are above 0.
    """
    measured = np.asarray(seconds, np.float64)
    rows = np.asarray(features, np.float64) / measured[:, None]
    # Features differ by many orders of magnitude; the solver needs columns of similar length.
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale, np.ones(len(measured)))
    coefficients = solution / scale
    error = float(np.abs(rows @ coefficients - 1).mean())
    return LinearFit(tuple(coefficients.tolist()), error)


def fit_overhead(timings: Sequence[Timing]) -> MessageOverhead:
    """What a message takes from each of its ranks, from bytes and seconds."""
    rows = [(1, nbytes) for nbytes, _ in timings]
    message, byte = fit_linear(rows, [max(seconds, LEAST_OVERHEAD) for _, seconds in timings]).coefficients
    return MessageOverhead(message_seconds=message, seconds_per_byte=byte)


# -- alpha and beta by size ------------------------------------------------------------------------------------------


def fit_segments(
    timings: Iterable[Timing],
    counts_of: Callable[[int], CommunicationCounts] = lambda nbytes: CommunicationCounts(1, nbytes),
) -> tuple[Segment, ...]:
    """Alpha and beta by size.

    Every division of the measured sizes into runs of at least three is tried. The division with the lowest Bayesian
    information criterion is taken (Schwarz 1978), with three parameters for each further segment, among those in which
    no larger message is much cheaper than a smaller one. The median counts of a size that was measured several times. A
    segment ends half way, on a logarithmic scale, between its last size and the next. A single size does not determine
    alpha and beta: the fit meets that size. `counts_of` gives messages and bytes on the critical path, by the bytes of
    an operation; by default one message.
    """
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for nbytes, taken in timings:
        by_size[nbytes].append(taken)
    sizes = sorted(by_size)
    rows = np.array([(needed.messages, needed.nbytes) for needed in map(counts_of, sizes)])
    seconds = np.array([median(by_size[size]) for size in sizes])

    @cache
    def fit(start: int, stop: int) -> LinearFit:
        return fit_linear(rows[start:stop], seconds[start:stop])

    @cache
    def squares(start: int, stop: int) -> float:
        """Sum of the squared relative errors of a run of sizes."""
        return float(((fit(start, stop).seconds(rows[start:stop]) / seconds[start:stop] - 1) ** 2).sum())

    def criterion(cuts: tuple[int, ...]) -> float:
        parameters = 3 * (len(cuts) - 1) - 1  # alpha and beta of each, and the ends of all but the last
        error = sum(squares(start, stop) for start, stop in pairwise(cuts)) / len(sizes)
        return len(sizes) * log(error + CLOCK_ERROR**2) + parameters * log(len(sizes))

    def rises(cuts: tuple[int, ...]) -> bool:
        """Whether no segment begins much below the end of the one before, at the sizes next to the border."""
        for (start, border), (_, stop) in pairwise(pairwise(cuts)):
            nearby = rows[border - 1 : border + 1]
            if (fit(border, stop).seconds(nearby) < LEAST_STEP * fit(start, border).seconds(nearby)).any():
                return False
        return True

    divisions = (cuts for segments in range(1, SEGMENTS + 1) for cuts in _divisions(len(sizes), segments))
    best = min(filter(rises, divisions), key=criterion, default=(0, len(sizes)))
    ends = [sqrt(max(sizes[stop - 1], 1) * sizes[stop]) for stop in best[1:-1]] + [None]
    coefficients = (fit(start, stop).coefficients for start, stop in pairwise(best))
    return tuple(
        Segment(up_to_bytes=end, alpha_seconds=alpha, beta_seconds_per_byte=beta)
        for end, (alpha, beta) in zip(ends, coefficients, strict=True)
    )


def _divisions(points: int, segments: int) -> Iterable[tuple[int, ...]]:
    """All divisions of a row of points into runs of at least `LEAST_POINTS`; a single run may be shorter."""
    if segments == 1:
        return [(0, points)]
    inner = combinations(range(LEAST_POINTS, points - LEAST_POINTS + 1), segments - 1)
    return ((0, *cuts, points) for cuts in inner if all(high - low >= LEAST_POINTS for low, high in pairwise(cuts)))


# -- algorithms of collectives ---------------------------------------------------------------------------------------


def fit_collective(
    operation: str, timings: Mapping[int, Sequence[Timing]], *, spans_nodes: bool = False
) -> tuple[CollectiveCost, ...]:
    """Alpha and beta of a collective for every measured size of group, all with the same algorithm.

    In a group of one size all algorithms fit about equally well. The algorithm is chosen whose alpha and beta, fitted
    in a group of one size, best predict the seconds in groups of the next smaller and larger size. `timings` has bytes
    of the full vector and seconds by ranks, 2 or more.
    """

    def fit(algorithm: str, ranks: int) -> CollectiveCost:
        segments = fit_segments(timings[ranks], lambda nbytes: counts(operation, algorithm, nbytes, ranks))
        return CollectiveCost(
            operation=operation, ranks=ranks, spans_nodes=spans_nodes, algorithm=algorithm, segments=segments
        )

    candidates = {
        algorithm: tuple(fit(algorithm, ranks) for ranks in sorted(timings)) for algorithm in ALGORITHMS[operation]
    }
    default = DEFAULT_ALGORITHM.get(operation)
    best = min(candidates, key=lambda name: (_extrapolation_error(candidates[name], timings), name != default))
    return candidates[best]


def _extrapolation_error(costs: Sequence[CollectiveCost], timings: Mapping[int, Sequence[Timing]]) -> float:
    """Mean relative error of the seconds in groups of each size as predicted from the next smaller and larger size."""
    errors = [
        abs(cost.seconds(nbytes, other.ranks) / seconds - 1)
        for pair in pairwise(costs)
        for cost, other in (pair, pair[::-1])
        for nbytes, seconds in timings[other.ranks]
    ]
    return float(np.mean(errors)) if errors else 0.0


# -- all operations, with errors on held-out sizes -------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutError:
    """Relative error of predicted seconds on held-out sizes."""

    sizes: int
    mean: float
    max: float


@dataclass(frozen=True)
class FittedOperation:
    """The fit of an operation in a group, with its samples, fitted and held out.

    ``"iallreduce"`` has the cost of the blocking all-reduce, and a factor on its seconds; the factor of others is 1.
    """

    operation: str
    cost: CollectiveCost
    factor: float
    samples: tuple[TimedCase, ...]

    def seconds(self, nbytes: int) -> float:
        """Predicted seconds in the measured group."""
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
    kinds: defaultdict[tuple[str, bool], defaultdict[int, list[TimedCase]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        kinds[sample.operation, sample.spans_nodes][sample.ranks].append(sample)
    blocking = [
        fit
        for (operation, spans_nodes), by_ranks in kinds.items()
        if operation != "iallreduce"
        for fit in _fit_operation(operation, spans_nodes, by_ranks)
    ]
    factor = _nonblocking_factor(samples, blocking)
    nonblocking = [
        FittedOperation(
            "iallreduce", fit.cost, factor, tuple(kinds["iallreduce", fit.cost.spans_nodes][fit.cost.ranks])
        )
        for fit in blocking
        if fit.operation == "allreduce" and ("iallreduce", fit.cost.spans_nodes) in kinds
    ]
    return (*blocking, *nonblocking)


def _nonblocking_factor(samples: Sequence[TimedCase], fits: Sequence[FittedOperation]) -> float:
    """Median over sizes and groups of the time of a non-blocking all-reduce over that of the fitted blocking one.

    Only large sizes count if there are any, and no held-out ones; 1 without samples.
    """
    costs = {(fit.cost.ranks, fit.cost.spans_nodes): fit.cost for fit in fits if fit.operation == "allreduce"}
    ratios = [
        (sample.nbytes, sample.seconds / costs[sample.ranks, sample.spans_nodes].seconds(sample.nbytes, sample.ranks))
        for sample in samples
        if sample.operation == "iallreduce" and not sample.held_out
    ]
    large = [ratio for nbytes, ratio in ratios if nbytes >= LARGE_BYTES]
    return median(large or [ratio for _, ratio in ratios] or [1.0])


def _fit_operation(
    operation: str, spans_nodes: bool, by_ranks: Mapping[int, Sequence[TimedCase]]
) -> Iterable[FittedOperation]:
    timings = {
        ranks: [(sample.nbytes, sample.seconds) for sample in samples if not sample.held_out]
        for ranks, samples in by_ranks.items()
    }
    for cost in fit_collective(operation, timings, spans_nodes=spans_nodes):
        own = tuple(by_ranks[cost.ranks])
        large = FittedOperation(operation, cost, 1.0, own).held_out_error(LARGE_BYTES)
        known = {"held_out_error": large.mean if large else None, "ranks_per_node": own[0].ranks_per_node}
        yield FittedOperation(operation, cost.model_copy(update=known), 1.0, own)


# -- noise -----------------------------------------------------------------------------------------------------------


def fit_noise(networks: Sequence[Sequence[float]]) -> float:
    """Mean delay of a computation relative to its median, with delays taken as exponential.

    The interquartile range of a network's rounds is divided by its expectation for exponential delays of mean 1; the
    result is the trimmed mean over the networks, each with the seconds of two or more rounds. It is robust against a
    few slow rounds and a few disturbed networks. Of n exponential delays of mean 1 the i-th smallest is expected to be
    1/n + 1/(n-1) + ... + 1/(n-i+1) (Rényi 1953). Quartiles are interpolated linearly between delays, and their
    expectations between these.
    """
    found = sorted(
        _quartile_range(rounds) / (_expected_quartile_range(len(rounds)) * float(np.median(rounds)))
        for rounds in networks
    )
    cut = int(0.1 * len(found))
    return float(np.mean(found[cut : len(found) - cut]))


def _quartile_range(seconds: Sequence[float]) -> float:
    low, high = np.quantile(seconds, (0.25, 0.75))
    return float(high - low)


@lru_cache
def _expected_quartile_range(count: int) -> float:
    return _quartile_range(np.cumsum(1 / np.arange(count, 0, -1)).tolist())
