"""Transport, which carries out the calls of a group on host arrays; those of a GPU override it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridnn.comm.blocks import block_slice, offsets_of, pieces, row_layout
from hybridnn.comm.mpi import import_mpi
from hybridnn.nn.kernels import Array

Graphs = MutableMapping[int, Callable[..., None]]
"""Replays of CUDA graphs by a key. A graph is freed when the last mapping that holds it drops it."""

COLLECTIVE_TAG = 32_767  # tag of the messages that a collective consists of: the highest that every MPI library has

REDUCTIONS = ("sum", "max")
"""Operations of an all-reduce."""


@dataclass(frozen=True)
class BucketConfig:
    """Division of an all-reduce that overlaps with computations into messages."""

    # smallest size of a bucket, except for the last one: smaller ones cost more latency than they hide
    bucket_bytes: int
    # size of the pieces of a bucket, and how many of them are in flight at a time
    piece_bytes: int
    in_flight: int
    single_blocks: bool  # whether an array of one bucket is reduced by a blocking call


HOST_BUCKETS = BucketConfig(1 << 19, 1 << 19, 2, single_blocks=True)
"""The fastest values with Open MPI 5.0. The blocking call is faster still: on a node whose cores are all busy, overlap
gains nothing."""


class Transport:
    """Starts the calls of one group; this one gives MPI the host arrays themselves, and those of a GPU override it.

    A call returns a list of what must be completed: MPI requests, or one object with their ``Testall`` and ``Waitall``.
    No method but `disconnect` blocks until another rank has made progress.

    Parameters
    ----------
    comm : MPI.Intracomm or None
        None for a group of one rank, which makes no calls.
    limit : int
        Bytes above which an array travels in pieces.

    Attributes
    ----------
    buckets : BucketConfig
    problem : str
        Why this rank could not be connected as requested; empty if it was, and where only another rank could not. All
        ranks of the group stage then.
    """

    problem = ""
    buckets = HOST_BUCKETS

    def __init__(self, comm: Any, limit: int) -> None:
        self._comm, self._limit = comm, limit
        self._size: int = 1 if comm is None else comm.Get_size()
        self._rank: int = 0 if comm is None else comm.Get_rank()
        self._mpi: Any = import_mpi() if self._size > 1 else None

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum or maximum over the ranks."""
        op = getattr(self._mpi, operation.upper())
        return [self._comm.Iallreduce(self._mpi.IN_PLACE, piece, op) for piece in self._pieces(array)]

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        if array.nbytes <= self._limit:
            counts, offsets = row_layout(array, self._size)
            return [self._comm.Iallgatherv(self._mpi.IN_PLACE, [array, counts, offsets, None])]
        return [
            self._comm.Ibcast(piece, root)
            for root in range(self._size)
            for piece in self._pieces(array[block_slice(len(array), self._size, root)])
        ]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        return [self._comm.Ibcast(piece, root) for piece in self._pieces(array)]

    def exchange_rows(
        self, full: Array | None, part: Array, rows: Sequence[int], root: int, *, scatters: bool
    ) -> list[Any]:
        """Scatter the rows of the root's `full` array to the `part` of every rank, or gather them, by messages."""
        if self._rank != root or full is None:
            start = self._comm.Irecv if scatters else self._comm.Isend
            return [start(piece, root, COLLECTIVE_TAG) for piece in self._pieces(part)]
        start, requests = (self._comm.Isend if scatters else self._comm.Irecv), []
        for rank, first in enumerate(offsets_of(rows)):
            block = full[first : first + rows[rank]]
            if rank != root:
                requests += [start(piece, rank, COLLECTIVE_TAG) for piece in self._pieces(block)]
            elif scatters:
                part[...] = block
            else:
                block[...] = part
        return requests

    def send(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Send a message."""
        return [self._comm.Isend(piece, peer, tag) for piece in self._pieces(array)]

    def receive(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        return [self._comm.Irecv(piece, peer, tag) for piece in self._pieces(array)]

    def flush(self) -> None:
        """Start all calls that wait for the device, of any group; called before this rank blocks in MPI."""

    def register_graphs(self, graphs: Graphs) -> bool:
        """Whether collectives can be captured in CUDA graphs; if so, `graphs` is cleared before `disconnect`.

        The same on all ranks of the group. True for one rank, which makes no calls to capture.
        """
        return self._size == 1

    def disconnect(self) -> None:
        """Close the connections beside MPI; calls are staged from then on. Collective, with nothing in flight."""

    def _pieces(self, array: Array) -> Sequence[Array]:
        return pieces(array, self._limit)


def is_on_host(array: Array) -> bool:
    """Whether `array` lies in host memory."""
    return isinstance(array, np.ndarray)


def copy_rows(source: Array, target: Array) -> None:
    """``target[...] = source`` between any memories. Copies of the device are enqueued on its current stream."""
    if is_on_host(source) == is_on_host(target):
        target[...] = source
    elif is_on_host(source):
        target.set(source)
    else:
        source.get(out=target)
