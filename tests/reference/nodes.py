"""Ranks of one machine, or of one process, as if they ran on several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.stand_in import is_in_process

if TYPE_CHECKING:
    from mpi4py import MPI


def on_nodes(comm: MPI.Intracomm, nodes: Sequence[int]) -> MPI.Intracomm:
    """`comm`, which says that its ranks run on these nodes."""
    kind: type[Any] = InProcess if is_in_process() else import_mpi().Intracomm

    class OnNodes(kind):  # type: ignore[misc]
        def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> MPI.Intracomm:  # noqa: N802
            return comm.Split(nodes[comm.rank], key)

    made: MPI.Intracomm = OnNodes(comm)
    return made


class InProcess:
    """A communicator of ranks of one process; a copy of one would count its collectives apart."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
