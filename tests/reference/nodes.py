"""Ranks of one machine as if they ran on several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI


def on_nodes(comm: MPI.Intracomm, nodes: Sequence[int]) -> MPI.Intracomm:
    """`comm`, which says that its ranks run on these nodes."""
    from mpi4py import MPI

    class OnNodes(MPI.Intracomm):
        def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> MPI.Intracomm:  # noqa: N802
            return comm.Split(nodes[comm.rank], key)

    return OnNodes(comm)
