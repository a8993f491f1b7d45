"""Arrays of a device through pinned host memory, in chunks: MPI sees nothing but the host's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from hybridnn.comm.large_messages import offsets_of, pieces, row_layout
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.partition import block_slice
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.transfer import Transfer
from hybridnn.comm.transports.transport import Array, Recordings, copy_rows

__all__ = ["Staging"]

DEAL_TAG = 32_767
"""Tag of the messages a collective is made of: the highest that every MPI library has."""

ALL = slice(None)


class Staging:
    """Copy, message and copy of every chunk, beside those of the other chunks; see `Transport`.

    Arrays of the host are taken too, without the copies, so that both kinds keep one order; a collective may find
    them mixed, as where samples are scattered from the host's memory to devices.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of the group, of two ranks at least.
    limit : int
        Bytes above which an array travels in pieces, whatever the device's chunks are.
    device : Device

    Attributes
    ----------
    problem : str
        See `Transport.problem`.
    """

    problem = ""

    def __init__(self, comm: Any, limit: int, device: Device) -> None:
        self._comm, self._device = comm, device
        self._chunk = min(limit, device.chunk_bytes)
        self._size, self._rank = comm.Get_size(), comm.Get_rank()
        self._mpi: Any = import_mpi()

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum, or maximum, over the ranks."""
        how = self._mpi.SUM if operation == "sum" else self._mpi.MAX
        transfer = Transfer(self._device)
        for piece in self._pieces(array):
            begin = partial(self._comm.Iallreduce, self._mpi.IN_PLACE, op=how)
            transfer.stage(piece, begin, fetch=ALL, deliver=piece)
        return [transfer]

    def allgather(self, array: Array) -> list[Any]:
        """Fill the rows of `array` from everybody's block."""
        transfer = Transfer(self._device)
        if array.nbytes > self._chunk:
            for root in range(self._size):
                self._stage_broadcast(transfer, self._block(array, root), root)
            return [transfer]
        counts, offsets = row_layout(array, self._size)
        own = slice(offsets[self._rank], offsets[self._rank] + counts[self._rank])

        def begin(host: Array) -> Any:
            return self._comm.Iallgatherv(self._mpi.IN_PLACE, [host, counts, offsets, None])

        whole = array.reshape(-1)
        transfer.stage(whole, begin, fetch=own, deliver=whole)
        return [transfer]

    def reduce_scatter(self, array: Array, out: Array) -> list[Any]:
        """Sum `array`, and leave this rank's block of the rows of the sum in `out`."""
        transfer = Transfer(self._device)
        for root in range(self._size):
            targets = self._pieces(out) if root == self._rank else iter(())
            for piece in self._pieces(self._block(array, root)):
                transfer.stage(piece, partial(self._reduce, root), fetch=ALL, deliver=next(targets, None))
        return [transfer]

    def alltoall(self, array: Array, out: Array) -> list[Any]:
        """Send rank i row i of `array`, and receive row i of `out` from it."""
        transfer = Transfer(self._device)
        copy_rows(array[self._rank], out[self._rank])
        for step in range(1, self._size):
            # Everybody sends to another rank at a time.
            after, before = (self._rank + step) % self._size, (self._rank - step) % self._size
            self._receive(transfer, out[before], before, DEAL_TAG)
            self._send(transfer, array[after], after, DEAL_TAG)
        return [transfer]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Give every rank the root's `array`."""
        transfer = Transfer(self._device)
        self._stage_broadcast(transfer, array, root)
        return [transfer]

    def scatter(self, array: Array | None, out: Array, rows: Sequence[int], root: int) -> list[Any]:
        """Send every rank its rows of the root's `array`."""
        transfer = Transfer(self._device)
        if array is None or self._rank != root:
            self._receive(transfer, out, root, DEAL_TAG)
            return [transfer]
        for rank, first in enumerate(offsets_of(rows)):
            block = array[first : first + rows[rank]]
            if rank == root:
                copy_rows(block, out)
            else:
                self._send(transfer, block, rank, DEAL_TAG)
        return [transfer]

    def gather(self, array: Array, out: Array | None, rows: Sequence[int], root: int) -> list[Any]:
        """Collect every rank's rows in the root's `out`."""
        transfer = Transfer(self._device)
        if out is None or self._rank != root:
            self._send(transfer, array, root, DEAL_TAG)
            return [transfer]
        for rank, first in enumerate(offsets_of(rows)):
            block = out[first : first + rows[rank]]
            if rank == root:
                copy_rows(array, block)
            else:
                self._receive(transfer, block, rank, DEAL_TAG)
        return [transfer]

    def send(self, array: Array, peer: int, tag: int, synchronous: bool) -> list[Any]:
        """Send a message."""
        transfer = Transfer(self._device)
        self._send(transfer, array, peer, tag, synchronous=synchronous)
        return [transfer]

    def receive(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        transfer = Transfer(self._device)
        self._receive(transfer, array, peer, tag)
        return [transfer]

    def settle(self) -> None:
        """Hand to MPI what still waits for the device, on any group."""
        self._device.settle()

    def admits(self, recordings: Recordings) -> bool:
        """False: MPI's calls are the host's."""
        return False

    def disconnect(self) -> None:
        """Nothing but MPI connects the ranks."""

    # -- how the above is done ---------------------------------------------------------------------------------------

    def _stage_broadcast(self, transfer: Transfer, array: Array, root: int) -> None:
        is_root = self._rank == root
        for piece in self._pieces(array):
            begin = partial(self._comm.Ibcast, root=root)
            transfer.stage(piece, begin, fetch=ALL if is_root else None, deliver=None if is_root else piece)

    def _reduce(self, root: int, host: Array) -> Any:
        """Begin to sum at the root, in place."""
        if self._rank == root:
            return self._comm.Ireduce(self._mpi.IN_PLACE, host, self._mpi.SUM, root)
        return self._comm.Ireduce(host, None, self._mpi.SUM, root)

    def _send(self, transfer: Transfer, array: Array, peer: int, tag: int, *, synchronous: bool = False) -> None:
        """Add the messages that send `array`."""
        send = self._comm.Issend if synchronous else self._comm.Isend
        for piece in self._pieces(array):
            transfer.stage(piece, partial(send, dest=peer, tag=tag), fetch=ALL, deliver=None)

    def _receive(self, transfer: Transfer, array: Array, peer: int, tag: int) -> None:
        """Add the messages that fill `array`; their memory is free, so they need not wait for the device."""
        for piece in self._pieces(array):
            begin = partial(self._comm.Irecv, source=peer, tag=tag)
            transfer.stage(piece, begin, fetch=None, deliver=piece, waits_its_turn=False)

    def _block(self, array: Array, rank: int) -> Array:
        return array[block_slice(len(array), self._size, rank)]

    def _pieces(self, array: Array) -> Iterator[Array]:
        return pieces(array, self._chunk)
