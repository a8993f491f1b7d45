"""Settings of Open MPI, for its ranks and its ``mpirun``; other MPI libraries ignore them.

All are environment variables, so that a value which the user has set takes precedence. The names of versions 4 and 5
differ; both are given.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, MutableMapping

EAGER_BYTES = (1 << 20) + 1024  # with the header of a message
"""Messages over TCP that leave at once, without an answer of the receiver."""

COMMUNICATION = {
    "OMPI_MCA_btl": "^ofi",  # its probe of the network sleeps for a second
    "OMPI_MCA_osc": "^ucx",  # prints an error about its own priority for every window
    "OMPI_MCA_btl_tcp_flags": "send",  # with puts, its default, a rank hardly sends and receives at the same time
    # A larger message waits for its receiver, and then for the next MPI call of its sender, which computes meanwhile:
    # the default, 64 KiB, is less than most activations. Fragments must not be smaller.
    "OMPI_MCA_btl_tcp_eager_limit": str(EAGER_BYTES),
    "OMPI_MCA_btl_tcp_max_send_size": str(EAGER_BYTES),
    "OMPI_MCA_coll_libnbc_iallreduce_algorithm": "3",  # Rabenseifner's; a sum in place is a binomial tree by default
}
"""Between two nodes, messages of 100 and 400 kB take a quarter of the time, and sums without blocking half of it:
``docs/benchmarks.md``."""

YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""Waiting ranks yield their core. ``mpirun`` sets it only if it counts more ranks than slots itself."""

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

OVERSUBSCRIBED = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""More ranks than cores are allowed, all of them on the first node."""

UNBOUND = {
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def mpirun_settings(*, as_root: bool = True, oversubscribed: bool = True, bound: bool = False) -> dict[str, str]:
    """Environment variables for ``mpirun``, which passes them to its ranks.

    Parameters
    ----------
    oversubscribed : bool
        Whether there are more ranks than cores, which ``mpirun`` refuses by default. Not for a job of several nodes:
        all ranks are placed on the first.
    bound : bool
        Whether ``mpirun`` may bind each rank, with all its threads, to a core.
    """
    return {
        **COMMUNICATION,
        **(AS_ROOT if as_root else {}),
        **(OVERSUBSCRIBED | YIELD if oversubscribed else {}),
        **({} if bound else UNBOUND),
    }


def cuda_support(library: str = "libmpi.so.40") -> bool | None:
    """Whether the Open MPI of this process can send arrays of a GPU, by its own account; None if there is no Open MPI.

    Parameters
    ----------
    library : str
        Name of the library, which `import_mpi` has loaded.
    """
    try:
        return bool(ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_NOLOAD).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return None


def set_rank_settings(environment: MutableMapping[str, str]) -> None:
    """Set what a rank can set for itself before MPI is initialized, unless the environment has it.

    Open MPI does not start without ``HOME``, which services and containers may lack; the folder need not exist.

    A rank that is bound to some cores cannot determine those of its job, so waiting ranks yield if there are more of
    them than the whole node has cores.
    """
    ranks_on_node = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    crowded = ranks_on_node.isdigit() and int(ranks_on_node) > (os.cpu_count() or 1)
    for name, value in (COMMUNICATION | (YIELD if crowded else {})).items():
        environment.setdefault(name, value)
    if "HOME" not in environment:
        home = os.path.expanduser("~")  # unchanged where the user is not in the password database
        environment["HOME"] = home if os.path.isabs(home) else "/"


LAUNCHED = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE")
"""Variables of which Open MPI needs one to find the other ranks of its job."""

BTL = "OMPI_MCA_btl"


@contextlib.contextmanager
def single_process_settings(environment: MutableMapping[str, str]) -> Iterator[None]:
    """While MPI is initialized in a process without a launcher, exclude shared memory from its transports.

    Such a process has nobody to share memory with, and Open MPI 5 does not remove the file that it makes for it in
    ``/dev/shm``. The variable is restored, because the process may start ranks later. The user's own value is kept.
    """
    if environment.get(BTL) != COMMUNICATION[BTL] or any(name in environment for name in LAUNCHED):
        yield
        return
    environment[BTL] = f"{COMMUNICATION[BTL]},sm"
    try:
        yield
    finally:
        environment[BTL] = COMMUNICATION[BTL]
