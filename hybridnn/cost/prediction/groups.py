"""What the groups of a layout cost on a machine: where its ranks stand, and what their collectives take.

Ranks fill nodes one after another, fastest along model, then batch, then pipeline.
"""

from __future__ import annotations

from functools import cached_property

from hybridnn.cost.machine.machine import Machine
from hybridnn.cost.prediction.workload import Layout

__all__ = ["Groups"]


class Groups:
    """The groups of a layout on a machine.

    Parameters
    ----------
    layout : Layout
    machine : Machine
    """

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self._layout, self._machine = layout, machine
        self.ranks_per_node = machine.node_ranks(layout.ranks)
        self._known: dict[tuple[str, int, int, bool, int], float] = {}  # equal layers ask for equal collectives

    @cached_property
    def busy_ranks(self) -> int:
        """Ranks of a full node."""
        return min(self._layout.ranks, self.ranks_per_node)

    def model(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective in a model group; such groups stand inside a node where they fit."""
        _, model = self._layout.stages[stage]
        spans = model > self.ranks_per_node
        return self._collective(operation, nbytes, model, spans, 1)

    def batch(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective in a batch group; all batch groups of the stage communicate at once."""
        batch, model = self._layout.stages[stage]
        first = self._layout.first_rank(stage)
        spans = self._node(first) != self._node(first + (batch - 1) * model)
        flows = min(model, self.ranks_per_node)
        return self._collective(operation, nbytes, batch, spans, flows)

    def sharers(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective among the batch ranks of a node that share a replica."""
        return self._collective(operation, nbytes, max(self._layout.sharers(stage)), False, 1)

    def owners(self, operation: str, nbytes: int, stage: int) -> float:
        """Time of a collective among the owners of a slice, one per node; those of all slices communicate at once."""
        sharers, (_, model) = self._layout.sharers(stage), self._layout.stages[stage]
        flows = min(max(sharers) * model, self.ranks_per_node)
        return self._collective(operation, nbytes, len(sharers), True, flows)

    def world(self, operation: str, nbytes: int) -> float:
        """Time of a collective among all ranks."""
        ranks = self._layout.ranks
        return self._collective(operation, nbytes, ranks, ranks > self.ranks_per_node, 1)

    def message(self, nbytes: float, sender: int, receiver: int) -> float:
        """Time of a message from one stage to another, whose replicas all send at once."""
        low, high = (self._node(self._layout.first_rank(stage)) for stage in (sender, receiver))
        batch, model = self._layout.stages[sender]
        flows = min(batch * model, self.ranks_per_node)
        return self._machine.message_seconds(nbytes, spans_nodes=low != high, flows=flows)

    def _collective(self, operation: str, nbytes: int, ranks: int, spans_nodes: bool, flows: int) -> float:
        key = (operation, nbytes, ranks, spans_nodes, flows)
        if key not in self._known:
            self._known[key] = self._machine.collective_seconds(
                operation, nbytes, ranks, spans_nodes=spans_nodes, flows=flows
            )
        return self._known[key]

    def _node(self, rank: int) -> int:
        return rank // self.ranks_per_node
