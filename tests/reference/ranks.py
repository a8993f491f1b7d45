"""What tests do on ranks of MPI and on ranks of one process alike: exchange objects, and patch for one rank alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridnn.comm.mpi import import_mpi

__all__ = ["brought_together", "replace_on_this_rank", "this_rank"]


def this_rank() -> int:
    """Number of the rank that calls, among all of the test."""
    rank: int = import_mpi().COMM_WORLD.Get_rank()
    return rank


def brought_together(comm: Any, value: Any) -> list[Any]:
    """What every rank of a communicator brings, by rank: an all-gather of objects."""
    mine, sizes = pickle.dumps(value), np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(mine)]), sizes)
    everything = np.empty((sizes.size, sizes.max()), np.uint8)
    comm.Allgather(np.frombuffer(mine.ljust(sizes.max()), np.uint8).copy(), everything)
    return [pickle.loads(row.tobytes()) for row in everything]  # what follows a pickle is not read


def replace_on_this_rank(patch: pytest.MonkeyPatch, owner: Any, name: str, new: Callable[..., Any]) -> None:
    """Replace a function for the calling rank; other ranks of the same process keep theirs."""
    rank, old = this_rank(), getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: (new if this_rank() == rank else old)(*args, **kwargs))
