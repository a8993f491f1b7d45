"""The fits of all measured operations, and how well each predicts the sizes that were held out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from hybridnn.cost.calibration.fit import fit_collective
from hybridnn.cost.calibration.samples import Sample
from hybridnn.cost.machine.machine import CollectiveCost

__all__ = ["LARGE_BYTES", "FittedOperation", "HeldOutError", "fit_operations", "nonblocking_factor"]

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
    samples : tuple of Sample
        Fitted and held out.
    """

    operation: str
    cost: CollectiveCost
    factor: float
    samples: tuple[Sample, ...]

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


def fit_operations(samples: Sequence[Sample]) -> tuple[FittedOperation, ...]:
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


def nonblocking_factor(samples: Sequence[Sample], fits: Sequence[FittedOperation]) -> float:
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


def _fit(operation: str, spans_nodes: bool, samples: Sequence[Sample]) -> list[FittedOperation]:
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


def _of(samples: Sequence[Sample], operation: str, spans_nodes: bool, ranks: int) -> tuple[Sample, ...]:
    wanted = (operation, spans_nodes, ranks)
    return tuple(sample for sample in samples if (sample.operation, sample.spans_nodes, sample.ranks) == wanted)
