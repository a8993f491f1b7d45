"""Arrays of a device through pinned host memory, in chunks: MPI sees nothing but the host's memory.

A call on arrays of a device in flight: what it copies, when its messages begin, and whether it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.partition import block_slice, offsets_of, pieces, row_layout
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.transport import Array, Graphs, copy_rows, is_on_host

Begin = Callable[[Array], Any]
"""Hands an array to MPI and returns the request."""


@dataclass
class _Part:
    """One request of MPI, and where what it brings is copied afterwards."""

    array: Array
    begin: Begin
    memory: NDArray[np.uint8] | None = None
    target: Array | None = None
    request: Any = None

    def start(self) -> None:
        self.request = self.begin(self.array)


class Transfer:
    """Answers to ``Testall`` and ``Waitall`` as a request of MPI does, so that `Request` need not tell them apart.

    Done means that the messages are; copies to the device may still be under way, and the current stream waits for
    them before it goes on.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._parts: deque[_Part] = deque()
        self._begun_after: Any = None
        self._delivered: Any = None

    def stage(
        self, piece: Array, begin: Begin, *, fetch: slice | None, deliver: Array | None, waits_its_turn: bool = True
    ) -> None:
        """Add a request on `piece`, which travels through pinned memory where it lies on the device.

        Parameters
        ----------
        piece : array, shape (n,)
        begin : callable
            Given `piece` on the host.
        fetch : slice or None
            The part of `piece` that is read.
        deliver : array, shape (n,), or None
            Where to copy what has arrived; most often `piece` itself.
        waits_its_turn : bool
            Begin after everything that was begun before; else at once.
        """
        part, ready = _Part(piece, begin, target=deliver), None
        if is_on_host(piece):
            part.target = None if deliver is piece else deliver
        else:
            self._follow_the_stream()
            part.memory = self._device.pinned.acquire(piece.nbytes)
            part.array = part.memory[: piece.nbytes].view(piece.dtype)
            if fetch is not None:
                ready = self._device.fetch(piece[fetch], part.array[fetch])
        self._add(part, ready, waits_its_turn)

    def pass_on(self, piece: Array, begin: Begin) -> None:
        """Add a request on `piece`, which MPI gets as it is once the device has done with it."""
        self._add(_Part(piece, begin), None if is_on_host(piece) else self._follow_the_stream(), waits_its_turn=True)

    def Testall(self, _requests: list[Any]) -> bool:  # noqa: N802 - the name MPI gives it
        """Make progress, on everything that waits for the device too; True once done."""
        self._device.deferred_calls.poll()
        while self._parts and self._parts[0].request is not None and self._parts[0].request.Test():
            self._arrived(self._parts.popleft())
        return not self._parts and self._ended()

    def Waitall(self, requests: list[Any]) -> None:  # noqa: N802 - the name MPI gives it
        """Return when done."""
        # While anything waits for the device somebody may need it from us, so MPI must not keep us.
        while self._device.deferred_calls:
            if self.Testall(requests):
                return
            sleep(0)
        while self._parts:
            self._parts[0].request.Wait()
            self._arrived(self._parts.popleft())
        self._ended()

    def _follow_the_stream(self) -> Any:
        """The event before which the arrays were somebody else's."""
        if self._begun_after is None:
            self._begun_after = self._device.mark()
            self._device.copies_follow(self._begun_after)
        return self._begun_after

    def _add(self, part: _Part, ready: Any, waits_its_turn: bool) -> None:
        self._parts.append(part)
        if waits_its_turn:
            self._device.deferred_calls.add(ready, part.start)
        else:
            part.start()

    def _arrived(self, part: _Part) -> None:
        event = None
        if is_on_host(part.target):
            copy_rows(part.array, part.target)
        elif part.target is not None:
            event = self._delivered = self._device.deliver(part.array, part.target)
        if part.memory is not None:
            self._device.pinned.release(part.memory, event)

    def _ended(self) -> bool:
        if self._delivered is not None:
            self._device.continue_after(self._delivered)
        return True


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

    def flush(self) -> None:
        """Hand to MPI what still waits for the device, on any group."""
        self._device.flush()

    def register_graphs(self, recordings: Graphs) -> bool:
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
