"""Hosts of a job, for the record of a run: what they are, and how far processes of others disturb the ranks."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridnn.comm.agreement import gather_texts
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import detect_launch, is_in_process, own_cores
from hybridnn.utils.memory import proc_value
from hybridnn.utils.text import format_numbers

CPU_INFO = Path("/proc/cpuinfo")
MOST_MASKS = 8  # cores of different ranks that are listed one by one

CPU_COUNTERS = Path("/proc/stat")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
USER, NICE, SYSTEM, STEAL = 0, 1, 2, 7
"""Columns of busy time. Interrupts are left out: those of a network belong to the messages of the job."""

MOST_DISTURBANCE = 0.1  # share of the cores in use; times of a run with more of it are disturbed


@dataclass(frozen=True)
class Hosts:
    """Hosts of a job; nodes are in the order of their lowest rank."""

    names: tuple[str, ...]  # of every node
    ranks: tuple[int, ...]  # on every node
    processors: tuple[str, ...]  # models of the nodes' processors, each once
    cores: tuple[int, ...]  # hardware threads of a node, each number once
    binding: str  # ``none``, or the cores of a rank and their numbers: ``1 core per rank: 0; 1; 2; 3``
    launcher: str  # empty without one
    blas: str  # of rank 0


def describe_hosts(group: Group) -> Hosts:
    """Hosts of the ranks of `group`; collective, with one small message of each rank."""
    own = {
        "host": socket.gethostname(),
        "processor": processor_name(),
        "machine_cores": os.cpu_count() or 1,
        "cores": sorted(own_cores()),
    }
    ranks = [json.loads(text) for text in gather_texts(group, json.dumps(own))]
    nodes: dict[str, list[dict[str, Any]]] = {}
    for facts in ranks:
        nodes.setdefault(facts["host"], []).append(facts)
    launch = detect_launch(os.environ)
    return Hosts(
        names=tuple(nodes),
        ranks=tuple(map(len, nodes.values())),
        processors=tuple(dict.fromkeys(facts["processor"] for facts in ranks)),
        cores=tuple(dict.fromkeys(facts["machine_cores"] for facts in ranks)),
        binding=describe_binding([(facts["machine_cores"], facts["cores"]) for facts in ranks]),
        launcher="one process" if is_in_process() else "" if launch is None else launch.launcher,
        blas=blas_library(),
    )


def describe_binding(ranks: Sequence[tuple[int, Sequence[int]]]) -> str:
    """The cores of the ranks as text, from the number of cores of the machine and the cores of each rank."""
    masks = [tuple(cores) for machine, cores in ranks if len(cores) < machine]
    if not masks:
        return "none"
    widths = sorted({len(cores) for _, cores in ranks})
    width = "-".join(map(str, dict.fromkeys((widths[0], widths[-1]))))
    listed = list(dict.fromkeys(map(format_numbers, masks)))
    more = "; …" if len(listed) > MOST_MASKS else ""
    return f"{width} core{'s' * (widths != [1])} per rank: {'; '.join(listed[:MOST_MASKS])}{more}"


def processor_name() -> str:
    """Model of this node's processor."""
    return proc_value(CPU_INFO, "model name") or platform.processor() or platform.machine()


def blas_library() -> str:
    """Names, versions and kernels (``Haswell``) of the BLAS of NumPy and SciPy, which may differ."""
    from threadpoolctl import threadpool_info

    names = ("internal_api", "version", "architecture")
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    found = {" ".join(str(pool[name]) for name in names if pool.get(name)) for pool in pools}
    return ", ".join(sorted(found)) or "unknown BLAS"


# -- load by processes of others ---------------------------------------------------------------------------------------


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


def busy_text(load: float, most: float, what: str) -> str:
    """Say that the machine is busy, where its load average is above `most`, in words `what`; else empty."""
    return f"the machine is busy: load average {load:.1f}, more than {what}" if load > most else ""


def node_loads(world: Group, node_group: Group, meter: LoadMeter, threads: int) -> tuple[NodeLoad, ...]:
    """Load of every node since the last reading of the meter; collective, with one small message of each rank.

    Every rank gives its meter, the group of its node and its number of threads. Nodes are in the order of their lowest
    rank; those that share a kernel, whose counters are the same, are one. Empty for ranks in one process, and where a
    system does not count the time of its cores.
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


def busy_seconds(text: str, ticks: int) -> dict[int, float]:
    """Seconds since the start of the system in which each core was busy, or taken by another virtual machine.

    `text` is that of ``/proc/stat`` (proc_stat(5)), of which other lines are skipped; its times have `ticks` a second.
    """
    found = {}
    for line in text.splitlines():
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and len(columns) > STEAL:
            found[int(name[3:])] = sum(int(columns[column]) for column in (USER, NICE, SYSTEM, STEAL)) / ticks
    return found


def counters_id() -> str:
    """Identity of the counters of this node: nodes made of namespaces, such as containers, share those of a kernel."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class LoadMeter:
    """Busy cores of this node, and those that this process keeps busy, since it was made or last read."""

    def __init__(self) -> None:
        self._before = self._read()

    def read(self) -> tuple[dict[int, float], float]:
        """Least share of the time in which each core was busy, by its number, and that of this process in cores.

        The counters are exact to one unit, which is subtracted: a core was busy for at least the rest. Cores are
        missing where the system does not count their time.
        """
        (start, own, busy), self._before = self._before, self._read()
        end, own_now, busy_now = self._before
        seconds, unit = max(end - start, 1e-9), 1 / os.sysconf("SC_CLK_TCK")
        cores = busy_now.keys() & busy.keys()
        shares = {core: max(0.0, busy_now[core] - busy[core] - unit) / seconds for core in cores}
        return shares, (own_now - own) / seconds

    @staticmethod
    def _read() -> tuple[float, float, dict[int, float]]:
        try:
            text = CPU_COUNTERS.read_text(encoding="ascii", errors="replace")
        except OSError:
            text = ""
        counted = busy_seconds(text, os.sysconf("SC_CLK_TCK")) if text else {}
        return time.perf_counter(), time.process_time(), counted
