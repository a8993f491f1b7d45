"""Which device a rank computes on: the CPU, or one of its node's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hybridnn.comm.agreement import agree, broadcast_text
from hybridnn.comm.group import Group
from hybridnn.comm.stand_in import is_in_process
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.kernels.cupy_loading import load_cupy

__all__ = ["DeviceChoice", "choose_device", "choose_device_together"]

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
