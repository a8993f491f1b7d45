"""Sums over a group whose numbers travel as words of 16 bits, of arrays of the host or of a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from hybridnn.comm.group import Group
from hybridnn.comm.large_messages import pieces
from hybridnn.comm.transports.transport import is_on_host
from hybridnn.kernels.backend import Array
from hybridnn.parallel.staged_wire_sum import StagedWireSum
from hybridnn.parallel.wire_sum import WireRoom, WireSum

__all__ = ["WireSums"]


class WireSums:
    """Begins sums over a group.

    Parameters
    ----------
    group : Group
        Making one is collective over it.
    rooms : sequence of WireRoom
        One for each sum that may be under way at a time; they must end in the order in which they began.
    """

    def __init__(self, group: Group, rooms: Sequence[WireRoom]) -> None:
        self._device = group.device
        # Words are the host's: they do not stand in line with what waits for a device.
        self._group = group if self._device is None else group.split(0, group.axis, carries=False)
        # Ranks come to the second half of a sum at different moments, but MPI wants one order in each communicator.
        self._gathering = self._group if len(rooms) == 1 else group.split(0, group.axis, carries=False)
        self._most, self._rooms = rooms[0].most, cycle(rooms)

    def allreduce(self, array: Array) -> None:
        """Replace `array`, of any size, by its sum over the ranks, in place."""
        for piece in pieces(array, self._most * array.itemsize):
            self.iallreduce(piece).wait()

    def iallreduce(self, piece: Array) -> WireSum | StagedWireSum:
        """As `allreduce` of a piece, but returns at once; the sum owns it until it is done."""
        if is_on_host(piece):
            return self._begin(piece)
        assert self._device is not None, "somebody carries arrays that are not the host's"
        return StagedWireSum(self._device, piece, self._begin)

    def _begin(self, piece: Array) -> WireSum:
        return WireSum(self._group, self._gathering, piece, next(self._rooms))
