"""Communicators and other values that are kept with a communicator, and freed with it.

Grids and groups of equal ranks share communicators, of which MPI libraries have few: MPICH has 2,048.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import ref

from hybridnn.comm.mpi import import_mpi, ranks_within

if TYPE_CHECKING:
    from mpi4py import MPI

COLLECT_EVERY = 16  # freed communicators whose parts are still used, before objects in cycles are collected

Value = TypeVar("Value")


def kept_split(comm: MPI.Intracomm, key: Hashable, color: int, order: int) -> MPI.Intracomm | None:
    """The kept communicator of the ranks with the same `color`, in rising `order`; None for one rank. Collective."""

    def split() -> MPI.Intracomm | None:
        part = cast("MPI.Intracomm", comm.Split(color, order))
        if part.Get_size() > 1:
            return part
        part.Free()
        return None

    return kept(comm, key, split)


def kept(comm: MPI.Intracomm, key: Hashable, make: Callable[[], Value]) -> Value:
    """What `make` returned for an equal `key` before, kept with `comm` while that exists.

    Every rank of `comm` calls this with the same keys in the same order, so that `make` may be collective.
    """
    keyval = _kept_keyval(import_mpi().Intracomm)
    values = cast("dict[Hashable, Value] | None", comm.Get_attr(keyval))
    if values is None:
        values = {}
        comm.Set_attr(keyval, values)
    if key not in values:
        values[key] = make()
    return values[key]


def free_unused(comm: MPI.Intracomm) -> None:
    """Free communicators that were kept with freed ones of the same ranks as `comm`; collective.

    Those that a rank still uses stay: freeing is collective, and ranks drop their grids at different times.
    """
    mpi: Any = import_mpi()
    left = kept(mpi.COMM_WORLD, _key_of_left(comm), list[_Parts])
    if not left:
        return
    if len(left) % COLLECT_EVERY == 0:
        gc.collect()  # a trainer that was dropped is part of a cycle
    unused = bytearray(all(user() is None for _, user in parts) for parts in left)
    comm.Allreduce(mpi.IN_PLACE, [unused, mpi.UNSIGNED_CHAR], mpi.MIN)
    for parts, is_unused in zip(left[:], unused, strict=True):
        if is_unused:
            left.remove(parts)
            for part, _ in parts:
                _free_with_parts(part)


_Parts = list[tuple[Any, "ref[Any]"]]  # communicators, and the objects whose end shows that they are not used


def _key_of_left(comm: MPI.Intracomm) -> tuple[str, tuple[int, ...]]:
    return "left", tuple(ranks_within(comm, import_mpi().COMM_WORLD))


@lru_cache(maxsize=2)
def _kept_keyval(kind: Any) -> Any:
    return kind.Create_keyval(delete_fn=_leave_parts)


def _leave_parts(comm: MPI.Intracomm, _: Any, values: dict[Hashable, Any]) -> None:
    """Leave the communicators that were kept with `comm`, which is being freed, for `free_unused`."""
    mpi: Any = import_mpi()
    parts = [(mpi.Intracomm(value), ref(value)) for value in values.values() if isinstance(value, mpi.Intracomm)]
    if comm in (mpi.COMM_WORLD, mpi.COMM_SELF) or not parts:  # MPI frees the first two when it ends
        return
    key = _key_of_left(comm)
    if min(key[1]) >= 0:  # no ranks of another job, which have numbers of their own
        kept(mpi.COMM_WORLD, key, list[_Parts]).append(parts)


def _free_with_parts(comm: Any) -> None:
    values = comm.Get_attr(_kept_keyval(import_mpi().Intracomm)) or {}
    for value in values.values():
        if isinstance(value, import_mpi().Intracomm):
            _free_with_parts(value)
        elif hasattr(value, "free_unused"):
            value.free_unused(comm)
    values.clear()
    comm.Free()
