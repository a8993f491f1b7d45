"""Placement of the ranks of a run on nodes and cores, and the options by which launchers are told of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from hybridnn.errors import SettingError

Binding = Literal["none", "core", "socket"]
BINDINGS: tuple[Binding, ...] = get_args(Binding)


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a run are; what is None is left to the launcher.

    `ranks_per_node` is that of a full node. `threads` are the BLAS threads of a rank, each of which needs a core. With
    the `binding` ``"core"``, a rank may use as many cores as it has threads; with ``"socket"``, those of one socket.
    """

    nodes: int | None = None
    ranks_per_node: int | None = None
    threads: int = 1
    binding: Binding | None = None

    @property
    def is_free(self) -> bool:
        """Whether the launcher chooses nodes and cores."""
        return self.nodes is None and self.ranks_per_node is None and self.binding is None

    def texts(self) -> dict[str, str]:
        """The values as texts by name; empty texts for those that are left to the launcher."""
        return {name: "" if value is None else str(value) for name, value in asdict(self).items()}


def srun_options(placement: Placement) -> list[str]:
    """Options of ``srun``."""
    if placement.is_free and placement.threads == 1:
        return []
    options = [f"--nodes={placement.nodes}"] if placement.nodes else []
    options += [f"--ntasks-per-node={placement.ranks_per_node}"] if placement.ranks_per_node else []
    options += [f"--cpus-per-task={placement.threads}"]
    units = {"none": "none", "core": "cores", "socket": "sockets"}
    return options + ([f"--cpu-bind={units[placement.binding]}"] if placement.binding else [])


def mpirun_options(family: str, placement: Placement, *, crowded: bool = False) -> list[str]:
    """Options of ``mpirun`` of an MPI library.

    Parameters
    ----------
    family : str
        As named by `hybridnn.comm.launcher.mpi_family`.
    crowded : bool
        Whether there are more ranks than cores, which Open MPI has to be told again with the ranks per node.

    Raises
    ------
    SettingError
        If this ``mpirun`` cannot place ranks so; it names the part.
    """
    if family == "Open MPI":
        return _open_mpi_options(placement, crowded=crowded)
    options = ["-ppn", str(placement.ranks_per_node)] if placement.ranks_per_node else []
    if placement.binding is None:
        return options
    if family != "MPICH":
        problem = f"the mpirun of {family or 'an unknown MPI library'} has no option for it that is known here"
        raise SettingError("binding", placement.binding, f"{problem}; name a --launcher with {{binding}} in it")
    cores = f"core:{placement.threads}" if placement.threads > 1 else "core"
    return [*options, "-bind-to", cores if placement.binding == "core" else placement.binding]


def _open_mpi_options(placement: Placement, *, crowded: bool) -> list[str]:
    """Open MPI binds up to two ranks to one core each, with all their threads, unless it is told otherwise."""
    binding = placement.binding or ("none" if placement.threads > 1 else None)
    cores = f":PE={placement.threads}" if binding == "core" and placement.threads > 1 else ""
    options = []
    if placement.ranks_per_node or cores:
        unit = f"ppr:{placement.ranks_per_node}:node" if placement.ranks_per_node else "slot"
        options = ["--map-by", f"{unit}{cores}" + ":OVERSUBSCRIBE" * crowded]
    return options + (["--bind-to", binding] if binding else [])
