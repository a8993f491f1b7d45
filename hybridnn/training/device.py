"""Choice of the device that trains: the CPU or a GPU of each rank's node, and the transport of its arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hybridnn.comm.agreement import agree, broadcast_text, lowest_rank
from hybridnn.comm.group import Group
from hybridnn.comm.mpi import is_in_process
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.kernels.backend import Kernels
from hybridnn.kernels.cupy_loading import load_cupy
from hybridnn.kernels.numpy_kernels import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import DeviceOptions

GRAPHS_WHY = ", steps replayed as CUDA graphs if samples are in GPU memory"

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
class DeviceChoice:
    """A device and the reason for it."""

    kind: Literal["cpu", "gpu"]
    index: int  # index of the GPU among those that are visible to CUDA on this rank; -1 for the CPU
    why: str
    cupy: Any = None  # CuPy, for a GPU, which is its current device


def choose_device(name: str, node_rank: int, load: Callable[[], Any] = load_cupy) -> DeviceChoice:
    """Choose this rank's device and make it CUDA's current device.

    Raises `EnvironmentProblem` if `name` is ``"gpu"`` and no GPU is usable; the message names what was found and what
    to install.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu"}
        ``"auto"`` is a GPU if a usable one is found, else the CPU.
    node_rank : int
        Rank within the node; GPUs are assigned to the ranks of a node round-robin, and shared if there are fewer GPUs
        than ranks.
    """
    if name == "cpu":
        return _cpu("as requested")
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
        # The prefix of the message, "a GPU was asked for: ", does not apply to "auto".
        return _cpu(str(problem).partition(": ")[2])


def choose_device_together(
    group: Group, name: str, node_rank: int, load: Callable[[], Any] = load_cupy
) -> DeviceChoice:
    """As `choose_device`, but of the same kind on every rank of `group`; collective.

    ``"auto"`` is the CPU on all ranks if one of them has no GPU; the reason names this rank.
    """
    choice = agree(group, lambda: choose_device(name, node_rank, load))
    first = lowest_rank(group, choice.kind == "cpu")
    if first is None:
        return choice
    why = broadcast_text(group, choice.why, first)
    return choice if choice.kind == "cpu" else _cpu(f"rank {group.members[first]}: {why}")


def _cpu(why: str) -> DeviceChoice:
    return DeviceChoice("cpu", -1, why)


def _gpu(cupy: Any, index: int) -> DeviceChoice:
    """Make GPU `index` the current device; `EnvironmentProblem` if it is not usable."""
    runtime = cupy.cuda.runtime
    try:
        cupy.cuda.Device(index).use()
        runtime.memGetInfo()  # the first call that needs the device; fails if another process uses it exclusively
        name = runtime.getDeviceProperties(index)["name"].decode()
    except runtime.CUDARuntimeError as error:
        raise EnvironmentProblem(f"a GPU was asked for: GPU {index} does not answer ({error})") from error
    return DeviceChoice("gpu", index, f"{name}, GPU {index} of {runtime.getDeviceCount()}", cupy)


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
    load: Callable[[], Any] = load_cupy,
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
    if grid.size > 1 and options.name != "cpu":
        # CUDA would load a kernel, also of cuBLAS, at its first launch, and may wait for the device meanwhile. If NCCL
        # waits there for a rank that waits for this one in MPI, neither goes on. Has an effect before CUDA has started.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    choice = choose_device_together(grid.world, options.name, grid.node_group.rank, load)
    if choice.kind == "cpu":
        return TrainingDevice(NUMPY, "cpu", choice.why)
    # Imported here: a training on the CPU needs none of the GPU's modules.
    from hybridnn.comm.transports.device import Device
    from hybridnn.training.gpu import attach_transport, graphs_problem, make_kernels

    gpu = Device(choice.cupy)
    try:
        kernels = make_kernels(grid, gpu, options.tf32, make)
    except EnvironmentProblem as error:
        if options.name == "gpu":
            raise
        return TrainingDevice(NUMPY, "cpu", str(error))
    transport = attach_transport(grid, options.transport, gpu)
    why, capture = choice.why, None
    if options.graphs:
        problem = graphs_problem(grid, transport.name)
        capture = None if problem else StepCapture(kernels.record, required=options.graphs is True)
        why += f", kernels launched one by one: {problem}" if problem else GRAPHS_WHY
    return TrainingDevice(kernels, "gpu", why, transport.name, transport.why, capture)
