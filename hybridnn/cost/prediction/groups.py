"""Collectives and messages of a layout on a machine: placement of its groups on nodes, and their times."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.recorder import bytes_sent_by_rank
from hybridnn.cost.collectives import Crossings, concurrent_messages, crossings_of, one_per_node
from hybridnn.cost.machine import Machine, MessageOverhead
from hybridnn.cost.prediction.places import Placement, StagePlace, distinct_neighbours, grid_places, replica_groups
from hybridnn.parallel.places import NodeFilling
from hybridnn.pipeline.layout import Layout


class Collective(NamedTuple):
    """A collective of the groups along an axis, all at the same time: bytes and ranks of one, seconds of the slowest.

    Operations are named, and bytes of the full vector counted, as in `hybridnn.comm.recorder`.
    """

    operation: str
    axis: str
    nbytes: int
    ranks: int
    seconds: float

    @property
    def bytes_sent(self) -> int:
        """Bytes that the ranks of one group send."""
        sent = bytes_sent_by_rank(self.operation, self.nbytes, self.ranks, is_root=True)
        return sent if self.operation in ("broadcast", "scatter") else sent * self.ranks


class RankGroups(NamedTuple):
    """The groups along an axis: ranks of one, and crossings of all, None inside a node."""

    machine: Machine
    axis: str
    ranks: int
    crossings: Crossings | None

    def collective(self, operation: str, nbytes: int) -> Collective:
        """A collective in all of them."""
        seconds = self.machine.collective_seconds(operation, nbytes, self.ranks, crossings=self.crossings)
        return Collective(operation, self.axis, nbytes, self.ranks, seconds)


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
        return RankGroups(self.machine, "model", self._layout.stages[stage][1], self._axes(stage)[1])

    def batch(self, stage: int) -> RankGroups:
        """The batch groups of a stage."""
        return RankGroups(self.machine, "batch", self._layout.stages[stage][0], self._axes(stage)[0])

    def sharers(self, stage: int) -> RankGroups:
        """The batch ranks of a node that share a replica."""
        return RankGroups(self.machine, "batch", max(map(max, replica_groups(self._layout, stage))), None)

    def owners(self, stage: int, placement: Placement) -> RankGroups:
        """The owners of a slice, one on each node of a batch group with that placement; those of all slices at once."""
        groups = min(max(placement) * self._layout.stages[stage][1], self._ranks_per_node)
        return RankGroups(self.machine, "batch", len(placement), one_per_node(len(placement), groups))

    @property
    def world(self) -> RankGroups:
        """All ranks."""
        crossings = None if self._one_node else _world_crossings(self._places.filling)
        return RankGroups(self.machine, "world", self._layout.ranks, crossings)

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


CACHE_SIZE = 1 << 12  # stages, and pairs of stages: the layouts of a plan have many grids in common


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
