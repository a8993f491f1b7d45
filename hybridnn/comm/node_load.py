"""Load of the nodes of a job: the cores that processes of others keep busy, and how far that disturbs the ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridnn.comm.agreement import gather_texts
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import is_in_process
from hybridnn.comm.threads import own_cores
from hybridnn.utils.load import LoadMeter, counters_id

MOST_DISTURBANCE = 0.1  # share of the cores in use; times of a run with more of it are disturbed


@dataclass(frozen=True)
class NodeLoad:
    """Load of a node over some time, of the cores that its ranks may use; nodes that share a kernel are one."""

    others: float  # cores that processes other than the ranks kept busy, on average
    cores: int
    threads: int  # of all ranks

    @property
    def disturbance(self) -> float:
        """Cores that the others took beyond those that the ranks leave free, as a share of the cores in use."""
        free = max(0, self.cores - self.threads)
        return max(0.0, self.others - free) / min(self.threads, self.cores)


def disturbance_text(share: float) -> str:
    """A disturbance in words."""
    return f"disturbed: processes of others took {share:.0%} of the cores in use"


def node_loads(world: Group, node_group: Group, meter: LoadMeter, threads: int) -> tuple[NodeLoad, ...]:
    """Load of every node since the last reading of the meter; collective, with one small message of each rank.

    Parameters
    ----------
    node_group : Group
        Ranks of this node.
    meter : LoadMeter
        Read on every rank.
    threads : int
        Of a rank.

    Returns
    -------
    tuple of NodeLoad
        In the order of their lowest rank, one for all nodes that share a kernel, whose counters are the same; empty for
        ranks in one process and where a system does not count the time of its cores.
    """
    busy, own = meter.read()
    if is_in_process():
        return ()
    facts = {"counters": counters_id(), "own": own, "cores": sorted(own_cores()), "threads": threads}
    facts["busy"] = busy if node_group.rank == 0 else {}
    return loads_of(list(map(json.loads, gather_texts(world, json.dumps(facts)))))


def loads_of(ranks: Sequence[dict[str, Any]]) -> tuple[NodeLoad, ...]:
    """The loads of the nodes, from what `node_loads` gathers of every rank; empty if a node does not know its own."""
    ranks_by_counters: dict[str, list[dict[str, Any]]] = {}
    for facts in ranks:
        ranks_by_counters.setdefault(facts["counters"], []).append(facts)
    found = []
    for members in ranks_by_counters.values():
        busy: dict[str, float] = next((facts["busy"] for facts in members if facts["busy"]), {})
        cores = {core for facts in members for core in facts["cores"] if str(core) in busy}
        if not cores:
            return ()
        others = sum(busy[str(core)] for core in cores) - sum(facts["own"] for facts in members)
        found.append(NodeLoad(max(0.0, others), len(cores), sum(facts["threads"] for facts in members)))
    return tuple(found)
