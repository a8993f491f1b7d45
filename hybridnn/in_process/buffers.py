"""Buffers of calls: their specifications, the receive buffers, and reductions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.communication_errors import CommunicationError

Flat = NDArray[Any]

IN_PLACE = "IN_PLACE"
REDUCTIONS: dict[str, Any] = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}

SMALL_BYTES = 4096  # up to this size comparing copies is faster than comparing views


def is_in_place(buffer: Any) -> bool:
    """Whether a send buffer means that the receive buffer is sent; as in mpi4py, also for None."""
    return buffer is None or _is_constant(buffer, IN_PLACE)


def operation(op: Any) -> str:
    """The name of a reduction, given by its name or as mpi4py's constant."""
    for name in REDUCTIONS:
        if _is_constant(op, name):
            return name
    raise CommunicationError(f"op = {op!r}: ranks of one process have {', '.join(REDUCTIONS)}")


def _is_constant(given: Any, name: str) -> bool:
    """Whether an argument is the name of a constant, or the constant of mpi4py."""
    mpi = sys.modules.get("mpi4py.MPI")
    return (isinstance(given, str) and given == name) or (mpi is not None and given is getattr(mpi, name))


# -- specifications --------------------------------------------------------------------------------------------------


def flat_of(given: Any, *, writable: bool = False) -> Flat:
    """The flat view of a buffer specification: an array, or ``[array, count, datatype]``."""
    flat, rest = _flat_and_rest(given, writable)
    if not rest or not isinstance(rest[0], (int, np.integer)):
        return flat
    if not 0 <= rest[0] <= flat.size:
        raise CommunicationError(f"count {rest[0]} of an array of {flat.size:,} elements")
    return flat[: rest[0]]


def _flat_and_rest(given: Any, writable: bool) -> tuple[Flat, list[Any]]:
    """The flat view of the array of a buffer specification, and what follows the array."""
    array, *rest = given if isinstance(given, (list, tuple)) and given else (given,)
    if not isinstance(array, np.ndarray):
        raise CommunicationError(f"a buffer must be a NumPy array, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise CommunicationError(f"a buffer must be contiguous: copy the array of shape {array.shape} first")
    if array.dtype.kind not in "biufc":
        raise CommunicationError(f"a buffer must hold numbers, not {array.dtype}")
    if writable and not array.flags.writeable:
        raise CommunicationError("a receive buffer must not be read-only")
    return (array if array.ndim == 1 else array.reshape(-1)), rest


def blocks_of(given: Any, ranks: int, *, writable: bool = False) -> tuple[Flat, list[int], list[int]]:
    """The flat view of a buffer specification, and the counts and offsets of its blocks, by default equal ones.

    A specification is an array, ``[array, count]`` with the count of every block, ``[array, counts, offsets]`` or
    ``[array, (counts, offsets)]``; a datatype may follow.
    """
    flat, rest = _flat_and_rest(given, writable)
    if rest and isinstance(rest[0], tuple) and len(rest[0]) == 2 and not isinstance(rest[0][0], (int, np.integer)):
        rest = [*rest[0], *rest[1:]]
    if rest and isinstance(rest[0], (int, np.integer)):
        counts = [int(rest[0])] * ranks
    elif rest and isinstance(rest[0], (list, tuple, np.ndarray)):
        counts = [int(count) for count in rest[0]]
    else:
        counts = [flat.size // ranks] * ranks
        if flat.size % ranks:
            raise CommunicationError(f"{flat.size:,} elements are not {ranks} equal parts: give counts")
    has_offsets = len(rest) > 1 and isinstance(rest[1], (list, tuple, np.ndarray))
    offsets = [int(offset) for offset in rest[1]] if has_offsets else [0, *accumulate(counts)][:-1]
    if len(counts) != ranks or len(offsets) != ranks:
        raise CommunicationError(f"{len(counts)} counts and {len(offsets)} offsets for {ranks} ranks")
    if any(n < 0 or at < 0 or at + n > flat.size for n, at in zip(counts, offsets, strict=True)):
        raise CommunicationError(f"parts {counts} at {offsets} do not lie in an array of {flat.size:,} elements")
    return flat, counts, offsets


# -- receiving -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _unreadable(dtype: np.dtype[Any]) -> Flat:
    """One element that no program can use by accident: NaN, or a conspicuous number."""
    return np.full(1, np.nan, dtype) if dtype.kind in "fc" else np.frombuffer(b"\xa5" * 16, dtype, 1)


class ReceiveBuffer:
    """An array into which data will be received.

    If `unreadable`, it is filled, until the data arrive, with what no program can use by accident. With `may_stay`,
    fewer data may arrive than fit; the elements that they do not fill keep their values.
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
        """The function that copies `data` to the beginning.

        Data of another dtype or size than the buffer, with `at_most` of a larger size, are a ValueError.
        """
        array, size = self.array, data.size
        if data.dtype != array.dtype or size > array.size or (size < array.size and not at_most):
            raise ValueError(f"{size:,} elements of {data.dtype} for a buffer of {array.size:,} of {array.dtype}")

        def copy() -> None:
            if self._before is not None and size < array.size:
                array[size:] = self._before[size:]
            array[:size] = data

        return copy

    def takes_blocks(self, blocks: Sequence[Flat], counts: Sequence[int], offsets: Sequence[int]) -> Callable[[], None]:
        """The function that copies blocks to their offsets; elements between them keep their values.

        A block with another dtype or count is a ValueError.
        """
        for block, count in zip(blocks, counts, strict=True):
            if block.size != count or block.dtype != self.array.dtype:
                raise ValueError(f"{block.size:,} elements of {block.dtype} for {count:,} of {self.array.dtype}")

        def copy() -> None:
            if self._before is not None and sum(counts) < self.array.size:
                self.array[:] = self._before
            for block, offset in zip(blocks, offsets, strict=True):
                self.array[offset : offset + block.size] = block

        return copy


def equal_bytes(first: Flat, second: Flat) -> bool:
    """Whether two arrays of the same size and dtype have the same bits, so that NaN equals NaN."""
    if first.nbytes <= SMALL_BYTES:
        return first.tobytes() == second.tobytes()
    word = np.uint64 if first.nbytes % 8 == 0 else np.uint8
    return bool((first.view(word) == second.view(word)).all())


# -- collectives -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Contribution:
    """Arguments of a rank in a collective."""

    sent: Any = None  # copy of what is sent
    target: ReceiveBuffer | None = None  # where the result arrives
    lent: Flat | None = None  # the send buffer, which must not change before the wait; None in place
    nbytes: int = 0  # bytes of the full vector
    part: int | None = None  # bytes of this rank's block, where the full vector consists of such
    # Counts and offsets of the blocks of `target`, where only the root has them.
    layout: tuple[Sequence[int], Sequence[int]] = ((), ())


Delivery = Callable[[], None] | None  # copies a rank's result into its buffer

Collective = Callable[[Sequence[Contribution]], Sequence[Delivery]]
"""From the contributions of all ranks to their deliveries."""


def reduced(contributions: Sequence[Contribution], op: str) -> Flat:
    """The reduction of equally long arrays, in the order of the ranks."""
    total: Flat = contributions[0].sent.copy()
    for contribution in contributions[1:]:
        array = contribution.sent
        if array.shape != total.shape or array.dtype != total.dtype:
            raise ValueError(f"{array.size:,} elements of {array.dtype} beside {total.size:,} of {total.dtype}")
        REDUCTIONS[op](total, array, out=total)
    return total
