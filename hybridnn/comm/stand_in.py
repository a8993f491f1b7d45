"""Stand-ins for ``mpi4py.MPI``: in a rank of several in one process, and in the one rank of a process without MPI.

They are made by `hybridnn.in_process`, which lies above this package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

ONE_RANK_FACTORY: list[Callable[[], object]] = []
"""Makes the stand-in of a single rank; `hybridnn` puts it here when it is imported."""

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
