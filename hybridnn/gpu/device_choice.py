"""Choice of the device of every rank, and its preparation for a training: `hybridnn.training.device` calls it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hybridnn.comm.agreement import agree, broadcast_text, lowest_rank
from hybridnn.comm.group import Group
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_loading import load_cupy
from hybridnn.nn.kernels import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import TrainingDevice

GRAPHS_WHY = ", steps replayed as CUDA graphs if samples are in GPU memory"


@dataclass(frozen=True)
class DeviceChoice:
    """A device and the reason for it."""

    kind: Literal["cpu", "gpu"]
    index: int  # index of the GPU among those that are visible to CUDA on this rank; -1 for the CPU
    why: str
    cupy: Any = None  # CuPy, for a GPU, which is its current device


def choose_device(name: str, node_rank: int, load: Callable[[], Any] = load_cupy) -> DeviceChoice:
    """Choose this rank's device, by ``"auto"`` or ``"gpu"``, and make it CUDA's current device.

    ``"auto"`` is a GPU if a usable one is found, else the CPU. GPUs are assigned round-robin by the rank within the
    node, and shared if there are fewer GPUs than ranks.

    Raises `EnvironmentProblem` if `name` is ``"gpu"`` and no GPU is usable; the message names what was found and what
    to install.
    """
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


def prepare_device(
    options: DeviceOptions,
    grid: ProcessGrid,
    load: Callable[[], Any] | None = None,
    make: Callable[..., Any] | None = None,
) -> TrainingDevice:
    """Choose the device of all ranks and attach its transport to the grid, as `resolve_device`; collective."""
    if grid.size > 1:
        # CUDA would load a kernel, also of cuBLAS, at its first launch, and may wait for the device meanwhile. If NCCL
        # waits there for a rank that waits for this one in MPI, neither goes on. Has an effect before CUDA has started.
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    choice = choose_device_together(grid.world, options.name, grid.node_group.rank, load or load_cupy)
    if choice.kind == "cpu":
        return TrainingDevice(NUMPY, "cpu", choice.why)
    # Imported here: a training on the CPU needs none of them.
    from hybridnn.gpu.engine import GpuDevice, StepCapture
    from hybridnn.gpu.setup import attach_transport, graphs_problem, start_gpu

    try:
        gpu, kernels = start_gpu(grid, choice.cupy, options.tf32, make)
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
    return GpuDevice(kernels, "gpu", why, transport.name, transport.why, capture)
