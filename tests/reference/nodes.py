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
    kind: type[Any] = import_mpi().Intracomm

    class OnNodes(kind):  # type: ignore[misc]
        def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> MPI.Intracomm:  # noqa: N802
            return comm.Split(nodes[comm.rank], key)

    if is_in_process():  # a copy would count its collectives apart
        made: MPI.Intracomm = OnNodes.__new__(OnNodes)
        made.__dict__ = comm.__dict__
        return made
    return OnNodes(comm)
