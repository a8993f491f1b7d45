"""Messages of a collective's rounds that leave their node at once, from the nodes of the ranks of its groups."""

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
    left = 1 << (ranks.bit_length() - 1)
    extra = ranks - left
    # Of the first 2 `extra` ranks every even one waits.
    members = np.concatenate((np.arange(1, 2 * extra, 2), np.arange(2 * extra, ranks)))
    return members, members[np.arange(left) ^ distance]


def _fold(ranks: int, distance: int) -> Pairs:
    waiting = np.arange(0, 2 * (ranks - (1 << (ranks.bit_length() - 1))), 2)
    return waiting, waiting + 1


def _tree(ranks: int, distance: int) -> Pairs:
    senders = np.arange(min(distance, ranks - distance))
    return senders, senders + distance


def _scatter_tree(ranks: int, distance: int) -> Pairs:
    senders = np.arange(0, ranks - distance, 2 * distance)
    return senders, senders + distance


def _root(ranks: int, distance: int) -> Pairs:
    others = np.arange(1, ranks)
    return np.zeros_like(others), others


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
"""Senders and receivers of a round, by ranks of the group and distance. Where a collective sends the other way (a
reduction, a gather), as many messages leave a node as come to it here; ``root`` has all its rounds at once."""


class Crossings:
    """Groups that carry out the same collective at once, and the nodes of their ranks.

    Parameters
    ----------
    nodes : NDArray of int, shape (groups, members)

    Attributes
    ----------
    ranks : int
        Members of a group.
    spans : bool
        Whether some group has ranks on several nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.ranks = nodes.shape[1]
        self.spans = bool((nodes != nodes[:, :1]).any())
        self._known: dict[tuple[str, int], float] = {}

    def flows(self, pattern: str, distance: int) -> float:
        """Messages of a round that leave one node at once, or come to it, on the node with most of them.

        Of ``root`` those of one round after another, so that a group counts once.
        """
        key = pattern, distance
        if key not in self._known:
            self._known[key] = self._counted(pattern, distance) if self.spans else 0.0
        return self._known[key]

    def _counted(self, pattern: str, distance: int) -> float:
        senders, receivers = PATTERNS[pattern](self.ranks, distance)
        if pattern == "root":
            spanning = self._nodes[(self._nodes != self._nodes[:, :1]).any(axis=1), 0]
            return float(np.bincount(spanning).max(initial=0))
        return way_out(self._nodes[:, senders], self._nodes[:, receivers])


def way_out(senders: Nodes, receivers: Nodes, weights: NDArray[np.float64] | None = None) -> float:
    """Messages that leave one node at once, or come to it, on the node with most; 0 where all stay inside.

    Parameters
    ----------
    senders, receivers : NDArray of int
        Nodes of both ends of every message.
    weights : NDArray of float, optional
        What part of a message each one is.
    """
    crosses = senders != receivers
    parts = None if weights is None else weights[crosses]
    ends = (np.bincount(side[crosses], parts) for side in (senders, receivers))
    return max(float(counted.max(initial=0)) for counted in ends)


KEPT = 1 << 12
"""Placements of groups that are kept: the stages of many layouts lie alike."""


def crossings_of(nodes: Nodes) -> Crossings:
    """The crossings of groups whose ranks are on `nodes`, shape (groups, members), by any numbers."""
    moved = np.ascontiguousarray(nodes - nodes.min())
    return _kept_crossings(moved.shape[1], moved.tobytes())


@lru_cache(KEPT)
def one_per_node(members: int, groups: int) -> Crossings:
    """The crossings of so many groups at once, each of which has one rank on every node."""
    return Crossings(np.tile(np.arange(members), (groups, 1)))


@lru_cache(KEPT)
def _kept_crossings(members: int, nodes: bytes) -> Crossings:
    return Crossings(np.frombuffer(nodes, np.int64).reshape(-1, members))
