"""Arrays over the message limit: cut into pieces, and scattered or gathered piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

__all__ = ["gather_by_messages", "offsets_of", "pieces", "scatter_by_messages"]


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


def scatter_by_messages(
    comm: Any, limit: int, array: NDArray[Any] | None, out: NDArray[Any], rows: Sequence[int], root: int
) -> list[Any]:
    """Start the messages of a scatter of rows; returns their requests.

    Parameters
    ----------
    comm : MPI.Intracomm
    limit : int
        Bytes of a message at most.
    array, out, rows, root
        As for `Group.scatter_rows`.
    """
    if comm.Get_rank() != root or array is None:
        return [comm.Irecv(piece, root) for piece in pieces(out, limit)]
    requests = []
    for rank, first in enumerate(offsets_of(rows)):
        block = array[first : first + rows[rank]]
        if rank == root:
            out[...] = block
        else:
            requests += [comm.Isend(piece, rank) for piece in pieces(block, limit)]
    return requests


def gather_by_messages(
    comm: Any, limit: int, array: NDArray[Any], out: NDArray[Any] | None, rows: Sequence[int], root: int
) -> list[Any]:
    """Start the messages of a gather of rows; returns their requests.

    Parameters
    ----------
    comm : MPI.Intracomm
    limit : int
        Bytes of a message at most.
    array, out, rows, root
        As for `Group.gather_rows`.
    """
    if comm.Get_rank() != root or out is None:
        return [comm.Isend(piece, root) for piece in pieces(array, limit)]
    requests = []
    for rank, first in enumerate(offsets_of(rows)):
        block = out[first : first + rows[rank]]
        if rank == root:
            block[...] = array
        else:
            requests += [comm.Irecv(piece, rank) for piece in pieces(block, limit)]
    return requests
