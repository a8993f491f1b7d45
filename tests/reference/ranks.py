"""Helpers for ranks under MPI and in one process: gather objects, patch one rank, simulate several nodes."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybridnn.comm.mpi import import_mpi, is_in_process


def this_rank() -> int:
    """Rank of the caller in `COMM_WORLD`."""
    return import_mpi().COMM_WORLD.Get_rank()


def allgather_objects(comm: Any, value: Any) -> list[Any]:
    """The objects of all ranks of a communicator, by rank."""
    pickled, sizes = pickle.dumps(value), np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(pickled)]), sizes)
    everything = np.empty((sizes.size, sizes.max()), np.uint8)
    comm.Allgather(np.frombuffer(pickled.ljust(sizes.max()), np.uint8).copy(), everything)
    return [pickle.loads(row.tobytes()) for row in everything]  # loads ignores the padding


def replace_on_this_rank(patch: Any, owner: Any, name: str, new: Callable[..., Any]) -> None:
    """Replace a function for the calling rank; other ranks of the same process keep theirs."""
    rank, old = this_rank(), getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: (new if this_rank() == rank else old)(*args, **kwargs))


def on_nodes(comm: Any, nodes: Sequence[int]) -> Any:
    """A communicator whose `Split_type` reports that rank r runs on node `nodes[r]`."""

    class OnNodes(import_mpi().Intracomm):
        def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Any:  # noqa: N802
            return comm.Split(nodes[comm.rank], key)

    comm = comm.Dup()  # what grids keep with `comm` are other nodes
    if is_in_process():
        result = OnNodes.__new__(OnNodes)
        result.__dict__ = comm.__dict__
        return result
    return OnNodes(comm)


def shared_mappings() -> int:
    """Bytes of memory of this process that others may see."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    spans = (words[0].split("-") for words in lines if words[1].endswith("s"))
    return sum(int(stop, 16) - int(start, 16) for start, stop in spans)
