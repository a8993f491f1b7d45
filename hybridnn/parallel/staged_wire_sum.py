"""Sums of a device's gradients that travel as words of 16 bits: the host rounds them and adds them up."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

from hybridnn.comm.transports.device import Device
from hybridnn.kernels.backend import Array
from hybridnn.parallel.wire_sum import WireSum

__all__ = ["StagedWireSum"]


class StagedWireSum:
    """A sum under way; it answers as `Request` does, and nobody waits for the device before it is waited for.

    Done means that the sum is on the host: what the current stream is told from then on begins when it is copied back.

    Parameters
    ----------
    device : Device
    array : array of the device, shape (n,)
        Summed in place.
    begin : callable
        Begins the sum of an array of the host. It is called in the order in which these sums are made, on all ranks.
    """

    def __init__(self, device: Device, array: Array, begin: Callable[[Array], WireSum]) -> None:
        self._device, self._array, self._begin = device, array, begin
        self._sum: WireSum | None = None
        self._is_done = False
        self._memory = device.pinned.lend(array.nbytes)
        self._host = self._memory[: array.nbytes].view(array.dtype)
        device.copies_follow(device.mark())
        device.departures.add(device.fetch(array, self._host), self._depart)

    def test(self) -> bool:
        """Let device and messages make progress; True once the sum is there."""
        if self._is_done:
            return True
        self._device.progress()
        if self._sum is not None and self._sum.test():
            copied = self._device.deliver(self._host, self._array)
            self._device.pinned.give_back(self._memory, copied)
            self._device.continue_after(copied)
            self._is_done = True
        return self._is_done

    def wait(self) -> None:
        """Return when the sum is there; what others need of this rank meanwhile goes on."""
        while not self.test():
            sleep(0)  # ranks may share a core

    def _depart(self) -> None:
        self._sum = self._begin(self._host)
