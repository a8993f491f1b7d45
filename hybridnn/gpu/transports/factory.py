"""Choice of the transports of the groups of a grid, once a device is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hybridnn.comm.transport import Transport
from hybridnn.gpu.transports.device import Device
from hybridnn.gpu.transports.nccl import Nccl
from hybridnn.gpu.transports.staging import DeviceMpi, Staging

TransportName = Literal["staging", "mpi", "nccl"]

NCCL_AXES = ("batch", "model")
"""Axes of groups with collectives in every step; other groups get no NCCL connection, which takes device memory."""


@dataclass(frozen=True)
class TransportFactory:
    """Makes the transports of a rank's groups."""

    name: TransportName
    device: Device

    def transport(self, comm: Any, axis: str, limit: int) -> Transport:
        """The transport of a group, whose messages have at most `limit` bytes. Collective over the group."""
        kind: type[Staging] = Staging
        if self.name == "mpi":
            kind = DeviceMpi
        elif self.name == "nccl" and axis in NCCL_AXES:
            kind = Nccl
        return kind(comm, limit, self.device)
