"""BLAS threads of a rank: ranks times threads do not exceed the cores of a node, and small products get one thread.

OpenBLAS starts one thread per core in every process; four ranks on four cores would run sixteen threads, each slower
than a single one. The threads of a product spin while they wait for one another: where other processes need the cores,
a small product takes ten times longer with two threads than with one. The number follows from the network, the layout
and the cores alone, not from the load or a measurement, because the rounding of a product depends on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from hybridnn.comm.group import Group
from hybridnn.comm.mpi import own_cores
from hybridnn.utils.text import counted

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")

LARGE_PRODUCT = 1 << 28
"""Multiply-adds up to which a matrix product gets one thread. On two cores with a load of 14, two threads took 7 times
as long as one with 2^25 multiply-adds, and 1.1 to 1.5 times with 2^28."""


@dataclass(frozen=True)
class BlasThreads:
    """Threads of a rank's matrix products."""

    count: int
    why: str


def threads_for(ranks_on_node: int, cores_of_node: int, cores_of_rank: int) -> int:
    """Threads per rank with which all ranks together fit the node, at least one."""
    return max(1, min(cores_of_rank, cores_of_node // ranks_on_node))


def cores_of_node(node_group: Group) -> int:
    """Number of cores that any rank of this node may use. Collective over the node."""
    own = own_cores()
    cores = np.zeros(max(os.cpu_count() or 1, max(own) + 1), np.uint8)
    cores[list(own)] = 1
    node_group.allreduce(cores, "max")
    return int(cores.sum())


def limit_blas_threads(node_group: Group, multiply_adds: int = 0) -> BlasThreads:
    """Set the number of BLAS threads of this process. Collective over the node.

    The largest matrix product of this rank has `multiply_adds`. Up to `LARGE_PRODUCT` it gets one thread; above, as
    many as leave every rank of the node its own cores. It is left alone if one of `THREAD_VARIABLES` is set in the
    environment.
    """
    from threadpoolctl import ThreadpoolController

    cores, pools = cores_of_node(node_group), ThreadpoolController()  # which lists the loaded libraries
    named = next((name for name in THREAD_VARIABLES if os.environ.get(name)), None)
    if named is not None:
        why = f"{named}={os.environ[named]}"
    elif multiply_adds <= LARGE_PRODUCT:
        pools.limit(limits=1, user_api="blas")
        why = "small products"
    else:
        ranks = node_group.size
        pools.limit(limits=threads_for(ranks, cores, len(own_cores())), user_api="blas")
        why = f"large products, {counted(cores, 'core')} for {counted(ranks, 'rank')}"
    count = max((pool["num_threads"] for pool in pools.info() if pool["user_api"] == "blas"), default=1)
    return BlasThreads(count, why)
