"""Helpers for ranks under MPI and in one process: gather objects, patch one rank, simulate several nodes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridnn.comm.mpi import import_mpi, is_in_process

if TYPE_CHECKING:
    import pytest
    from mpi4py import MPI


def this_rank() -> int:
    """Rank of the caller in `COMM_WORLD`."""
    rank: int = import_mpi().COMM_WORLD.Get_rank()
    return rank


def allgather_objects(comm: Any, value: Any) -> list[Any]:
    """The objects of all ranks of a communicator, by rank."""
    pickled, sizes = pickle.dumps(value), np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(pickled)]), sizes)
    everything = np.empty((sizes.size, sizes.max()), np.uint8)
    comm.Allgather(np.frombuffer(pickled.ljust(sizes.max()), np.uint8).copy(), everything)
    return [pickle.loads(row.tobytes()) for row in everything]  # loads ignores the padding


def replace_on_this_rank(patch: pytest.MonkeyPatch, owner: Any, name: str, new: Callable[..., Any]) -> None:
    """Replace a function for the calling rank; other ranks of the same process keep theirs."""
    rank, old = this_rank(), getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: (new if this_rank() == rank else old)(*args, **kwargs))


def on_nodes(comm: MPI.Intracomm, nodes: Sequence[int]) -> MPI.Intracomm:
    """A communicator whose `Split_type` reports that rank r runs on node `nodes[r]`."""
    kind: type[Any] = import_mpi().Intracomm

    class OnNodes(kind):  # type: ignore[misc]
        def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> MPI.Intracomm:  # noqa: N802
            return comm.Split(nodes[comm.rank], key)

    comm = comm.Dup()  # what grids keep with `comm` are other nodes
    if is_in_process():
        result: MPI.Intracomm = OnNodes.__new__(OnNodes)
        result.__dict__ = comm.__dict__
        return result
    return OnNodes(comm)


def shared_mappings() -> int:
    """Bytes of memory of this process that others may see."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    spans = (words[0].split("-") for words in lines if words[1].endswith("s"))
    return sum(int(stop, 16) - int(start, 16) for start, stop in spans)
