"""Buffers of calls: what their specifications name, and what is done with them when all ranks have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.in_process.problems import CommunicationError

__all__ = [
    "IN_PLACE",
    "Delivers",
    "Flat",
    "combined",
    "copies",
    "equal_bytes",
    "flat_of",
    "is_in_place",
    "parts_of",
    "places",
    "reduced",
]

Flat = NDArray[Any]
Delivers = Sequence[Callable[[], None] | None]

IN_PLACE = "IN_PLACE"
REDUCTIONS: dict[str, Any] = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}

SMALL_BYTES = 4096
"""Up to here it is faster to compare copies than views."""


def is_in_place(buffer: Any) -> bool:
    """Whether a call names its receive buffer in place of a send buffer."""
    return isinstance(buffer, str) and buffer == IN_PLACE


def flat_of(given: Any) -> Flat:
    """The flat view of a buffer specification."""
    array = given[0] if isinstance(given, (list, tuple)) else given
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise CommunicationError(f"a buffer must be a contiguous array, not {type(array).__name__}")
    return array if array.ndim == 1 else array.reshape(-1)


def parts_of(given: Any, parts: int) -> tuple[Flat, list[int], list[int]]:
    """The flat view of a buffer specification, and the counts and offsets of its parts, by default equal ones."""
    flat = flat_of(given)
    rest = given[1:] if isinstance(given, (list, tuple)) else ()
    if rest and rest[0] is not None and not isinstance(rest[0], str):
        counts = list(rest[0])
        offsets = list(rest[1]) if len(rest) > 1 and rest[1] is not None else [0, *accumulate(counts)][:-1]
        return flat, counts, offsets
    count = flat.size // parts
    return flat, [count] * parts, [count * part for part in range(parts)]


def combined(arrays: Sequence[Flat], op: str) -> Flat:
    """The reduction of equally long arrays, in their order."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        if array.shape != total.shape or array.dtype != total.dtype:
            raise ValueError(f"{array.size:,} elements of {array.dtype} beside {total.size:,} of {total.dtype}")
        REDUCTIONS[op](total, array, out=total)
    return total


def reduced(all_: Sequence[tuple[Flat, Flat | None]], op: str, targets: Sequence[int]) -> Delivers:
    """What delivers the reduction of all arrays to the ranks `targets`; `all_` has each rank's array and buffer."""
    total = combined([given for given, _ in all_], op)
    return [copies(out, total) if rank in targets else None for rank, (_, out) in enumerate(all_)]


def copies(target: Flat | None, data: Flat) -> Callable[[], None]:
    """What copies `data` to the beginning of a buffer."""
    if target is None or target.size < data.size or target.dtype != data.dtype:
        room = "none" if target is None else f"{target.size:,} of {target.dtype}"
        raise ValueError(f"{data.size:,} elements of {data.dtype} for a buffer of {room}")

    def copy() -> None:
        target[: data.size] = data

    return copy


def places(target: Flat, parts: Sequence[Flat], offsets: Sequence[int]) -> Callable[[], None]:
    """What copies parts to their offsets in a buffer."""
    for part, at in zip(parts, offsets, strict=True):
        if at + part.size > target.size or part.dtype != target.dtype:
            raise ValueError(f"{part.size:,} elements of {part.dtype} at {at:,} of {target.size:,} of {target.dtype}")

    def place() -> None:
        for part, at in zip(parts, offsets, strict=True):
            target[at : at + part.size] = part

    return place


def equal_bytes(one: Flat, other: Flat) -> bool:
    """Whether two arrays of the same size and type have the same bits, so that NaN equals NaN."""
    if one.nbytes <= SMALL_BYTES:
        return one.tobytes() == other.tobytes()
    word = np.uint64 if one.nbytes % 8 == 0 else np.uint8
    return bool((one.view(word) == other.view(word)).all())
