"""`hybridnn doctor`: checks of one process and its nodes, or of all ranks of a job.

Those of a job are cores, threads, equal nodes, a folder that all see, and one all-reduce.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from hybridnn.checkpoints.file_io import nodes_without
from hybridnn.comm.agreement import gather_texts, name_hosts
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import own_cores
from hybridnn.comm.threads import THREAD_VARIABLES, threads_for
from hybridnn.diagnostics.hosts import describe_binding
from hybridnn.doctor.node_checks import (
    CPU_QUOTA,
    NODE_LIMITS,
    NamedFacts,
    NodeFacts,
    check_allocation,
    compare_nodes,
    cpu_limit,
    gather_node_facts,
)
from hybridnn.doctor.process_checks import GPU_SECONDS, check_process, check_start
from hybridnn.doctor.report import DoctorReport, Finding, failure, merge_reports, ok, run_checks, warning
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.utils.text import counted, format_bytes, format_seconds, name_numbers

START_SECONDS = 90.0  # time for MPI to start and all ranks to arrive: one may still be loading from a slow file system
SIZES = (8, 64 << 10, 4 << 20)  # bytes of all-reduces: the first shows the latency, the last the bandwidth
ROUNDS, ROUND_BYTES, MOST_REPEATS = 5, 1 << 22, 20  # the fastest round counts

SLOW_SECONDS = 2e-3  # of a small all-reduce above which something is wrong; Python takes some 2 us of it
SLOW_BANDWIDTH = 1e8  # bytes per second and rank below which something is wrong: a slow network is ten times as fast


def examine(limit: float, print_report: Callable[[DoctorReport], None], *, launched: bool) -> int:
    """Carry out all checks, each within `limit` seconds, and print their report on rank 0; returns the exit code.

    Collective over the ranks of a job that a launcher has started. A process without one (`launched` is False) does not
    start MPI itself. Raises `EnvironmentProblem` if MPI does not see all processes of the launch.
    """
    environment = dict(os.environ)  # MPI adds to it
    if launched:
        return _examine_ranks(environment, limit, print_report)
    findings = check_process(environment, limit)
    if any(finding.name == "MPI library" and finding.verdict == "ok" for finding in findings):
        findings += check_start(environment, NODE_LIMITS * limit)
    findings += check_allocation(environment, limit)
    report = merge_reports([findings], check_job([gather_facts(0, environment)]))
    print_report(report)
    return report.exit_code


def _examine_ranks(environment: dict[str, str], limit: float, print_report: Callable[[DoctorReport], None]) -> int:
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)  # Python's own code does not run while MPI starts
    grid = ProcessGrid()
    faulthandler.cancel_dump_traceback_later()
    if grid.stall_watchdog is not None:
        grid.stall_watchdog.start(grid, NODE_LIMITS * limit + GPU_SECONDS)  # others wait for the checks of a rank
    world = grid.world
    findings = check_process(environment, limit)
    # Without `run_check`: a rank that fails in a collective ends the job.
    trials = []
    if grid.nodes > 1:
        trials.append(replace(check_common_folder(grid, Path.cwd()), name="common folder"))
    if world.size > 1:
        trials.append(replace(check_all_reduce(world), name="all-reduce"))
    findings += [finding for finding in trials if world.rank == 0 or finding.verdict == "failure"]
    own = gather_facts(grid.node_group.members[0], environment)
    content = {"findings": [astuple(finding)[:4] for finding in findings], "facts": asdict(own)}
    received = [json.loads(text) for text in gather_texts(world, json.dumps(content))]
    reports = [[Finding(*fields) for fields in one["findings"]] for one in received]
    facts = [RankFacts(**{**one["facts"], "found": NodeFacts(**one["facts"]["found"])}) for one in received]
    report = merge_reports(reports, check_job(facts))
    if world.rank == 0:
        print_report(report)
    world.barrier()  # a launcher ends the job at the first rank with exit code 1, perhaps before rank 0 has printed
    return report.exit_code


@dataclass(frozen=True)
class RankFacts:
    """Node, cores and threads of a rank."""

    node: int  # the lowest rank on its node
    host: str
    cores: Sequence[int]  # cores that it may run on
    machine_cores: int  # all cores of its node
    cpu_limit: float | None  # processors that its container or allocation may use at a time; None without a limit
    threads: int  # threads of its BLAS
    threads_set_by: str  # the environment variable that sets them, with its value; empty without one
    found: NodeFacts  # software and hardware of its node


def gather_facts(node: int, environment: Mapping[str, str]) -> RankFacts:
    """Facts about this process; `node` is the lowest rank on its node."""
    from threadpoolctl import threadpool_info

    return RankFacts(
        node=node,
        host=socket.gethostname(),
        cores=sorted(own_cores()),
        machine_cores=os.cpu_count() or 1,
        cpu_limit=cpu_limit(environment, CPU_QUOTA),
        threads=max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1),
        threads_set_by=next((f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name)), ""),
        found=gather_node_facts(environment),
    )


@dataclass(frozen=True)
class JobNode:
    """The ranks on a node."""

    ranks: Mapping[int, RankFacts]  # at least one

    @property
    def first(self) -> RankFacts:
        """Facts of the lowest rank."""
        return self.ranks[min(self.ranks)]

    @cached_property
    def cores(self) -> int:
        """Cores that the ranks may use at a time; at least one."""
        cores = len({core for facts in self.ranks.values() for core in facts.cores})
        limits = [facts.cpu_limit for facts in self.ranks.values() if facts.cpu_limit is not None]
        return max(1, int(min([cores, *limits])))

    def training_threads(self, rank: int) -> int:
        """BLAS threads of a rank in training, which limits them where ranks share a node and no variable sets them."""
        facts = self.ranks[rank]
        if len(self.ranks) == 1 or facts.threads_set_by:
            return facts.threads
        return threads_for(len(self.ranks), self.cores, len(facts.cores))


def check_job(ranks: Sequence[RankFacts]) -> list[Finding]:
    """Findings of the checks of a job with the facts of all ranks."""
    on_node: defaultdict[int, dict[int, RankFacts]] = defaultdict(dict)
    for rank, facts in enumerate(ranks):
        on_node[facts.node][rank] = facts
    nodes = [JobNode(found) for found in on_node.values()]
    checks = [("cores", partial(check_cores, nodes)), ("threads", partial(check_threads, nodes))]
    return run_checks(checks) + compare_nodes(
        [NamedFacts(node.first.host, replace(node.first.found, cores=node.cores), len(node.ranks)) for node in nodes]
    )


def check_cores(nodes: Sequence[JobNode]) -> Finding:
    """Whether every rank has a core, and is not bound to one that others are bound to."""
    for node in nodes:
        sharing = defaultdict(list)
        for rank, facts in node.ranks.items():
            sharing[tuple(facts.cores)].append(rank)
        for cores, ranks in sharing.items():
            if len(ranks) > len(cores) and len(cores) < node.first.machine_cores:
                names = f"{name_numbers('core', cores)}, of {counted(node.first.machine_cores, 'core')}"
                return warning(
                    f"{name_numbers('rank', ranks)} on {node.first.host} are all bound to {names}",
                    "give each rank its own: mpirun --map-by core --bind-to core (or --bind-to none), "
                    "srun --cpus-per-task=1 --cpu-bind=cores; or ask for more cores",
                )
        if len(node.ranks) > node.cores:
            what = f"{len(node.ranks)} ranks share {counted(node.cores, 'core')} on {node.first.host}"
            return warning(what, f"start at most {counted(node.cores, 'rank')} there; they take turns, also when timed")
    masks = [(facts.machine_cores, facts.cores) for node in nodes for facts in node.ranks.values()]
    where = nodes[0].first.host if len(nodes) == 1 else counted(len(nodes), "node")
    return ok(f"{counted(len(masks), 'rank')} on {where}; binding: {describe_binding(masks)}")


def check_threads(nodes: Sequence[JobNode]) -> Finding:
    """Whether the BLAS threads that training sets fit the cores of each node."""
    for node in nodes:
        threads = {rank: node.training_threads(rank) for rank in node.ranks}
        most = counted(max(threads.values()), "BLAS thread")
        what = f"{node.first.host}: {counted(len(threads), 'rank')} with up to {most} each"
        if sum(threads.values()) > max(node.cores, len(threads)):
            n = max(1, node.cores // len(threads))
            advice = f"they slow each other: export OPENBLAS_NUM_THREADS={n} OMP_NUM_THREADS={n}"
            return warning(f"{what} on {counted(node.cores, 'core')}", advice)
        narrow = [rank for rank in threads if threads[rank] > len(node.ranks[rank].cores)]
        if narrow:
            bound = len(node.ranks[narrow[0]].cores)
            return warning(
                f"{what}, but {name_numbers('rank', narrow)} may run on {counted(bound, 'core')} only",
                f"export OPENBLAS_NUM_THREADS={bound}, or bind each rank to as many cores as it has threads "
                "(mpirun --map-by slot:PE=N, srun --cpus-per-task=N)",
            )
    node = nodes[0]
    own = node.first.threads_set_by or "no variable sets them; training uses that for large products, 1 for small ones"
    per_rank = counted(node.training_threads(min(node.ranks)), "BLAS thread")
    return ok(f"{per_rank} per rank, {counted(node.cores, 'core')} on the node ({own})")


# -- checks that communicate -------------------------------------------------------------------------------------------


def check_common_folder(grid: ProcessGrid, folder: Path) -> Finding:
    """Whether every node sees a file that rank 0 writes; collective."""
    if missing := nodes_without(folder, grid.world, grid.node_group):
        advice = "start in a folder that every node sees and every rank can write to, such as your home"
        return failure(f"{folder}: a file of rank 0 is not there on {name_hosts(missing)}", advice)
    return ok(f"all nodes see what rank 0 writes to {folder}")


def check_all_reduce(world: Group, sizes: Sequence[int] = SIZES) -> Finding:
    """Whether sums of all ranks are right, and arrive in plausible time; collective."""
    timings = []
    for nbytes in sizes:
        array, fastest = np.empty(nbytes // 8), float("inf")
        repeats = max(1, min(MOST_REPEATS, ROUND_BYTES // nbytes))
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(repeats):
                array.fill(world.rank + 1)
                world.allreduce(array)
            fastest = min(fastest, (time.perf_counter() - start) / repeats)
        if not (array == world.size * (world.size + 1) / 2).all():
            return failure(f"an all-reduce of {nbytes:,} bytes gave a wrong sum", "try another MPI library or network")
        timings.append(fastest)
    return judge_all_reduce(timings, sizes, world.size)


def judge_all_reduce(timings: Sequence[float], sizes: Sequence[int], ranks: int) -> Finding:
    """Whether the seconds of all-reduces of these bytes are plausible."""
    # A ring sends 2 (P - 1) / P of the array out of every rank (Thakur et al. 2005, Rabenseifner's algorithm as well).
    bandwidth = 2 * (ranks - 1) / ranks * sizes[-1] / timings[-1]
    texts = (f"{format_bytes(size, binary=True)} {format_seconds(t)}" for size, t in zip(sizes, timings, strict=True))
    what = f"{', '.join(texts)} over {ranks} ranks, {bandwidth / 1e9:.3g} GB/s per rank; the sums are right"
    if timings[0] <= SLOW_SECONDS and bandwidth >= SLOW_BANDWIDTH:
        return ok(what)
    return warning(
        what,
        "far too slow: ranks may share cores, another job may keep the network busy, or MPI may not use shared memory "
        "or the fast network (ask your site which btl, UCX_NET_DEVICES or FI_PROVIDER to set)",
    )
