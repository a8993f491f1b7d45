"""BLAS threads per rank: ranks x threads must not exceed the cores of a node.

OpenBLAS starts one thread per core in every process; four ranks on four cores would run sixteen threads, and each of
them would be slower than one.
"""

from __future__ import annotations

import os

import numpy as np

from hybridnn.comm.grid import ProcessGrid

__all__ = ["cores_of_node", "limit_blas_threads", "threads_for"]

USER_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


def threads_for(ranks_on_node: int, cores_of_node: int, cores_of_rank: int) -> int:
    """Threads each rank may use so that all ranks together fit the node, at least one."""
    return max(1, min(cores_of_rank, cores_of_node // ranks_on_node))


def cores_of_node(grid: ProcessGrid) -> int:
    """Cores that the ranks of this rank's node may use, all together; collective over the node."""
    mine = _my_cores()
    cores = np.zeros(max(os.cpu_count() or 1, max(mine) + 1), np.uint8)
    cores[list(mine)] = 1
    grid.node_group.allreduce(cores, "max")
    return int(cores.sum())


def limit_blas_threads(grid: ProcessGrid) -> int:
    """Cap this rank's BLAS threads if it shares the node; collective over the node.

    A user's own setting (one of ``OPENBLAS_NUM_THREADS``, ``MKL_NUM_THREADS``, ``BLIS_NUM_THREADS``,
    ``OMP_NUM_THREADS``) is left alone.

    Returns
    -------
    int
        Threads a matrix product of this rank uses.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    if grid.node_group.size > 1 and not any(os.environ.get(name) for name in USER_VARIABLES):
        threads = threads_for(grid.node_group.size, cores_of_node(grid), len(_my_cores()))
        threadpool_limits(limits=threads, user_api="blas")
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def _my_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
