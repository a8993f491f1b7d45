"""What rank 0 must know of every rank to judge them together: place, cores and threads."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridnn.comm.threads import THREAD_VARIABLES

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class RankFacts:
    """One rank, as rank 0 hears of it.

    Attributes
    ----------
    node : int
        The lowest rank on its node.
    host : str
    cores : tuple of int
        Cores that it may run on.
    machine_cores : int
        Cores of its node, whoever may use them.
    cpu_limit : float or None
        Processors that its container or its allocation may use at a time, where that is less than its cores.
    threads : int
        Threads of its BLAS.
    threads_set_by : str
        The environment variable that says so, with its value; empty if none does.
    wall_clock : float
        Seconds since 1970, read by all ranks at about the same time.
    """

    node: int
    host: str
    cores: tuple[int, ...]
    machine_cores: int
    cpu_limit: float | None
    threads: int
    threads_set_by: str
    wall_clock: float

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> RankFacts:
        """Make it again from the fields that were sent."""
        return cls(**{**facts, "cores": tuple(facts["cores"])})


def gather_facts(node: int, environment: Mapping[str, str], pools: Sequence[Mapping[str, Any]]) -> RankFacts:
    """Facts about this process.

    Parameters
    ----------
    node : int
        The lowest rank on this node.
    environment : mapping
        Its environment variables.
    pools : sequence of mapping
        Thread pools, as threadpoolctl tells of them.
    """
    machine_cores = os.cpu_count() or 1
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(machine_cores)
    return RankFacts(
        node=node,
        host=socket.gethostname(),
        cores=tuple(sorted(cores)),
        machine_cores=machine_cores,
        cpu_limit=cpu_limit(environment, CPU_QUOTA),
        threads=max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1),
        threads_set_by=next((f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name)), ""),
        wall_clock=time.time(),
    )


def cpu_limit(environment: Mapping[str, str], quota: Path) -> float | None:
    """Processors that may be used at a time on this node; None where nothing limits them.

    Parameters
    ----------
    environment : mapping
        Slurm says in it how many processors of the node are allocated.
    quota : Path
        The file in which a container's share is written: microseconds per period, or ``max``.
    """
    limits = []
    allocated = environment.get("SLURM_CPUS_ON_NODE", "")
    if allocated.isdigit():
        limits.append(float(allocated))
    try:
        share, period = quota.read_text(encoding="ascii").split()[:2]
        if share != "max":
            limits.append(int(share) / int(period))
    except (OSError, ValueError):
        pass  # another system, or an older one
    return min(limits, default=None)


def ranks_by_node(facts: Mapping[int, RankFacts]) -> dict[int, list[int]]:
    """Ranks of every node, by the lowest of them."""
    nodes: dict[int, list[int]] = {}
    for rank, fact in sorted(facts.items()):
        nodes.setdefault(fact.node, []).append(rank)
    return nodes


def cores_of_nodes(facts: Mapping[int, RankFacts]) -> dict[int, int]:
    """Cores that the ranks of every node have together, as far as they may use them at a time; at least one."""
    result = {}
    for node, ranks in ranks_by_node(facts).items():
        cores = len({core for rank in ranks for core in facts[rank].cores})
        limits = [limit for rank in ranks if (limit := facts[rank].cpu_limit) is not None]
        result[node] = max(1, int(min([cores, *limits])))
    return result
