"""Checks that rank 0 makes with the facts of all ranks: nodes, binding, cores, threads, speed of messages."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from hybridnn.comm.threads import THREAD_VARIABLES, own_cores, threads_for
from hybridnn.doctor.node_checks import (
    CPU_QUOTA,
    NamedFacts,
    NodeFacts,
    check_hardware,
    check_software,
    cpu_limit,
    gather_node_facts,
)
from hybridnn.doctor.report import Finding, ok, run_checks, warning
from hybridnn.utils.text import counted, format_bytes, format_seconds, name_numbers

NOT_SET = ("", "0", "false")

PING_PONG, PING_PONG_BETWEEN_NODES, ALL_REDUCE = "ping-pong", "ping-pong between nodes", "all-reduce"
SIZES = (8, 64 << 10, 4 << 20)  # bytes of messages and all-reduces: the first shows the latency, the last the bandwidth

SLOW_MESSAGE = {PING_PONG: 1e-4, PING_PONG_BETWEEN_NODES: 5e-4}
"""Seconds of a small message above which something is wrong; Python takes some 2 us of it."""
SLOW_BANDWIDTH = {PING_PONG: 1e9, PING_PONG_BETWEEN_NODES: 1e8}
"""Bytes per second below which something is wrong: memory is ten times as fast, and so is a slow network."""
SLOW_ALL_REDUCE = 2e-3  # seconds of a small all-reduce above which something is wrong
OVERSUBSCRIBED = "the ranks share cores, and wait for their turn: start fewer"


@dataclass(frozen=True)
class RankFacts:
    """Node, cores and threads of a rank."""

    node: int  # the lowest rank on its node
    host: str
    cores: tuple[int, ...]  # cores that it may run on
    machine_cores: int  # all cores of its node
    cpu_limit: float | None  # processors that its container or allocation may use at a time; None without a limit
    threads: int  # threads of its BLAS
    threads_set_by: str  # the environment variable that sets them, with its value; empty without one
    found: NodeFacts  # software and hardware of its node

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> RankFacts:
        """Facts from the fields of a JSON object."""
        return cls(**{**facts, "cores": tuple(facts["cores"]), "found": NodeFacts(**facts["found"])})


def gather_facts(node: int, environment: Mapping[str, str], pools: Sequence[Mapping[str, Any]]) -> RankFacts:
    """Facts about this process, with its thread pools from ``threadpoolctl``; `node` is the lowest rank on its node."""
    return RankFacts(
        node=node,
        host=socket.gethostname(),
        cores=tuple(sorted(own_cores())),
        machine_cores=os.cpu_count() or 1,
        cpu_limit=cpu_limit(environment, CPU_QUOTA),
        threads=max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1),
        threads_set_by=next((f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name)), ""),
        found=gather_node_facts(environment),
    )


@dataclass(frozen=True)
class JobFacts:
    """Facts of a job on rank 0."""

    ranks: Mapping[int, RankFacts]  # facts of every rank that reported, by rank; at least one
    environment: Mapping[str, str] = field(default_factory=dict)  # environment variables of rank 0
    library: str = ""  # name and version of the MPI library
    # seconds of messages and all-reduces for each of `SIZES`, by the name of the trial
    timings: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def first(self) -> RankFacts:
        """Facts of the lowest rank that reported."""
        return self.ranks[min(self.ranks)]

    @cached_property
    def nodes(self) -> dict[int, list[int]]:
        """Ranks of every node, by the lowest of them."""
        nodes: defaultdict[int, list[int]] = defaultdict(list)
        for rank, facts in sorted(self.ranks.items()):
            nodes[facts.node].append(rank)
        return dict(nodes)

    @cached_property
    def cores(self) -> dict[int, int]:
        """Cores that the ranks of every node may use at a time; at least one."""
        result = {}
        for node, ranks in self.nodes.items():
            cores = len({core for rank in ranks for core in self.ranks[rank].cores})
            limits = [limit for rank in ranks if (limit := self.ranks[rank].cpu_limit) is not None]
            result[node] = max(1, int(min([cores, *limits])))
        return result

    @property
    def is_oversubscribed(self) -> bool:
        """Whether a node has more ranks than cores."""
        return any(len(ranks) > self.cores[node] for node, ranks in self.nodes.items())


def check_job(job: JobFacts) -> list[Finding]:
    """Findings of all checks of a job."""
    return run_checks((name, partial(check, job)) for name, check in JOB_CHECKS.items())


# -- placement of the ranks --------------------------------------------------------------------------------------------


def check_nodes(job: JobFacts) -> Finding:
    """Number of ranks on each node, and the launcher's slots."""
    counts = [len(ranks) for ranks in job.nodes.values()]
    ranks = counted(len(job.ranks), "rank")
    per_node = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    what = f"{ranks} on {counted(len(counts), 'node')}, {per_node} per node"
    if len(counts) == 1:
        what = f"{ranks} on {job.first.host}"
    slots = job.environment.get("OMPI_UNIVERSE_SIZE", "")
    if slots.isdigit() and int(slots) < len(job.ranks):
        what += f", for which the launcher has {counted(int(slots), 'slot')}"
        return warning(what, "start no more than that, or give hosts more: --host NAME:SLOTS")
    if max(counts) - min(counts) > 1:
        return warning(what, "an even number per node keeps nodes from waiting for the fullest one")
    return ok(what)


def check_binding(job: JobFacts) -> Finding:
    """Whether ranks are bound to the same few cores while the machine has others."""
    for ranks in job.nodes.values():
        bound = defaultdict(list)
        for rank in ranks:
            bound[job.ranks[rank].cores].append(rank)
        for cores, sharing in bound.items():
            facts = job.ranks[sharing[0]]
            if len(sharing) > len(cores) and len(cores) < facts.machine_cores:
                names = f"{name_numbers('core', cores)}, of {counted(facts.machine_cores, 'core')}"
                return warning(
                    f"{name_numbers('rank', sharing)} on {facts.host} are all bound to {names}",
                    "give each rank its own: mpirun --map-by core --bind-to core (or --bind-to none), "
                    "srun --cpus-per-task=1 --cpu-bind=cores; or ask for more cores",
                )
    if all(len(facts.cores) == facts.machine_cores for facts in job.ranks.values()):
        return ok("ranks are bound to no core: the system moves them as it likes")
    widths = {len(facts.cores) for facts in job.ranks.values()}
    each = str(min(widths)) if len(widths) == 1 else f"{min(widths)} to {max(widths)}"
    return ok(f"each rank may run on {each} core{'s' * (widths != {1})}")


def check_cores(job: JobFacts) -> Finding:
    """Whether every rank has a core; a waiting rank may keep one busy that others need."""
    for node, ranks in job.nodes.items():
        cores = counted(job.cores[node], "core")
        if len(ranks) > job.cores[node]:
            waiting, remedy = _busy_waiting(job)
            advice = f"start at most {counted(job.cores[node], 'rank')} there; times measured like this mean little"
            return warning(
                f"{len(ranks)} ranks share {cores} on {job.ranks[ranks[0]].host}, {waiting}", advice + remedy
            )
    node = job.first.node
    return ok(f"{counted(job.cores[node], 'core')} for {counted(len(job.nodes[node]), 'rank')}")


def _busy_waiting(job: JobFacts) -> tuple[str, str]:
    """Whether waiting ranks yield their core, and advice."""
    library = job.library.lower()
    if "open mpi" in library:
        if job.environment.get("OMPI_MCA_mpi_yield_when_idle", "") not in NOT_SET:
            return "and waiting ranks yield their core (mpi_yield_when_idle)", ""
        return "and waiting ranks may keep their core busy", "; or export OMPI_MCA_mpi_yield_when_idle=1"
    if job.environment.get("MPIR_CVAR_ENABLE_HEAVY_YIELD", "") not in NOT_SET:
        return "and waiting ranks yield their core (MPIR_CVAR_ENABLE_HEAVY_YIELD)", ""
    if "mpich" in library:
        remedy = "; or export MPIR_CVAR_ENABLE_HEAVY_YIELD=1, with which each message takes longer"
        return "and waiting ranks keep their core busy", remedy
    return "and waiting ranks may keep their core busy", ""


def check_threads(job: JobFacts) -> Finding:
    """Whether the BLAS threads that training sets fit the cores of each node."""
    for node, ranks in job.nodes.items():
        cores = job.cores[node]
        threads = {rank: _training_threads(job, rank) for rank in ranks}
        most = counted(max(threads.values()), "BLAS thread")
        what = f"{job.ranks[ranks[0]].host}: {counted(len(ranks), 'rank')} with up to {most} each"
        if sum(threads.values()) > max(cores, len(ranks)):
            n = max(1, cores // len(ranks))
            advice = f"they slow each other: export OPENBLAS_NUM_THREADS={n} OMP_NUM_THREADS={n}"
            return warning(f"{what} on {counted(cores, 'core')}", advice)
        narrow = [rank for rank in ranks if threads[rank] > len(job.ranks[rank].cores)]
        if narrow:
            bound = len(job.ranks[narrow[0]].cores)
            return warning(
                f"{what}, but {name_numbers('rank', narrow)} may run on {counted(bound, 'core')} only",
                f"export OPENBLAS_NUM_THREADS={bound}, or bind each rank to as many cores as it has threads "
                "(mpirun --map-by slot:PE=N, srun --cpus-per-task=N)",
            )
    own = job.first.threads_set_by or "no variable sets them; training uses that for large products, 1 for small ones"
    per_rank = counted(_training_threads(job, min(job.ranks)), "BLAS thread")
    return ok(f"{per_rank} per rank, {counted(job.cores[job.first.node], 'core')} on the node ({own})")


def _training_threads(job: JobFacts, rank: int) -> int:
    """BLAS threads of a rank in training, which limits them where ranks share a node and no variable sets them."""
    facts = job.ranks[rank]
    ranks_on_node = len(job.nodes[facts.node])
    if ranks_on_node == 1 or facts.threads_set_by:
        return facts.threads
    return threads_for(ranks_on_node, job.cores[facts.node], len(facts.cores))


def _check_alike(check: Callable[[Sequence[NamedFacts]], Finding], job: JobFacts) -> Finding | None:
    """Compare the nodes of a job, or its ranks where those of a node do not have the same software; None for one."""
    found = {rank: facts.found for rank, facts in sorted(job.ranks.items())}
    nodes = [
        NamedFacts(job.ranks[ranks[0]].host, replace(found[ranks[0]], cores=job.cores[node]), len(ranks))
        for node, ranks in job.nodes.items()
    ]
    ranks = [NamedFacts(f"rank {rank} on {job.ranks[rank].host}", facts) for rank, facts in found.items()]
    is_mixed = any(found[rank].software != found[ranks[0]].software for ranks in job.nodes.values() for rank in ranks)
    compared = ranks if is_mixed and check is check_software else nodes
    return check(compared) if len(compared) > 1 else None


# -- speed of messages -------------------------------------------------------------------------------------------------


def check_ping_pong(name: str, job: JobFacts) -> Finding | None:
    """Whether latency and bandwidth of messages are plausible; None without timings under this name."""
    if name not in job.timings:
        return None
    timings = job.timings[name]
    latency, bandwidth = timings[0], SIZES[-1] / timings[-1]
    what = f"{_by_size(timings)} one way, {bandwidth / 1e9:.3g} GB/s"
    is_late = latency > SLOW_MESSAGE[name]
    if not is_late and bandwidth >= SLOW_BANDWIDTH[name]:
        return ok(what)
    what += f": far too {'long' if is_late else 'slow'}"
    if job.is_oversubscribed:
        return warning(what, OVERSUBSCRIBED)
    if name == PING_PONG:
        advice = "messages may not go through shared memory: see that no MCA variable takes sm from Open MPI's btl"
    else:
        advice = "the fast network may not be used: ask your site which btl, UCX_NET_DEVICES or FI_PROVIDER to set"
    return warning(what, advice)


def check_all_reduce(job: JobFacts) -> Finding | None:
    """Whether latency and bandwidth of an all-reduce are plausible; None without timings."""
    if ALL_REDUCE not in job.timings:
        return None
    timings, ranks = job.timings[ALL_REDUCE], len(job.ranks)
    # A ring sends 2 (P - 1) / P of the array out of every rank (Thakur et al. 2005, Rabenseifner's algorithm as well).
    bandwidth = 2 * (ranks - 1) / ranks * SIZES[-1] / timings[-1]
    what = f"{_by_size(timings)} over {ranks} ranks, {bandwidth / 1e9:.3g} GB/s per rank; the sums are right"
    if timings[0] <= SLOW_ALL_REDUCE and bandwidth >= SLOW_BANDWIDTH[PING_PONG_BETWEEN_NODES]:
        return ok(what)
    advice = "compare with the ping-pong: if that is fine, another job may keep the machine or its network busy"
    return warning(what, OVERSUBSCRIBED if job.is_oversubscribed else advice)


def _by_size(timings: Sequence[float]) -> str:
    sizes = [format_bytes(nbytes, binary=True) for nbytes in SIZES]
    return ", ".join(f"{size} {format_seconds(seconds)}" for size, seconds in zip(sizes, timings, strict=True))


def _check_messages(job: JobFacts) -> Finding | None:
    if len(job.ranks) > 1:
        return None
    return ok("not tried: there is one rank", "hybridnn doctor -n 2 tries messages and sums as well")


JOB_CHECKS: Mapping[str, Callable[[JobFacts], Finding | None]] = {
    "nodes": check_nodes,
    "binding": check_binding,
    "cores": check_cores,
    "threads": check_threads,
    "same software": partial(_check_alike, check_software),
    "same hardware": partial(_check_alike, check_hardware),
    PING_PONG: partial(check_ping_pong, PING_PONG),
    PING_PONG_BETWEEN_NODES: partial(check_ping_pong, PING_PONG_BETWEEN_NODES),
    ALL_REDUCE: check_all_reduce,
    "messages": _check_messages,
}
