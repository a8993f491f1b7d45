"""The device that trains, and how its arrays travel between the ranks: settled once, before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hybridnn.comm.device_choice import choose_device_together
from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.transport_choice import carry_as_chosen, first_problem
from hybridnn.comm.transports.device import Device
from hybridnn.errors import EnvironmentProblem
from hybridnn.kernels.backend import Kernels
from hybridnn.kernels.cupy_kernels import cupy_kernels
from hybridnn.kernels.cupy_loading import load_cupy
from hybridnn.kernels.device_events import Progress
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.training.recorded_steps import Record

__all__ = ["DeviceOptions", "TrainingDevice", "settle_device"]


class RecordingKernels(Kernels, Protocol):
    """Arithmetic of a device that can record what it is told."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """As `CupyKernels.record`."""
        ...


@dataclass(frozen=True)
class DeviceOptions:
    """What is wanted of the device.

    Attributes
    ----------
    name : {"auto", "cpu", "gpu"}
        ``"auto"``: a GPU where every rank finds one, else the CPU.
    transport : {"auto", "staging", "mpi", "nccl"}
        As for `choose_transport`; it means nothing on the CPU.
    tf32 : bool
        Let a GPU round the factors of float32 matrix products to TF32, which is faster and less precise.
    graphs : bool
        Let a GPU replay recorded steps (CUDA graphs), where its samples lie on it, and one rank trains, or batch ranks
        do that NCCL connects. Elsewhere the kernels of a step are launched one by one.
    """

    name: str = "auto"
    transport: str = "auto"
    tf32: bool = False
    graphs: bool = False


@dataclass(frozen=True)
class TrainingDevice:
    """A device that is ready to train.

    Attributes
    ----------
    kernels : Kernels
        Its arithmetic.
    kind : {"cpu", "gpu"}
        The same on every rank.
    why : str
        Which one, or the reason for it, in words.
    transport : {"staging", "mpi", "nccl"} or None
        How its arrays travel; None on the CPU, where MPI takes them as they are.
    transport_why : str
        The reason; empty on the CPU.
    record : Record or None
        Records steps; None where they are launched kernel by kernel.
    """

    kernels: Kernels = field(repr=False)
    kind: str
    why: str = field(repr=False)
    transport: str | None = None
    transport_why: str = field(default="", repr=False)
    record: Record | None = field(default=None, repr=False)


def settle_device(
    wanted: str | DeviceOptions | TrainingDevice,
    grid: ProcessGrid,
    load: Callable[[], Any] = load_cupy,
    make: Callable[..., RecordingKernels] = cupy_kernels,
) -> TrainingDevice:
    """Choose the device of all ranks, and let the grid carry its arrays; collective, with nothing in flight.

    Parameters
    ----------
    wanted : str, DeviceOptions or TrainingDevice
        A name alone leaves everything else as it is by default. A device that was settled for the grid before is
        returned as it is: several trainers on one grid may share it. With NCCL every call for a grid connects the
        ranks anew, and ends the connection before.
    grid : ProcessGrid
        On a GPU its groups take the GPU's arrays from then on. `ProcessGrid.disconnect` ends what connects them beside
        MPI, once nobody trains with the device any more.
    load : callable
        As `load_cupy`.
    make : callable
        As `cupy_kernels`.

    Raises
    ------
    SettingError
        On every rank: a name is unknown.
    EnvironmentProblem
        On every rank: what is asked for cannot be had; the message says what was found and what to install.
    """
    if isinstance(wanted, TrainingDevice):
        return wanted
    options = DeviceOptions(wanted) if isinstance(wanted, str) else wanted
    choice = choose_device_together(grid.world, options.name, grid.node_group.rank, load)
    if choice.kind == "cpu":
        return TrainingDevice(NUMPY, "cpu", choice.why)
    device = Device(choice.cupy)
    kernels, problem = _make_kernels(make, options, device.progress if grid.size > 1 else None)
    problem = first_problem(grid, problem)
    if kernels is None or problem:
        if options.name == "gpu":
            raise EnvironmentProblem(problem)
        return TrainingDevice(NUMPY, "cpu", problem)
    way = carry_as_chosen(grid, options.transport, device)
    if not options.graphs:
        return TrainingDevice(kernels, "gpu", choice.why, way.name, way.why)
    problem = _graphs_problem(grid, way.name)
    if problem:
        why = f"{choice.why}, kernels launched one by one: {problem}"
        return TrainingDevice(kernels, "gpu", why, way.name, way.why)
    why = f"{choice.why}, steps replayed as CUDA graphs where samples lie on the GPU"
    return TrainingDevice(kernels, "gpu", why, way.name, way.why, kernels.record)


def _make_kernels(
    make: Callable[..., RecordingKernels], options: DeviceOptions, progress: Progress | None
) -> tuple[RecordingKernels | None, str]:
    """The arithmetic of this rank's GPU, tried as far as compiling it; or None and what is missing."""
    try:
        kernels = make(tf32=options.tf32, progress=progress)
        kernels.compile(np.float32)
    except EnvironmentProblem as problem:
        return None, str(problem)
    return kernels, ""


def _graphs_problem(grid: ProcessGrid, transport: str) -> str:
    """Why no steps of this grid can be recorded, the same text on all ranks; empty if they can."""
    if grid.size == 1:
        return ""
    if grid.batch < grid.size:
        return "graphs are for one rank, or batch ranks alone"
    if transport != "nccl":
        return "graphs of several ranks need NCCL"
    if grid.check_collectives:
        return "collectives in graphs cannot be compared (check_collectives)"
    return ""
