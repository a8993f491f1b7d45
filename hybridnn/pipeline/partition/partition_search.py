"""The best of all partitions of layers into stages and of stages over ranks, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["PlacedStages", "best_cuts", "best_stages"]


@dataclass(frozen=True)
class PlacedStages:
    """The first layers of a network in stages on the first ranks.

    Attributes
    ----------
    costs : tuple of float
        Seconds of every stage and of every boundary between them, the greatest first.
    stages : tuple of int
        Layers of every stage.
    replicas : tuple of int
        Ranks of every stage.
    """

    costs: tuple[float, ...] = ()
    stages: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()


StageSeconds = Mapping[tuple[int, int], Sequence[float]]
"""From the first layer of a stage and the one after its last to its seconds on 1, 2, … ranks."""


def best_stages(seconds: StageSeconds, boundaries: Sequence[float], stages: int, ranks: int) -> PlacedStages:
    """Put all layers into `stages` stages on exactly `ranks` ranks, so that the slowest part is as fast as possible.

    The recurrence of PipeDream (Harlap et al. 2018, section 3.2), with whole lists of costs, from the greatest down, in
    place of the greatest alone: of equally slow partitions the one whose next slowest part is faster is taken. Two
    prefixes keep their order when the same stage is put behind both, which is all that the recurrence needs.

    Parameters
    ----------
    seconds : mapping
        For every stage that there can be, its seconds for each number of replicas, from 1.
    boundaries : sequence of float
        Seconds of the boundary behind each layer but the last.
    stages : int
        At most the layers and at most the ranks.
    ranks : int

    Returns
    -------
    PlacedStages
        Of equal ones, that with more layers, then more ranks, in front.
    """
    layers = len(boundaries) + 1
    best = {(0, 0): PlacedStages()}
    for stage in range(1, stages + 1):
        after = stages - stage
        # Every later stage needs a layer and a rank, and the last stage takes all that is left.
        ends = range(stage if after else layers, layers - after + 1)
        totals = range(stage if after else ranks, ranks - after + 1)
        best = {(end, total): _extended(best, end, total, seconds, boundaries) for end in ends for total in totals}
    return best[layers, ranks]


def _extended(
    best: dict[tuple[int, int], PlacedStages],
    end: int,
    total: int,
    seconds: StageSeconds,
    boundaries: Sequence[float],
) -> PlacedStages:
    """The best of the prefixes with one more stage behind, so that `end` layers are on `total` ranks."""
    found: PlacedStages | None = None
    # From the longest prefix down, as that wins among equal ones.
    for (first, before), prefix in reversed(best.items()):
        if first >= end or before >= total:
            continue
        cost = seconds[first, end][total - before - 1]
        if found is not None and (cost > found.costs[0] or prefix.costs[:1] > found.costs[:1]):
            continue  # as most are: nothing has to be sorted for them
        boundary = boundaries[first - 1 : first]  # none before the first layer
        costs = tuple(sorted((*prefix.costs, cost, *boundary), reverse=True))
        if found is None or costs < found.costs:
            found = PlacedStages(costs, (*prefix.stages, end - first), (*prefix.replicas, total - before))
    assert found is not None, "there is a layer and a rank for every stage"
    return found


def best_cuts(seconds: Callable[[int, int, int], float], boundaries: Sequence[float], stages: int) -> tuple[int, ...]:
    """Counts of layers for stages that differ, so that the slowest stage or boundary is as fast as possible.

    The same recurrence with the ranks of every stage given.

    Parameters
    ----------
    seconds : callable
        From a stage, its first layer and the one after its last to its seconds.
    boundaries : sequence of float
        Seconds of the boundary behind each layer but the last.
    stages : int
        At most the layers.

    Returns
    -------
    tuple of int
        Of equal ones, that with more layers in front.
    """
    layers = len(boundaries) + 1
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        after = stages - stage - 1
        found = {}
        for end in range(stage + 1 if after else layers, layers - after + 1):
            # Negative counts, so that the least is that with more layers in front.
            found[end] = min(
                (max(cost, seconds(stage, first, end), *boundaries[first - 1 : first]), (*counts, first - end))
                for first, (cost, counts) in best.items()
                if first < end
            )
        best = found
    return tuple(-count for count in best[layers][1])
