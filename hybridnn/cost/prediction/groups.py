"""What the groups of a layout cost on a machine: where its ranks are placed, and what their collectives take."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hybridnn.cost.crossings import Crossings, crossings_of, one_per_node, way_out
from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.workload import Layout, nodes_of_stage

Widths = tuple[tuple[int, int], ...]


class Groups:
    """The groups of a layout on a machine.

    Ranks fill its nodes one after another and are placed in the grid as the trainer places them. Groups along one axis
    communicate at once; a collective, or a message, takes what it takes for the group, or the pair, that is slowest.

    Parameters
    ----------
    layout : Layout
    machine : Machine
    """

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self._layout, self._machine = layout, machine
        self.ranks_per_node = machine.node_ranks(layout.ranks)
        self._one_node = layout.ranks <= self.ranks_per_node

    @property
    def busy_ranks(self) -> int:
        """Ranks of a full node."""
        return min(self._layout.ranks, self.ranks_per_node)

    def model(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective in the model groups of a stage."""
        return self._collective(operation, nbytes, self._layout.stages[stage][1], self._axes(stage)[1])

    def batch(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective in the batch groups of a stage."""
        return self._collective(operation, nbytes, self._layout.stages[stage][0], self._axes(stage)[0])

    def sharers(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective among the batch ranks of a node that share a replica."""
        return self._collective(operation, nbytes, max(map(max, self._layout.sharers(stage))), None)

    def owners(self, operation: str, nbytes: int, stage: int, sharers: tuple[int, ...]) -> float:
        """Time of a collective among the owners of a slice, one per node; those of all slices communicate at once.

        `sharers` are the ranks of their batch group on each of its nodes.
        """
        flows = min(max(sharers) * self._layout.stages[stage][1], self.ranks_per_node)
        return self._collective(operation, nbytes, len(sharers), one_per_node(len(sharers), flows))

    def world(self, operation: str, nbytes: int) -> float:
        """Time of a collective among all ranks."""
        crossings = None if self._one_node else _of_world(self._layout.stages, self.ranks_per_node)
        return self._collective(operation, nbytes, self._layout.ranks, crossings)

    def message(self, nbytes: float, sender: int, receiver: int) -> float:
        """Time of a message from one stage to another, whose ranks all send at once."""
        return self.message_by(nbytes, self.flows(sender, receiver))

    def message_by(self, nbytes: float, flows: float) -> float:
        """Time of a message where so many leave a node at once; none where both stages are on one node."""
        return self._machine.message_seconds(nbytes, spans_nodes=flows > 0, flows=flows)

    def flows(self, sender: int, receiver: int) -> float:
        """Messages between two stages that leave a node at once, or come to it, on the node with most of them."""
        return 0.0 if self._one_node else _flows(self._layout.stages, self.ranks_per_node, sender, receiver)

    def _axes(self, stage: int) -> tuple[Crossings | None, Crossings | None]:
        return (None, None) if self._one_node else _of_axes(self._layout.stages, self.ranks_per_node, stage)

    def _collective(self, operation: str, nbytes: int, ranks: int, crossings: Crossings | None) -> float:
        return self._machine.collective_seconds(operation, nbytes, ranks, crossings=crossings)


KEPT = 1 << 12
"""Stages, and pairs of stages, whose placement is kept: the layouts of a plan share their grids."""


@lru_cache(KEPT)
def _of_axes(stages: Widths, ranks_per_node: int, stage: int) -> tuple[Crossings, Crossings]:
    """Crossings of the batch groups and of the model groups of a stage."""
    nodes = nodes_of_stage(stages, ranks_per_node, stage)
    return crossings_of(nodes.T), crossings_of(nodes)


@lru_cache
def _of_world(stages: Widths, ranks_per_node: int) -> Crossings:
    nodes = [nodes_of_stage(stages, ranks_per_node, stage).ravel() for stage in range(len(stages))]
    return crossings_of(np.concatenate(nodes)[None])


@lru_cache(KEPT)
def _flows(stages: Widths, ranks_per_node: int, sender: int, receiver: int) -> float:
    """As `Groups.flows`; a rank sends to every batch rank of the other stage that has some of its samples."""
    source, target = (nodes_of_stage(stages, ranks_per_node, stage) for stage in (sender, receiver))
    senders, receivers, parts = _pieces(len(source), len(target))
    model_ranks = np.arange(target.shape[1])
    ends = source[senders][:, model_ranks % source.shape[1]], target[receivers]
    return way_out(*ends, np.broadcast_to(parts[:, None], ends[1].shape))


def _pieces(senders: int, receivers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Batch ranks of two stages that have samples in common, and what part of the larger block they are."""
    whole = senders * receivers
    starts = np.unique(np.concatenate((np.arange(senders) * receivers, np.arange(receivers) * senders)))
    parts = np.diff(starts, append=whole) * min(senders, receivers) / whole
    return starts // receivers, starts // senders, parts
