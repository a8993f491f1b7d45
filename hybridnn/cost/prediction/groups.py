"""Groups of a layout on a machine: their places on nodes, their collectives and messages, and the times of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.collectives import Crossings, concurrent_messages, crossings_of
from hybridnn.cost.machine import Machine, MessageOverhead
from hybridnn.parallel.grid import StageShapes
from hybridnn.pipeline.layout import Layout

CACHE_SIZE = 1 << 12  # stages, and pairs of stages: the layouts of a plan have many grids in common

Placement = tuple[int, ...]  # ranks of a batch group on each of its nodes


@dataclass(frozen=True)
class NodeFilling:
    """Nodes of the positions of a grid, as of `hybridnn.parallel.nodes.place_ranks`.

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


def replica_groups(layout: Layout, stage: int) -> dict[Placement, int]:
    """Number of batch groups by placement, for every placement that occurs in the stage.

    A placement has the ranks that share a replica on each node; (1, 1, …) if every rank has its own.
    """
    batch, model = layout.stages[stage]
    if not layout.shared_replicas:
        return _own_replicas(batch, model)
    return _batch_group_placements(grid_places(layout.stages, layout.node_ranks or layout.ranks).of_stages[stage])


@lru_cache(CACHE_SIZE)
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


# -- collectives and messages ------------------------------------------------------------------------------------------


class Collective(NamedTuple):
    """A collective of the groups of a kind, all at the same time: bytes and ranks of one, seconds of the slowest.

    Operations are named, and bytes of the full vector counted, as in `hybridnn.comm.recorder`.
    """

    operation: str
    nbytes: int
    ranks: int
    seconds: float

    @property
    def bytes_sent(self) -> int:
        """Bytes that the ranks of one group send."""
        sent = bytes_sent_by_rank(self.operation, self.nbytes, self.ranks, is_root=True)
        return sent if self.operation in ("broadcast", "scatter") else sent * self.ranks


class RankGroups(NamedTuple):
    """Groups of a kind: ranks of one, and crossings of all, None inside a node."""

    machine: Machine
    ranks: int
    crossings: Crossings | None

    def collective(self, operation: str, nbytes: int) -> Collective:
        """A collective in all of them."""
        seconds = self.machine.collective_seconds(operation, nbytes, self.ranks, crossings=self.crossings)
        return Collective(operation, nbytes, self.ranks, seconds)


class Groups:
    """The groups of a layout on a machine.

    Ranks fill the nodes one after another and are placed in the grid as the trainer places them. All groups along an
    axis communicate at the same time; a collective, or a message, takes as long as the slowest group, or pair.
    """

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self._layout, self.machine = layout, machine
        self._ranks_per_node = machine.node_ranks(layout.ranks)
        self._one_node = layout.ranks <= self._ranks_per_node
        self._places = grid_places(layout.stages, self._ranks_per_node)
        self._flows_between: dict[tuple[int, int], float] = {}

    @property
    def busy_ranks(self) -> int:
        """Most ranks on a node."""
        return min(self._layout.ranks, self._ranks_per_node)

    def model(self, stage: int) -> RankGroups:
        """The model groups of a stage."""
        return RankGroups(self.machine, self._layout.stages[stage][1], self._axes(stage)[1])

    def batch(self, stage: int) -> RankGroups:
        """The batch groups of a stage."""
        return RankGroups(self.machine, self._layout.stages[stage][0], self._axes(stage)[0])

    def sharers(self, stage: int) -> RankGroups:
        """The batch ranks of a node that share a replica."""
        return RankGroups(self.machine, max(map(max, replica_groups(self._layout, stage))), None)

    def owners(self, stage: int, placement: Placement) -> RankGroups:
        """The owners of a slice, one on each node of a batch group with that placement; those of all slices at once."""
        nodes, groups = len(placement), min(max(placement) * self._layout.stages[stage][1], self._ranks_per_node)
        return RankGroups(self.machine, nodes, crossings_of(np.arange(nodes)[None], np.array([groups])))

    @property
    def world(self) -> RankGroups:
        """All ranks."""
        crossings = None if self._one_node else _world_crossings(self._places.filling)
        return RankGroups(self.machine, self._layout.ranks, crossings)

    def overhead(self, sender: int, receiver: int) -> MessageOverhead | None:
        """What a message between two stages takes from its ranks while they compute; None if it is unknown."""
        return self.machine.overhead_between_nodes if self.flows(sender, receiver) else None

    def flows(self, sender: int, receiver: int) -> float:
        """Messages between two stages that leave or enter a node at the same time, on the node with most."""
        if self._one_node:
            return 0.0
        if (sender, receiver) not in self._flows_between:
            self._flows_between[sender, receiver] = _flows(*self._places.of(sender, receiver))
        return self._flows_between[sender, receiver]

    def _axes(self, stage: int) -> tuple[Crossings | None, Crossings | None]:
        return (None, None) if self._one_node else _axis_crossings(self._places.of_stages[stage])

    def like(self, stage: int) -> Hashable:
        """What is equal for stages whose groups are: their ranks, and how these are placed on nodes."""
        placements = tuple(replica_groups(self._layout, stage).items())
        return self._layout.stages[stage], *self._axes(stage), placements


@lru_cache(CACHE_SIZE)
def _axis_crossings(place: StagePlace) -> tuple[Crossings, Crossings]:
    """Crossings of the batch groups and of the model groups of a stage."""
    nodes = place.nodes
    return crossings_of(*distinct_neighbours(nodes.T)), crossings_of(nodes[: _different_model_groups(place)])


def _different_model_groups(place: StagePlace) -> int:
    """Number of the stage's first model groups to which all others are equal, on other nodes, and their neighbours.

    After g / gcd(g, m) groups of m ranks, with g ranks from every node, a group begins where the first one does on its
    node. A node's ranks are in at most one more than so many groups, that is, within two such periods.
    """
    period = place.filling.grouped // gcd(place.filling.grouped, place.model)
    return 2 * period + 1 if place.repeats else place.batch


@lru_cache
def _world_crossings(filling: NodeFilling) -> Crossings:
    return crossings_of(filling.nodes(0, filling.ranks)[None])


@lru_cache(CACHE_SIZE)
def _flows(sender: StagePlace, receiver: StagePlace) -> float:
    """As `Groups.flows`; a rank sends to every batch rank of the other stage that has some of its samples."""
    source, target = sender.nodes, receiver.nodes
    senders, receivers, fractions = _common_samples(len(source), len(target))
    model_ranks = np.arange(target.shape[1])
    source_nodes, target_nodes = source[senders][:, model_ranks % source.shape[1]], target[receivers]
    return concurrent_messages(source_nodes, target_nodes, np.broadcast_to(fractions[:, None], target_nodes.shape))


def _common_samples(senders: int, receivers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs of batch ranks of two stages with samples in common, and what fraction of the larger block those are."""
    units = senders * receivers
    starts = np.unique(np.concatenate((np.arange(senders) * receivers, np.arange(receivers) * senders)))
    fractions = np.diff(starts, append=units) * min(senders, receivers) / units
    return starts // receivers, starts // senders, fractions
