"""Whole rows of matrices that are split by columns, so that a rank writes one stretch of a file and not one per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import Group
from hybridnn.comm.partition import block_sizes
from hybridnn.kernels.backend import Array

__all__ = ["gather_whole_rows"]


def gather_whole_rows(
    group: Group, block: Array, rows: Sequence[slice], out: NDArray[Any], to_host: Callable[[Array], NDArray[Any]]
) -> None:
    """Give every rank of a group some rows of a matrix of which each holds a block of columns; collective.

    Parameters
    ----------
    group : Group
    block : array, shape (all rows, this rank's columns)
    rows : sequence of slice
        What each rank gets.
    out : ndarray, shape (this rank's rows, all columns)
    to_host : callable
        As `Kernels.to_host`.
    """
    widths = block_sizes(out.shape[1], group.size)
    for rank, wanted in enumerate(rows):
        piece = to_host(block[wanted])
        counts = [len(piece) * width for width in widths]
        pieces = np.empty(out.size, out.dtype) if rank == group.rank else None
        group.gather_rows(piece.reshape(-1), pieces, counts, root=rank)
        if pieces is not None:
            parts = np.split(pieces, np.cumsum(counts)[:-1])
            shaped = [part.reshape(len(out), width) for part, width in zip(parts, widths, strict=True)]
            np.concatenate(shaped, axis=1, out=out)
