"""Contention at the nodes: how many messages of a collective's rounds leave a node at the same time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.collectives import Pattern, from_root

Nodes = NDArray[np.int64]


class Crossings:
    """Groups that perform the same collective at the same time, by the nodes of their ranks, shape (groups, members).

    `ranks` are the members of a group; `spans` is whether any group spans nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.ranks = nodes.shape[1]
        self.spans = bool((nodes != nodes[:, :1]).any())
        self._flows: dict[tuple[Pattern, int], float] = {}

    def flows(self, pattern: Pattern, distance: int) -> float:
        """Messages of a round that leave or enter a node at the same time, on the node with most of them.

        Of `from_root`, whose rounds follow one another, a group counts once.
        """
        key = pattern, distance
        if key not in self._flows:
            self._flows[key] = self._count(pattern, distance) if self.spans else 0.0
        return self._flows[key]

    def _count(self, pattern: Pattern, distance: int) -> float:
        if pattern is from_root:
            roots = self._nodes[(self._nodes != self._nodes[:, :1]).any(axis=1), 0]
            return float(np.bincount(roots).max(initial=0))
        senders, receivers = pattern(self.ranks, distance)
        return concurrent_messages(self._nodes[:, senders], self._nodes[:, receivers])


def concurrent_messages(senders: Nodes, receivers: Nodes, weights: NDArray[np.float64] | None = None) -> float:
    """Messages that leave or enter a node, on the node with most of them; 0 if all stay inside their nodes.

    `senders` and `receivers` are the nodes of both ends of every message, `weights` the fractions of full messages.
    """
    crosses = senders != receivers
    fractions = None if weights is None else weights[crosses]
    ends = (np.bincount(side[crosses], fractions) for side in (senders, receivers))
    return max(float(counted.max(initial=0)) for counted in ends)


CACHE_SIZE = 1 << 12  # many layouts have stages of the same placement


def crossings_of(nodes: Nodes) -> Crossings:
    """Crossings of groups whose ranks are on `nodes`, shape (groups, members), numbered from anywhere."""
    moved = np.ascontiguousarray(nodes - nodes.min())
    return _crossings_of_bytes(moved.shape[1], moved.tobytes())


@lru_cache(CACHE_SIZE)
def one_per_node(members: int, groups: int) -> Crossings:
    """Crossings of groups with one rank on every node each."""
    return Crossings(np.tile(np.arange(members), (groups, 1)))


@lru_cache(CACHE_SIZE)
def _crossings_of_bytes(members: int, nodes: bytes) -> Crossings:
    return Crossings(np.frombuffer(nodes, np.int64).reshape(-1, members))
