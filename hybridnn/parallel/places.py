"""Places of a grid's ranks: which rank is at every position of the grid, and on which node.

Positions vary fastest along model, then batch, then pipeline. Model groups exchange activations in every layer, so they
get the fastest links: each node first provides as many complete model groups as it has ranks for, and only the
remaining ranks of all nodes form groups across nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import prod

import numpy as np
from numpy.typing import NDArray

StageShapes = tuple[tuple[int, int], ...]  # batch and model ranks of every stage
Placement = tuple[int, ...]  # ranks of a batch group on each of its nodes


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """The rank at each position of the grid.

    If ranks are numbered by node and every node has a multiple of `model` ranks, the order is 0, 1, 2, …

    Parameters
    ----------
    nodes : sequence of int
        Node of every rank; any integers, equal for ranks of one node.
    model : int
        Ranks of a model group, of the stage with most.
    """
    ranks_of: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks_of.setdefault(node, []).append(rank)
    filling = NodeFilling(tuple((1, len(ranks)) for ranks in ranks_of.values()), model)
    unplaced = [iter(ranks) for ranks in ranks_of.values()]
    return [next(unplaced[node]) for node in filling.nodes(0, filling.ranks)]


@dataclass(frozen=True)
class NodeFilling:
    """Nodes of the positions of a grid.

    They follow from the sizes of the nodes without a list of all ranks, which a plan for 100,000 ranks could not make
    for every layout.
    """

    sizes: tuple[tuple[int, int], ...]  # numbers of consecutive nodes, and the ranks of each of these
    model: int  # ranks of a model group; 1 where a node has no ranks left, or too few for one group

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return sum(map(prod, self.sizes))

    @property
    def grouped(self) -> int:
        """Ranks that each of the first nodes provides first."""
        return self._grouped(self.sizes[0][1])

    @property
    def end_of_grouped(self) -> int:
        """Position from which on the remaining ranks follow."""
        return sum(count * self._grouped(size) for count, size in self.sizes)

    def nodes(self, first: int, end: int) -> NDArray[np.int64]:
        """Nodes of the positions from `first` to before `end`."""
        firsts, nodes, widths = self._parts
        positions = np.arange(first, end)
        part = np.searchsorted(firsts, positions, side="right") - 1
        found: NDArray[np.int64] = nodes[part] + (positions - firsts[part]) // widths[part]
        return found

    def _grouped(self, size: int) -> int:
        return size // self.model * self.model

    @cached_property
    def _parts(self) -> NDArray[np.int64]:
        """Positions to which nodes give equal numbers of ranks: the first one, its node, and the ranks of each node."""
        parts, position = [], 0
        for provides in (self._grouped, lambda size: size - self._grouped(size)):
            node = 0
            for count, size in self.sizes:
                if provides(size):
                    parts.append((position, node, provides(size)))
                position, node = position + count * provides(size), node + count
        return np.array(parts).T


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


@lru_cache(1 << 12)
def replica_groups(place: StagePlace) -> dict[Placement, int]:
    """Number of batch groups of a stage by placement."""
    found: Counter[Placement] = Counter()
    for group, times in zip(*distinct_neighbours(place.nodes.T), strict=True):
        found[tuple(np.unique(group, return_counts=True)[1].tolist())] += int(times)
    return dict(found)


@lru_cache(1 << 8)
def own_replicas(batch: int, model: int) -> dict[Placement, int]:
    """The placement of ranks that share no replicas."""
    return {(1,) * batch: model}


def distinct_neighbours(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that differ from the one before, and of each the number of equal rows that follow one another."""
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return rows[starts], np.diff(starts, append=len(rows))
