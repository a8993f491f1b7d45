"""Block partition: the rule by which rows, samples and layers are divided among parts.

The first ``n mod p`` of p parts have one item more than the others; nothing has to be divisible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def block_sizes(items: int, parts: int) -> list[int]:
    """Sizes of all parts; some are empty when there are more parts than items."""
    quotient, remainder = divmod(items, parts)
    return [quotient + (part < remainder) for part in range(parts)]


def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
    """First item of `part`, and the one after its last."""
    quotient, remainder = divmod(items, parts)
    start = part * quotient + min(part, remainder)
    return start, start + quotient + (part < remainder)


def block_slice(items: int, parts: int, part: int) -> slice:
    """The items of `part` as a slice."""
    return slice(*block_bounds(items, parts, part))


def block_size(items: int, parts: int, part: int) -> int:
    """Number of items of `part`."""
    return items // parts + (part < items % parts)


def offsets_of(counts: Sequence[int]) -> list[int]:
    """First item of every part, from the numbers of items."""
    offsets = [0]
    for count in counts[:-1]:
        offsets.append(offsets[-1] + count)
    return offsets


def row_layout(array: NDArray[Any], ranks: int) -> tuple[list[int], list[int]]:
    """Element counts and offsets of the blocks of rows of `array`. The lists are cached: do not change them."""
    return _row_layout(len(array), array.size // max(len(array), 1), ranks)


@lru_cache(maxsize=1024)
def _row_layout(rows: int, width: int, ranks: int) -> tuple[list[int], list[int]]:
    counts = [n * width for n in block_sizes(rows, ranks)]
    return counts, offsets_of(counts)


def pieces(array: NDArray[Any], limit: int) -> Sequence[NDArray[Any]]:
    """A contiguous `array` as flat views of at most `limit` bytes; at least one view, empty for an empty array."""
    flat = array.reshape(-1)
    if flat.nbytes <= limit:
        return (flat,)
    step = max(1, limit // array.itemsize)
    return [flat[start : start + step] for start in range(0, flat.size, step)]
