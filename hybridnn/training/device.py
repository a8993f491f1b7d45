"""The device that trains, the CPU or a GPU of each rank's node; `hybridnn.gpu` chooses and prepares it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridnn.nn.kernels import Kernels
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import DeviceOptions

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]
"""Captures the device work that a function enqueues; returns a function that enqueues it again."""


class StepCapture(NamedTuple):
    """Capture of steps as CUDA graphs.

    Attributes
    ----------
    record : callable
    required : bool
        Whether it is an error if steps cannot be captured; otherwise their kernels are launched one by one.
    """

    record: Capture
    required: bool = True


@dataclass(frozen=True)
class TrainingDevice:
    """A device with compiled kernels, and its transport."""

    kernels: Kernels = field(repr=False)
    kind: str  # the same on every rank
    why: str = field(repr=False)  # name of the device, or the reason for its choice
    transport: str | None = None  # transport of its arrays; None on the CPU, where MPI reads and writes them in place
    transport_why: str = field(default="", repr=False)
    capture: StepCapture | None = field(default=None, repr=False)  # None if kernels are launched one by one


def resolve_device(
    device: str | DeviceOptions | TrainingDevice,
    grid: ProcessGrid,
    load: Callable[[], Any] | None = None,
    make: Callable[..., Any] | None = None,
) -> TrainingDevice:
    """Choose the device of all ranks and attach its transport to the grid; collective, with no message in flight.

    Parameters
    ----------
    device : str, DeviceOptions or TrainingDevice
        A name stands for `DeviceOptions` with this name. A `TrainingDevice` that was chosen for the grid before is
        returned unchanged: several trainers on one grid may share it. With NCCL, every call for a grid opens a new
        connection of the ranks and ends the previous one.
    grid : ProcessGrid
        On a GPU, its groups accept arrays of the GPU after this call. `ProcessGrid.disconnect` ends the connections
        other than MPI; to be called after the last training with the device.

    Raises
    ------
    SettingError
        On every rank: a name is unknown.
    EnvironmentProblem
        On every rank: a requested device or transport is not available; the message names what was found and what to
        install.
    """
    if isinstance(device, TrainingDevice):
        return device
    options = DeviceOptions(device) if isinstance(device, str) else device
    from hybridnn.gpu.device_choice import prepare_device  # above this package

    return prepare_device(options, grid, load, make)
