"""Check of a launch: MPI must see as many ranks as the launcher started.

A launcher and an MPI library that do not fit give no error: each process is alone, and ``srun`` with a wrong ``--mpi``
trains the same network N times, into one folder, with exit code 0.

``python -m hybridnn.comm.launch_check RANKS NODES`` tries a launcher: its exit code is 0 if MPI sees that many ranks on
that many nodes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from hybridnn.comm.mpi import detect_launch, import_mpi, is_in_process, library_version, srun_option
from hybridnn.errors import EnvironmentProblem
from hybridnn.utils.text import counted

FIRST_MESSAGE_SECONDS = 0.25
"""Pause of Open MPI's ranks under srun before they send. One may leave the initialization of Open MPI 5 while another
is still in it, and an early message ends that other one with a segmentation fault: once in some forty starts on busy
nodes (open-mpi/ompi#12495). Not observed under mpirun."""


def launch_problem(environment: Mapping[str, str], size: int, library: str) -> str | None:
    """What is wrong with a launch, in one line; None if nothing is.

    Parameters
    ----------
    size : int
        Ranks that MPI sees, ``COMM_WORLD.size``.
    library : str
        Name and version of the MPI library.
    """
    launch = detect_launch(environment)
    if launch is None or launch.ranks == size:
        return None
    seen = f"{launch.launcher} started {launch.ranks} processes, but MPI sees {counted(size, 'rank')}"
    if launch.by_srun:
        command = f"srun --mpi={srun_option(library)}"
        return f"{seen}: start {library} with {command} (srun --mpi=list shows what is there), or with its mpirun"
    return f"{seen}: mpi4py uses {library}; start it with the mpirun of that library"


def require_complete_launch() -> None:
    """Refuse to go on if MPI does not see all processes of the launch.

    To be called before the first message: on return, all ranks can be assumed to have left MPI's initialization.

    Raises `EnvironmentProblem` on every process: each is alone, so they cannot agree.
    """
    if is_in_process():
        return
    size, library = import_mpi().COMM_WORLD.Get_size(), library_version()
    problem = launch_problem(os.environ, size, library)
    if problem is not None:
        raise EnvironmentProblem(problem)
    launch = detect_launch(os.environ)
    if size > 1 and launch is not None and launch.by_srun and srun_option(library) == "pmix":
        time.sleep(FIRST_MESSAGE_SECONDS)


def _main(arguments: Sequence[str]) -> int:
    ranks, nodes = map(int, arguments)
    world = import_mpi().COMM_WORLD
    if world.Get_size() == ranks:
        require_complete_launch()
    hosts = set(world.allgather(socket.gethostname()))
    if (world.Get_size(), len(hosts)) == (ranks, nodes):
        return 0
    if world.Get_rank() == 0:
        print(f"MPI sees {world.Get_size()} ranks on {len(hosts)} nodes, not {ranks} on {nodes}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
