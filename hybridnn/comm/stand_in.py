"""Stand-in for ``mpi4py.MPI`` in this rank, where all ranks run in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["current_stand_in", "is_in_process", "standing_in"]

_STAND_IN: ContextVar[object | None] = ContextVar("stand-in for mpi4py.MPI", default=None)


def current_stand_in() -> object | None:
    """The stand-in of this rank; None under MPI."""
    return _STAND_IN.get()


@contextlib.contextmanager
def standing_in(namespace: object) -> Iterator[None]:
    """Let `hybridnn.comm.mpi.import_mpi` return `namespace` in this context: see `hybridnn.in_process`."""
    token = _STAND_IN.set(namespace)
    try:
        yield
    finally:
        _STAND_IN.reset(token)


def is_in_process() -> bool:
    """Whether all ranks run in this process."""
    return _STAND_IN.get() is not None
