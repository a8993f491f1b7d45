"""Places of a grid's ranks: which rank is at every position of the grid, and on which node.

Positions vary fastest along model, then batch, then pipeline. Model groups exchange activations in every layer, so they
get the fastest links: each node first provides as many complete model groups as it has ranks for, and only the
remaining ranks of all nodes form groups across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

StageShapes = tuple[tuple[int, int], ...]  # batch and model ranks of every stage


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
