"""Where blocks lie in arrays, and arrays over the message limit: cut into pieces, scattered or gathered by piece.

The block partition: the one rule by which rows, samples and layers are dealt out.

The first ``n mod p`` parts get one item more than the others. Nothing has to be divisible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def block_sizes(items: int, parts: int) -> list[int]:
    """Size of every part when `items` are dealt to `parts`; parts may be empty when there are more of them."""
    quotient, remainder = divmod(items, parts)
    return [quotient + (part < remainder) for part in range(parts)]


def block_bounds(items: int, parts: int, part: int) -> tuple[int, int]:
    """First item of `part` and the one after its last."""
    quotient, remainder = divmod(items, parts)
    start = part * quotient + min(part, remainder)
    return start, start + quotient + (part < remainder)


def block_slice(items: int, parts: int, part: int) -> slice:
    """The items of `part` as a slice."""
    return slice(*block_bounds(items, parts, part))


def block_size(items: int, parts: int, part: int) -> int:
    """Number of items of `part`."""
    return items // parts + (part < items % parts)


def pieces(array: NDArray[Any], limit: int) -> Iterator[NDArray[Any]]:
    """`array`, which is contiguous, as flat views of at most `limit` bytes; at least one, perhaps empty."""
    flat = array.reshape(-1)
    step = max(1, limit // array.itemsize)
    for start in range(0, max(flat.size, 1), step):
        yield flat[start : start + step]


def offsets_of(counts: Sequence[int]) -> list[int]:
    """First item of every part, for parts of so many items."""
    offsets = [0]
    for count in counts[:-1]:
        offsets.append(offsets[-1] + count)
    return offsets


def row_layout(array: NDArray[Any], ranks: int) -> tuple[list[int], list[int]]:
    """Items and first item of every rank's block of the rows of `array`; shared, so not to be changed."""
    return _row_layout(len(array), array.size // max(len(array), 1), ranks)


@lru_cache(maxsize=1024)
def _row_layout(rows: int, width: int, ranks: int) -> tuple[list[int], list[int]]:
    counts = [n * width for n in block_sizes(rows, ranks)]
    return counts, offsets_of(counts)


def deal_by_messages(
    comm: Any,
    limit: int,
    whole: NDArray[Any] | None,
    part: NDArray[Any],
    rows: Sequence[int],
    root: int,
    *,
    scatters: bool,
) -> list[Any]:
    """Start the messages of a scatter or a gather of rows; returns their requests.

    Parameters
    ----------
    comm : MPI.Intracomm
    limit : int
        Bytes of a message at most.
    whole : ndarray, shape (sum of rows, ...), or None
        On the root.
    part : ndarray, shape (rows[rank], ...)
        On every rank.
    rows : sequence of int
        Rows of every rank.
    scatters : bool
        True: the root's `whole` goes to the parts; False: the parts come together in it.
    """
    if comm.Get_rank() != root or whole is None:
        start = comm.Irecv if scatters else comm.Isend
        return [start(piece, root) for piece in pieces(part, limit)]
    start, requests = (comm.Isend if scatters else comm.Irecv), []
    for rank, first in enumerate(offsets_of(rows)):
        block = whole[first : first + rows[rank]]
        if rank != root:
            requests += [start(piece, rank) for piece in pieces(block, limit)]
        elif scatters:
            part[...] = block
        else:
            block[...] = part
    return requests
