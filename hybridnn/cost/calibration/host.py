"""What a calibration ran on: processor, memory, libraries, and how busy the machine was."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from pathlib import Path

import numpy as np

from hybridnn.comm.agreement import agree
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.mpi import library_version
from hybridnn.errors import SettingError

__all__ = ["host_facts", "memory_bytes_per_rank"]


def host_facts(grid: ProcessGrid, threads: int) -> dict[str, str]:
    """Where and with what this rank runs, for people."""
    facts = {
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "host": platform.node(),
        "processor": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "mpi": library_version(),
        "numpy": f"{np.__version__}, {_blas()}",
        "threads_per_rank": str(threads),
        "ranks": str(grid.size),
        "nodes": str(grid.nodes),
    }
    if hasattr(os, "getloadavg"):
        facts["load_average"] = ", ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes, before)"
    return facts


def memory_bytes_per_rank(grid: ProcessGrid) -> float:
    """Memory that is free on a node for each rank there, on the node that has least; collective.

    Raises
    ------
    SettingError
        If the system does not say.
    """
    least = np.array([-agree(grid.world, _free_memory) / grid.node_group.size])
    grid.world.allreduce(least, "max")
    return -float(least[0])


def _free_memory() -> float:
    """Bytes that this node could give to new processes."""
    available = _proc_value("/proc/meminfo", "MemAvailable")
    if available:
        return 1024.0 * int(available.split()[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        raise SettingError("--memory", None, "this system does not say how much is free; give bytes per rank") from None


def _proc_value(path: str, key: str) -> str:
    """Text behind the first ``key:`` of a file of ``/proc``; empty where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


def _blas() -> str:
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return f"{pools[0]['internal_api']} {pools[0]['version']}" if pools else "unknown BLAS"
