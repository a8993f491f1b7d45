"""Contention at the nodes: how many messages of a collective's rounds leave a node at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Nodes = NDArray[np.int64]
Pairs = tuple[Nodes, Nodes]
"""Members of a group that send, and those that receive from them."""


def _shift(ranks: int, distance: int) -> Pairs:
    senders = np.arange(ranks)
    return senders, (senders + distance) % ranks


def _pairs(ranks: int, distance: int) -> Pairs:
    power = 1 << (ranks.bit_length() - 1)
    folded = ranks - power
    # Of the first 2 `folded` ranks every even one is idle.
    members = np.concatenate((np.arange(1, 2 * folded, 2), np.arange(2 * folded, ranks)))
    return members, members[np.arange(power) ^ distance]


def _fold(ranks: int, distance: int) -> Pairs:
    idle = np.arange(0, 2 * (ranks - (1 << (ranks.bit_length() - 1))), 2)
    return idle, idle + 1


def _tree(ranks: int, distance: int) -> Pairs:
    senders = np.arange(min(distance, ranks - distance))
    return senders, senders + distance


def _scatter_tree(ranks: int, distance: int) -> Pairs:
    senders = np.arange(0, ranks - distance, 2 * distance)
    return senders, senders + distance


def _root(ranks: int, distance: int) -> Pairs:
    receivers = np.arange(1, ranks)
    return np.zeros_like(receivers), receivers


PATTERNS: Mapping[str, Callable[[int, int], Pairs]] = MappingProxyType(
    {
        "shift": _shift,
        "pairs": _pairs,
        "fold": _fold,
        "tree": _tree,
        "scatter tree": _scatter_tree,
        "root": _root,
    }
)
"""Senders and receivers of a round, by ranks of the group and distance.

A reduction or gather sends the other way: as many messages leave a node as enter it here. ``root`` is all rounds of the
root at once."""


class Crossings:
    """Groups that perform the same collective at the same time, by the nodes of their ranks.

    Parameters
    ----------
    nodes : NDArray of int, shape (groups, members)

    Attributes
    ----------
    ranks : int
        Members of a group.
    spans : bool
        Whether any group spans nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.ranks = nodes.shape[1]
        self.spans = bool((nodes != nodes[:, :1]).any())
        self._flows: dict[tuple[str, int], float] = {}

    def flows(self, pattern: str, distance: int) -> float:
        """Messages of a round that leave or enter a node at the same time, on the node with most of them.

        Of ``root``, whose rounds follow one another, a group counts once.
        """
        key = pattern, distance
        if key not in self._flows:
            self._flows[key] = self._count(pattern, distance) if self.spans else 0.0
        return self._flows[key]

    def _count(self, pattern: str, distance: int) -> float:
        if pattern == "root":
            roots = self._nodes[(self._nodes != self._nodes[:, :1]).any(axis=1), 0]
            return float(np.bincount(roots).max(initial=0))
        senders, receivers = PATTERNS[pattern](self.ranks, distance)
        return concurrent_messages(self._nodes[:, senders], self._nodes[:, receivers])


def concurrent_messages(senders: Nodes, receivers: Nodes, weights: NDArray[np.float64] | None = None) -> float:
    """Messages that leave or enter a node, on the node with most of them; 0 if all stay inside their nodes.

    Parameters
    ----------
    senders, receivers : NDArray of int
        Nodes of both ends of every message.
    weights : NDArray of float, optional
        Fraction of a full message that each one is.
    """
    crosses = senders != receivers
    fractions = None if weights is None else weights[crosses]
    ends = (np.bincount(side[crosses], fractions) for side in (senders, receivers))
    return max(float(counted.max(initial=0)) for counted in ends)


CACHE_SIZE = 1 << 12
"""Many layouts have stages of the same placement."""


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
