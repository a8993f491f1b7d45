"""Buffers of calls: what their specifications name, and what is done with them when all ranks have come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.errors import CommunicationError

Flat = NDArray[Any]
Delivers = Sequence[Callable[[], None] | None]

IN_PLACE = "IN_PLACE"
REDUCTIONS: dict[str, Any] = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}

SMALL_BYTES = 4096
"""Up to here it is faster to compare copies than views."""


def is_in_place(buffer: Any) -> bool:
    """Whether a call names its receive buffer in place of a send buffer; as in mpi4py, None does so too."""
    if buffer is None or (isinstance(buffer, str) and buffer == IN_PLACE):
        return True
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and buffer is mpi.IN_PLACE


def operation(op: Any) -> str:
    """The name of a reduction, which is given by its name or as mpi4py's constant.

    Raises
    ------
    CommunicationError
        For any other one.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    for name in REDUCTIONS:
        if (isinstance(op, str) and op == name) or (mpi is not None and op is getattr(mpi, name)):
            return name
    raise CommunicationError(f"op = {op!r}: ranks of one process have {', '.join(REDUCTIONS)}")


def flat_of(given: Any, *, writable: bool = False) -> Flat:
    """The flat view of what a buffer specification names: an array, or ``[array, count, datatype]``.

    Raises
    ------
    CommunicationError
        If it is not a contiguous array of numbers, is read-only where it must not be, or shorter than the count.
    """
    if not isinstance(given, (list, tuple)):
        return _flat(given, writable)
    flat = _flat(given[0] if given else given, writable)
    count = given[1] if len(given) > 1 else None
    if not isinstance(count, (int, np.integer)):
        return flat
    if not 0 <= count <= flat.size:
        raise CommunicationError(f"count {count} of an array of {flat.size:,} elements")
    return flat[:count]


def _flat(array: Any, writable: bool) -> Flat:
    if not isinstance(array, np.ndarray):
        raise CommunicationError(f"a buffer must be a NumPy array, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise CommunicationError(f"a buffer must be contiguous: copy the array of shape {array.shape} first")
    if array.dtype.kind not in "biufc":
        raise CommunicationError(f"a buffer must hold numbers, not {array.dtype}")
    if writable and not array.flags.writeable:
        raise CommunicationError("a receive buffer must not be read-only")
    return array if array.ndim == 1 else array.reshape(-1)


def parts_of(given: Any, parts: int, *, writable: bool = False) -> tuple[Flat, list[int], list[int]]:
    """The flat view of a buffer specification, and the counts and offsets of its parts, by default equal ones.

    It is an array, ``[array, count]`` with the count of every part, ``[array, counts, offsets]`` or
    ``[array, (counts, offsets)]``; a datatype may follow.
    """
    rest = list(given[1:]) if isinstance(given, (list, tuple)) else []
    flat = _flat(given[0] if isinstance(given, (list, tuple)) and given else given, writable)
    if rest and isinstance(rest[0], tuple) and len(rest[0]) == 2 and not isinstance(rest[0][0], (int, np.integer)):
        rest = [*rest[0], *rest[1:]]
    if rest and isinstance(rest[0], (int, np.integer)):
        counts = [int(rest[0])] * parts
    elif rest and isinstance(rest[0], (list, tuple, np.ndarray)):
        counts = [int(count) for count in rest[0]]
    else:
        counts = [flat.size // parts] * parts
        if flat.size % parts:
            raise CommunicationError(f"{flat.size:,} elements are not {parts} equal parts: give counts")
    given_offsets = len(rest) > 1 and isinstance(rest[1], (list, tuple, np.ndarray))
    offsets = [int(at) for at in rest[1]] if given_offsets else [0, *accumulate(counts)][:-1]
    if len(counts) != parts or len(offsets) != parts:
        raise CommunicationError(f"{len(counts)} counts and {len(offsets)} offsets for {parts} ranks")
    if any(n < 0 or at < 0 or at + n > flat.size for n, at in zip(counts, offsets, strict=True)):
        raise CommunicationError(f"parts {counts} at {offsets} do not lie in an array of {flat.size:,} elements")
    return flat, counts, offsets


@lru_cache(maxsize=64)
def _unreadable(dtype: np.dtype[Any]) -> Flat:
    """One element that no program can use by accident: NaN, or a number that stands out."""
    return np.full(1, np.nan, dtype) if dtype.kind in "fc" else np.frombuffer(b"\xa5" * 16, dtype, 1)


class ReceiveBuffer:
    """An array that data will arrive in.

    Parameters
    ----------
    array : ndarray
        Flat.
    unreadable : bool
        Fill it, until they have arrived, with what no program can use by accident.
    may_stay : bool
        Fewer data may arrive than it has room for: what they do not fill is as it was before.
    """

    __slots__ = ("_before", "_unreadable", "array")

    def __init__(self, array: Flat, *, unreadable: bool, may_stay: bool = False) -> None:
        self.array = array
        self._unreadable = unreadable and array.size > 0
        self._before = array.copy() if self._unreadable and may_stay else None
        if self._unreadable:
            array.fill(_unreadable(array.dtype)[0])

    @property
    def is_touched(self) -> bool:
        """Whether the program has written to it."""
        if not self._unreadable:
            return False
        array, element = self.array, _unreadable(self.array.dtype)
        if array.nbytes <= SMALL_BYTES:
            return array.tobytes() != element.tobytes() * array.size
        return not (np.isnan(array) if array.dtype.kind in "fc" else array == element).all()

    def takes(self, data: Flat, *, at_most: bool = False) -> Callable[[], None]:
        """What copies `data` to the beginning.

        Raises
        ------
        ValueError
            If it is of another type, or not as long as the buffer; with `at_most`, if it is longer.
        """
        array, size = self.array, data.size
        if data.dtype != array.dtype or size > array.size or (size < array.size and not at_most):
            raise ValueError(f"{size:,} elements of {data.dtype} for a buffer of {array.size:,} of {array.dtype}")

        def place() -> None:
            if self._before is not None and size < array.size:
                array[size:] = self._before[size:]
            array[:size] = data

        return place

    def takes_parts(self, parts: Sequence[Flat], counts: Sequence[int], offsets: Sequence[int]) -> Callable[[], None]:
        """What copies parts of these lengths to their offsets; what lies between them stays as it was.

        Raises
        ------
        ValueError
            If a part is of another type or length.
        """
        for part, count in zip(parts, counts, strict=True):
            if part.size != count or part.dtype != self.array.dtype:
                raise ValueError(f"{part.size:,} elements of {part.dtype} for {count:,} of {self.array.dtype}")

        def place() -> None:
            if self._before is not None and sum(counts) < self.array.size:
                self.array[:] = self._before
            for part, at in zip(parts, offsets, strict=True):
                self.array[at : at + part.size] = part

        return place


def combined(arrays: Sequence[Flat], op: str) -> Flat:
    """The reduction of equally long arrays, in their order."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        if array.shape != total.shape or array.dtype != total.dtype:
            raise ValueError(f"{array.size:,} elements of {array.dtype} beside {total.size:,} of {total.dtype}")
        REDUCTIONS[op](total, array, out=total)
    return total


def reduced(all_: Sequence[tuple[Flat, ReceiveBuffer | None]], op: str, targets: Sequence[int]) -> Delivers:
    """What delivers the reduction of all arrays to the ranks `targets`; `all_` has each rank's array and buffer."""
    total = combined([given for given, _ in all_], op)
    delivers: list[Callable[[], None] | None] = [None] * len(all_)
    for rank in targets:
        out = all_[rank][1]
        if out is None:
            raise ValueError(f"rank {rank} has no receive buffer")
        delivers[rank] = out.takes(total)
    return delivers


def equal_bytes(one: Flat, other: Flat) -> bool:
    """Whether two arrays of the same size and type have the same bits, so that NaN equals NaN."""
    if one.nbytes <= SMALL_BYTES:
        return one.tobytes() == other.tobytes()
    word = np.uint64 if one.nbytes % 8 == 0 else np.uint8
    return bool((one.view(word) == other.view(word)).all())
