"""Which transport the groups of a grid get, once a device is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.device_mpi import DeviceMpi
from hybridnn.comm.transports.nccl import Nccl
from hybridnn.comm.transports.staging import Staging
from hybridnn.comm.transports.transport import Transport

TransportName = Literal["staging", "mpi", "nccl"]

NCCL_AXES = ("batch", "model")
"""Groups with collectives of the device in every step; each connection of NCCL's takes memory of the device."""


@dataclass(frozen=True)
class TransportFactory:
    """Makes the transports of a rank's groups.

    Attributes
    ----------
    name : {"staging", "mpi", "nccl"}
    device : Device
        The one of this rank.
    """

    name: TransportName
    device: Device

    def transport(self, comm: Any, axis: str, limit: int) -> Transport:
        """The transport of a group; collective over it.

        Parameters
        ----------
        comm : MPI.Intracomm
        axis : str
        limit : int
            Bytes of a message at most.
        """
        kind: type[Staging] = Staging
        if self.name == "mpi":
            kind = DeviceMpi
        elif self.name == "nccl" and axis in NCCL_AXES:
            kind = Nccl
        return kind(comm, limit, self.device)
