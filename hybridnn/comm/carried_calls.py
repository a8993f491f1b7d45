"""What carries the arrays of a group: MPI as it is, or a transport for a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridnn.comm.mpi import import_mpi, ranks_within
from hybridnn.comm.recorded_calls import RecordedCalls
from hybridnn.comm.recorder import Recorder
from hybridnn.comm.transports.carrier import Carrier
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.direct import Direct
from hybridnn.comm.transports.transport import Transport

if TYPE_CHECKING:
    from mpi4py import MPI
    from typing_extensions import Self

__all__ = ["MESSAGE_LIMIT", "CarriedCalls"]

MESSAGE_LIMIT = 2**30
"""Bytes one MPI call may carry; far below the 2 GiB where 32-bit counts and some transports break."""


class CarriedCalls(RecordedCalls):
    """The base of a group: its communicator, and the transport that begins its calls.

    Parameters are those of `Group`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        axis: str,
        recorder: Recorder,
        message_limit: int = MESSAGE_LIMIT,
        members: Sequence[int] | None = None,
    ) -> None:
        size, rank = (1, 0) if comm is None else (comm.Get_size(), comm.Get_rank())
        super().__init__(axis, recorder, range(size) if members is None else members, rank)
        self._comm: Any = comm
        self._limit = message_limit
        self._mpi: Any = import_mpi() if self.size > 1 else None
        self._transport: Transport = Direct(comm, message_limit)
        self._carrier: Carrier | None = None

    def carry(self, carrier: Carrier) -> str:
        """From now on take arrays of this rank's device too; collective, and nothing may be in flight.

        Returns
        -------
        str
            As `Transport.problem`.
        """
        if self.size == 1:
            return ""
        self.disconnect()
        self._transport = carrier.transport(self._comm, self.axis, self._limit)
        self._carrier = carrier
        return self._transport.problem

    def disconnect(self) -> None:
        """End what connects the ranks beside MPI, whose arrays are staged from then on.

        Collective, and nothing may be in flight. What was recorded of the group's calls is given up before.
        """
        self._transport.disconnect()

    @property
    def transport(self) -> Transport:
        """What begins the calls that do not block; `carry` replaces it."""
        return self._transport

    @property
    def device(self) -> Device | None:
        """This rank's device, whose arrays are taken; None where there is none, and in a group of one rank."""
        return None if self._carrier is None else self._carrier.device

    def split(self, color: int, axis: str, *, carries: bool = True) -> Self:
        """Divide the group: the ranks that name the same `color` are a new one, in the same order; collective.

        Parameters
        ----------
        color : int
        axis : str
        carries : bool
            Whether the new group takes arrays of the device where this one does. NCCL does not connect it.
        """
        if self.size == 1:
            return type(self)(None, axis, self.recorder, self._limit, self.members)
        comm = self._comm.Split(color, self.rank)
        members = [self.members[number] for number in ranks_within(comm, self._comm)]
        part = type(self)(comm, axis, self.recorder, self._limit, members)
        if carries and self._carrier is not None:
            staged = self._carrier.name == "nccl"
            part.carry(replace(self._carrier, name="staging") if staged else self._carrier)
        return part
