"""The device that trains, and how its arrays travel between the ranks: settled once, before the first step.

Which device a rank computes on: the CPU, or one of its node's GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import is_in_process
from hybridnn.comm.transports.device import Device
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.kernels.backend import Kernels
from hybridnn.kernels.cupy_kernels import cupy_kernels
from hybridnn.kernels.cupy_loading import load_cupy
from hybridnn.kernels.device_events import Progress
from hybridnn.kernels.numpy_backend import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.cuda_graphs import Record
from hybridnn.training.transport_choice import attach_transport, first_problem

NAMES = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class DeviceChoice:
    """A device and the reason for it.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
    index : int
        Of the GPU among those that CUDA shows this rank; -1 for the CPU.
    why : str
        In words, for the run's header.
    cupy : module or None
        CuPy, for a GPU; it is the current device.
    """

    kind: Literal["cpu", "gpu"]
    index: int
    why: str
    cupy: Any = None


def choose_device(name: str, node_rank: int, load: Callable[[], Any] = load_cupy) -> DeviceChoice:
    """This rank's device, which is the current one from then on.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu"}
        ``"auto"`` is a GPU where one answers, else the CPU.
    node_rank : int
        Number of the rank on its node; the ranks of a node take its GPUs in turn, and share them where they are fewer.
    load : callable
        As `load_cupy`.

    Raises
    ------
    SettingError
        If the name is another.
    EnvironmentProblem
        If a GPU is asked for and there is none; the message says what was found and what to install.
    """
    if name not in NAMES:
        raise SettingError("device.name", name, f"one of {', '.join(NAMES)}")
    if name == "cpu":
        return _cpu("as asked for")
    if is_in_process():
        if name == "gpu":
            raise SettingError("device.name", name, "ranks of one process compute on the CPU: 'auto' or 'cpu'")
        return _cpu("ranks of one process")
    try:
        cupy = load()
        return _gpu(cupy, node_rank % cupy.cuda.runtime.getDeviceCount())
    except EnvironmentProblem as problem:
        if name == "gpu":
            raise
        # The message begins with what somebody asked for, and nobody did.
        return _cpu(str(problem).partition(": ")[2])


def choose_device_together(
    group: Group, name: str, node_rank: int, load: Callable[[], Any] = load_cupy
) -> DeviceChoice:
    """As `choose_device`, of the same kind on every rank of `group`; collective.

    ``"auto"`` is the CPU on all ranks where one of them has no GPU, and says which.
    """
    choice = agree(group, lambda: choose_device(name, node_rank, load))
    without = np.array([group.size - group.rank if choice.kind == "cpu" else 0], np.int64)
    group.allreduce(without, "max")
    if not without[0]:
        return choice
    first = group.size - int(without[0])
    why = broadcast_text(group, choice.why, first)
    return choice if choice.kind == "cpu" else _cpu(f"rank {group.members[first]}: {why}")


def _cpu(why: str) -> DeviceChoice:
    return DeviceChoice("cpu", -1, why)


def _gpu(cupy: Any, index: int) -> DeviceChoice:
    """GPU `index` made the current one, if it answers."""
    runtime = cupy.cuda.runtime
    try:
        cupy.cuda.Device(index).use()
        runtime.memGetInfo()  # the first call that needs the device, which another process may hold for itself
        name = runtime.getDeviceProperties(index)["name"].decode()
    except runtime.CUDARuntimeError as error:
        raise EnvironmentProblem(f"a GPU was asked for: GPU {index} does not answer ({error})") from error
    return DeviceChoice("gpu", index, f"{name}, GPU {index} of {runtime.getDeviceCount()}", cupy)


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
    way = attach_transport(grid, options.transport, device)
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
