"""Places of the stages of a layout on nodes, and the ranks that share replicas there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from hybridnn.parallel.places import NodeFilling, StageShapes
from hybridnn.pipeline.layout import Layout

Placement = tuple[int, ...]  # ranks of a batch group on each of its nodes


@dataclass(frozen=True)
class StagePlace:
    """Place of a stage's ranks on nodes; equal for stages that differ only in which nodes these are."""

    filling: NodeFilling
    first: int  # position of the first rank
    batch: int
    model: int

    @property
    def repeats(self) -> bool:
        """Whether the ranks of all nodes of the stage follow one another, the same number from each."""
        return self.first + self.batch * self.model <= self.filling.end_of_grouped

    @property
    def nodes(self) -> NDArray[np.int64]:
        """Node of every rank, numbered from anywhere, shape (batch, model)."""
        return self.filling.nodes(self.first, self.first + self.batch * self.model).reshape(self.batch, self.model)


@dataclass(frozen=True)
class GridPlaces:
    """Places of the stages of a grid on nodes."""

    stages: StageShapes
    firsts: tuple[int, ...]  # position of the first rank of every stage, and the number of all ranks
    filling: NodeFilling

    @cached_property
    def of_stages(self) -> tuple[StagePlace, ...]:
        """Place of every stage, with numbers of its nodes by itself."""
        return tuple(chain.from_iterable(map(self.of, range(len(self.stages)))))

    def of(self, *stages: int) -> tuple[StagePlace, ...]:
        """Places of some stages, with common numbers of their nodes: as near to node 0 as possible."""
        moved = 0
        if max(self.firsts[stage + 1] for stage in stages) <= self.filling.end_of_grouped:
            moved = min(self.firsts[stage] for stage in stages) // self.filling.grouped * self.filling.grouped
        return tuple(StagePlace(self.filling, self.firsts[stage] - moved, *self.stages[stage]) for stage in stages)


@lru_cache(1 << 8)
def grid_places(stages: StageShapes, ranks_per_node: int) -> GridPlaces:
    """Places of the stages of a grid whose ranks fill nodes one after another."""
    firsts, widest = tuple(accumulate(map(prod, stages), initial=0)), max(model for _, model in stages)
    has_rest = ranks_per_node > widest and ranks_per_node % widest > 0
    full, last = divmod(firsts[-1], ranks_per_node)
    sizes = tuple(size for size in ((full, ranks_per_node), (1, last)) if min(size) > 0)
    return GridPlaces(stages, firsts, NodeFilling(sizes, widest if has_rest else 1))


def replica_groups(layout: Layout, stage: int) -> dict[Placement, int]:
    """Ranks that share a replica, on each node of a batch group; (1, 1, …) if every rank has its own.

    Returns
    -------
    dict
        From every placement that occurs in the stage to its number of batch groups.
    """
    batch, model = layout.stages[stage]
    if not layout.shared_replicas:
        return _own_replicas(batch, model)
    return _batch_group_placements(grid_places(layout.stages, layout.node_ranks or layout.ranks).of_stages[stage])


def has_own_replicas(layout: Layout, stage: int) -> bool:
    """Whether there is a batch group in the stage whose ranks all have replicas of their own."""
    return min(map(max, replica_groups(layout, stage))) == 1


@lru_cache(1 << 12)
def _batch_group_placements(place: StagePlace) -> dict[Placement, int]:
    """Number of batch groups of a stage by placement."""
    found: Counter[Placement] = Counter()
    for group, times in zip(*distinct_neighbours(place.nodes.T), strict=True):
        found[tuple(np.unique(group, return_counts=True)[1].tolist())] += int(times)
    return dict(found)


@lru_cache(1 << 8)
def _own_replicas(batch: int, model: int) -> dict[Placement, int]:
    """The placement of ranks that share no replicas."""
    return {(1,) * batch: model}


def distinct_neighbours(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that differ from the one before, and of each the number of equal rows that follow one another."""
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return rows[starts], np.diff(starts, append=len(rows))
