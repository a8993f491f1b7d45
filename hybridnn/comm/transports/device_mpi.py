"""Arrays of a device handed to an MPI library that can read and write them there."""

from __future__ import annotations

from functools import partial
from typing import Any

from hybridnn.comm.transports.staging import DEAL_TAG, Staging, Transfer
from hybridnn.comm.transports.transport import Array


class DeviceMpi(Staging):
    """Messages go from device to device, and what only moves data is made of messages; sums are staged.

    The reason is what libraries promise: Open MPI takes arrays of a device in its messages and in collectives that
    block, not in those that do not, and for sums it copies them to the host itself (Open MPI, "Running CUDA-aware
    Open MPI", 3 and 4). No message begins, and none is received, before the device has done with its array: MPI knows
    nothing of streams.

    Parameters are those of `Staging`.
    """

    def allgather(self, array: Array) -> list[Any]:
        """Fill the rows of `array` from everybody's block."""
        transfer = Transfer(self._device)
        for step in range(1, self._size):
            # Everybody sends to another rank at a time.
            after, before = (self._rank + step) % self._size, (self._rank - step) % self._size
            self._receive(transfer, self._block(array, before), before, DEAL_TAG)
            self._send(transfer, self._block(array, self._rank), after, DEAL_TAG)
        return [transfer]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Give every rank the root's `array`."""
        transfer = Transfer(self._device)
        if self._rank != root:
            self._receive(transfer, array, root, DEAL_TAG)
            return [transfer]
        for step in range(1, self._size):
            self._send(transfer, array, (root + step) % self._size, DEAL_TAG)
        return [transfer]

    def _send(self, transfer: Transfer, array: Array, peer: int, tag: int, *, synchronous: bool = False) -> None:
        """Add the messages that send `array`."""
        send = self._comm.Issend if synchronous else self._comm.Isend
        for piece in self._pieces(array):
            transfer.pass_on(piece, partial(send, dest=peer, tag=tag))

    def _receive(self, transfer: Transfer, array: Array, peer: int, tag: int) -> None:
        """Add the messages that fill `array`."""
        for piece in self._pieces(array):
            transfer.pass_on(piece, partial(self._comm.Irecv, source=peer, tag=tag))
