"""Transports of device arrays through MPI: staged in pinned host memory, or read in place by a device-aware library."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import block_slice, offsets_of, row_layout
from hybridnn.comm.transport import COLLECTIVE_TAG, BucketConfig, Transport, copy_rows, is_on_host
from hybridnn.gpu.device import Device
from hybridnn.nn.kernels import Array

ALL = slice(None)

DEVICE_BUCKETS = BucketConfig(1 << 24, 1 << 30, 1 << 10, single_blocks=False)
"""A device computes while messages are in flight, and its transports divide them, so pieces are not limited here. The
bucket size keeps a connection of many GB/s busy for about as long as a collective takes to start."""

StartCall = Callable[[Array], Any]  # starts an MPI call on an array and returns the request


@dataclass
class _StagedPiece:
    """One MPI call of a transfer, and where the data that it receives are copied to."""

    array: Array
    start_call: StartCall
    memory: NDArray[np.uint8] | None = None
    target: Array | None = None
    request: Any = None

    def start(self) -> None:
        self.request = self.start_call(self.array)


class Transfer:
    """A call in flight on arrays of a device, with the ``Testall`` and ``Waitall`` of an MPI request.

    It is done when its messages are. Copies to the device may still be in flight then; the current stream waits for
    them.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: deque[_StagedPiece] = deque()
        self._started_after: Any = None
        self._last_copy: Any = None

    def stage(
        self, array: Array, start_call: StartCall, *, fetch: slice | None, deliver: Array | None, in_order: bool = True
    ) -> None:
        """Add an MPI call on `array`, shape (n,), through pinned memory if it lies on the device.

        `start_call` takes the array on the host, of which the elements `fetch` are read. Received data are copied to
        `deliver`, most often `array` itself. The call starts after all that were added before, or at once if not
        `in_order`.
        """
        piece, ready = _StagedPiece(array, start_call, target=deliver), None
        if is_on_host(array):
            piece.target = None if deliver is array else deliver
        else:
            self._follow_stream()
            piece.memory = self._device.pinned.acquire(array.nbytes)
            piece.array = piece.memory[: array.nbytes].view(array.dtype)
            if fetch is not None:
                ready = self._device.copy_to_host(array[fetch], piece.array[fetch])
        self._add(piece, ready, in_order)

    def pass_on(self, array: Array, start_call: StartCall) -> None:
        """Add an MPI call on `array` itself, which starts when the device has finished with it."""
        ready = None if is_on_host(array) else self._follow_stream()
        self._add(_StagedPiece(array, start_call), ready, in_order=True)

    def Testall(self, _requests: list[Any]) -> bool:  # noqa: N802 - name of mpi4py
        """Make progress, with all deferred calls too; True once done."""
        self._device.deferred_calls.poll()
        while self._pieces and self._pieces[0].request is not None and self._pieces[0].request.Test():
            self._deliver(self._pieces.popleft())
        return not self._pieces and self._finish()

    def Waitall(self, requests: list[Any]) -> None:  # noqa: N802 - name of mpi4py
        """Return when done."""
        # Other ranks may need the deferred calls of this one, so it must not block in MPI before they have started.
        while self._device.deferred_calls:
            if self.Testall(requests):
                return
            sleep(0)
        while self._pieces:
            self._pieces[0].request.Wait()
            self._deliver(self._pieces.popleft())
        self._finish()

    def _follow_stream(self) -> Any:
        """The event after the work that was on the current stream when the transfer began; copies wait for it."""
        if self._started_after is None:
            self._started_after = self._device.record_event()
            self._device.copies_wait_for(self._started_after)
        return self._started_after

    def _add(self, piece: _StagedPiece, ready: Any, in_order: bool) -> None:
        self._pieces.append(piece)
        if in_order:
            self._device.deferred_calls.add(ready, piece.start)
        else:
            piece.start()

    def _deliver(self, piece: _StagedPiece) -> None:
        event = None
        if is_on_host(piece.target):
            copy_rows(piece.array, piece.target)
        elif piece.target is not None:
            event = self._last_copy = self._device.copy_to_device(piece.array, piece.target)
        if piece.memory is not None:
            self._device.pinned.release(piece.memory, event)

    def _finish(self) -> bool:
        if self._last_copy is not None:
            self._device.stream_waits_for(self._last_copy)
        return True


class Staging(Transport):
    """Copy, message and copy of every chunk, which overlap with those of the other chunks.

    Host arrays are accepted too, without the copies, so that calls on both kinds keep one order. A collective may mix
    them, as when samples are scattered from host memory to devices. The group has at least two ranks; arrays of more
    than `limit` bytes travel in pieces, if these are less than the chunks of the device.
    """

    buckets = DEVICE_BUCKETS

    def __init__(self, comm: Any, limit: int, device: Device) -> None:
        super().__init__(comm, min(limit, device.chunk_bytes))
        self._device = device

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum or maximum over the ranks."""
        op = getattr(self._mpi, operation.upper())
        transfer = Transfer(self._device)
        for piece in self._pieces(array):
            start = partial(self._comm.Iallreduce, self._mpi.IN_PLACE, op=op)
            transfer.stage(piece, start, fetch=ALL, deliver=piece)
        return [transfer]

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        transfer = Transfer(self._device)
        if array.nbytes > self._limit:
            for root in range(self._size):
                self._broadcast(transfer, self._block(array, root), root)
            return [transfer]
        counts, offsets = row_layout(array, self._size)
        own = slice(offsets[self._rank], offsets[self._rank] + counts[self._rank])

        def start(host: Array) -> Any:
            return self._comm.Iallgatherv(self._mpi.IN_PLACE, [host, counts, offsets, None])

        flat = array.reshape(-1)
        transfer.stage(flat, start, fetch=own, deliver=flat)
        return [transfer]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        transfer = Transfer(self._device)
        self._broadcast(transfer, array, root)
        return [transfer]

    def send(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Send a message."""
        transfer = Transfer(self._device)
        self._send(transfer, array, peer, tag)
        return [transfer]

    def receive(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        transfer = Transfer(self._device)
        self._receive(transfer, array, peer, tag)
        return [transfer]

    def flush(self) -> None:
        """Start all calls that wait for the device, of any group."""
        self._device.flush()

    def exchange_rows(
        self, full: Array | None, part: Array, rows: Sequence[int], root: int, *, scatters: bool
    ) -> list[Any]:
        """Scatter the rows of the root's `full` array to the `part` of every rank, or gather them, by messages."""
        transfer = Transfer(self._device)
        if full is None or self._rank != root:
            start = self._receive if scatters else self._send
            start(transfer, part, root, COLLECTIVE_TAG)
            return [transfer]
        start = self._send if scatters else self._receive
        for rank, first in enumerate(offsets_of(rows)):
            block = full[first : first + rows[rank]]
            if rank != root:
                start(transfer, block, rank, COLLECTIVE_TAG)
            elif scatters:
                self._copy(block, part)
            else:
                self._copy(part, block)
        return [transfer]

    def _copy(self, source: Array, target: Array) -> None:
        """``target[...] = source``; other ranks get what they need of this one while it waits for its device."""
        if is_on_host(target) and not is_on_host(source):
            self._device.wait_for(self._device.record_event())
        copy_rows(source, target)

    def _broadcast(self, transfer: Transfer, array: Array, root: int) -> None:
        is_root = self._rank == root
        for piece in self._pieces(array):
            start = partial(self._comm.Ibcast, root=root)
            transfer.stage(piece, start, fetch=ALL if is_root else None, deliver=None if is_root else piece)

    def _send(self, transfer: Transfer, array: Array, peer: int, tag: int) -> None:
        for piece in self._pieces(array):
            self._add_message(transfer, piece, partial(self._comm.Isend, dest=peer, tag=tag), is_sent=True)

    def _receive(self, transfer: Transfer, array: Array, peer: int, tag: int) -> None:
        for piece in self._pieces(array):
            self._add_message(transfer, piece, partial(self._comm.Irecv, source=peer, tag=tag), is_sent=False)

    def _add_message(self, transfer: Transfer, piece: Array, start: StartCall, *, is_sent: bool) -> None:
        if is_sent:
            transfer.stage(piece, start, fetch=ALL, deliver=None)
        else:  # its pinned memory is free, so it need not wait for the device
            transfer.stage(piece, start, fetch=None, deliver=piece, in_order=False)

    def _block(self, array: Array, rank: int) -> Array:
        return array[block_slice(len(array), self._size, rank)]


class DeviceMpi(Staging):
    """Messages travel from device to device, and collectives that only move data consist of messages.

    Sums are staged: Open MPI accepts arrays of a device in messages and in blocking collectives, not in non-blocking
    ones, and copies them to the host for sums (Open MPI, "Running CUDA-aware Open MPI", 3 and 4). No message is started
    before the device has finished with its array, because MPI calls are not ordered with streams.

    Parameters are those of `Staging`.
    """

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        transfer = Transfer(self._device)
        for after, before in self._pairs():
            self._receive(transfer, self._block(array, before), before, COLLECTIVE_TAG)
            self._send(transfer, self._block(array, self._rank), after, COLLECTIVE_TAG)
        return [transfer]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        transfer = Transfer(self._device)
        if self._rank != root:
            self._receive(transfer, array, root, COLLECTIVE_TAG)
            return [transfer]
        for after, _ in self._pairs():
            self._send(transfer, array, after, COLLECTIVE_TAG)
        return [transfer]

    def _add_message(self, transfer: Transfer, piece: Array, start: StartCall, *, is_sent: bool) -> None:
        transfer.pass_on(piece, start)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """The ranks to send to and to receive from in each round of an all-gather; a permutation per round."""
        for step in range(1, self._size):
            yield (self._rank + step) % self._size, (self._rank - step) % self._size
