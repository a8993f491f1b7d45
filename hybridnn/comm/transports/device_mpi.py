"""Transport for a device-aware MPI library, which reads and writes arrays of a device itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from hybridnn.comm.transports.staging import STAGING_TAG, Staging, Transfer
from hybridnn.comm.transports.transport import Array


class DeviceMpi(Staging):
    """Messages travel from device to device, and collectives that only move data consist of messages.

    Sums are staged: Open MPI accepts arrays of a device in messages and in blocking collectives, not in non-blocking
    ones, and copies them to the host for sums (Open MPI, "Running CUDA-aware Open MPI", 3 and 4). No message is started
    before the device has finished with its array, because MPI does not know streams.

    Parameters are those of `Staging`.
    """

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        transfer = Transfer(self._device)
        for after, before in self._pairs():
            self._receive(transfer, self._block(array, before), before, STAGING_TAG)
            self._send(transfer, self._block(array, self._rank), after, STAGING_TAG)
        return [transfer]

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        transfer = Transfer(self._device)
        if self._rank != root:
            self._receive(transfer, array, root, STAGING_TAG)
            return [transfer]
        for after, _ in self._pairs():
            self._send(transfer, array, after, STAGING_TAG)
        return [transfer]

    def _send(self, transfer: Transfer, array: Array, peer: int, tag: int, *, synchronous: bool = False) -> None:
        send = self._comm.Issend if synchronous else self._comm.Isend
        for piece in self._pieces(array):
            transfer.pass_on(piece, partial(send, dest=peer, tag=tag))

    def _receive(self, transfer: Transfer, array: Array, peer: int, tag: int) -> None:
        for piece in self._pieces(array):
            transfer.pass_on(piece, partial(self._comm.Irecv, source=peer, tag=tag))
