"""By which transport arrays of the ranks' devices travel, and why: the same on all ranks."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.agreement import broadcast_text
from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.factory import TransportFactory, TransportName
from hybridnn.diagnostics.device_mpi_trial import DeviceMpiTrial, try_device_mpi
from hybridnn.errors import EnvironmentProblem, SettingError
from hybridnn.parallel.grid import ProcessGrid

NAMES = ("auto", "staging", "mpi", "nccl")
PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class TransportChoice:
    """A transport and the reason for it.

    Attributes
    ----------
    name : {"staging", "mpi", "nccl"}
    why : str
        In words, for the run's header.
    """

    name: TransportName
    why: str


def _try_on_this_node(places: Sequence[str]) -> DeviceMpiTrial:
    return try_device_mpi(os.environ, PROBE_SECONDS, places)


def choose_transport(
    grid: ProcessGrid, name: str, cupy: Any, probe: Callable[[Sequence[str]], DeviceMpiTrial] = _try_on_this_node
) -> TransportChoice:
    """The transport for a grid whose ranks compute on GPUs; collective.

    ``"auto"`` is NCCL where every rank has a GPU of its own, else staging. Device-aware MPI is only used where it is
    asked for.

    Parameters
    ----------
    grid : ProcessGrid
    name : {"auto", "staging", "mpi", "nccl"}
    cupy : module
        With this rank's GPU as the current device.
    probe : callable
        Tries whether MPI takes arrays of the GPUs that are plugged in at the given places, those of the first two ranks
        of a node; the first rank of every node calls it.

    Raises
    ------
    SettingError
        If the name is another.
    EnvironmentProblem
        If the transport that is asked for cannot be had; on all ranks alike.
    """
    if name not in NAMES:
        raise SettingError("device.transport", name, f"one of {', '.join(NAMES)}")
    if grid.size == 1:
        return TransportChoice("staging", "there is one rank, and nothing to carry")
    if name == "staging":
        return TransportChoice("staging", "as asked for")
    if name == "mpi":
        return _device_mpi(grid, cupy, probe)
    problem = _nccl_problem(grid, cupy)
    if not problem:
        return TransportChoice("nccl", "every rank has a GPU of its own")
    if name == "nccl":
        raise _not_to_be_had(name, problem)
    return TransportChoice("staging", problem)


def _device_mpi(grid: ProcessGrid, cupy: Any, probe: Callable[[Sequence[str]], DeviceMpiTrial]) -> TransportChoice:
    """Device-aware MPI, if it passes the trial on every node."""
    places = _places_on_node(grid, cupy)
    trial = probe(places) if grid.node_group.rank == 0 else DeviceMpiTrial("", "")
    problem = first_problem(grid, trial.problem)
    if problem:
        raise _not_to_be_had("mpi", problem)
    who = broadcast_text(grid.world, trial.endpoints, 0)
    return TransportChoice("mpi", f"as asked for, and messages from GPU memory to GPU memory arrived, {who}")


def _places_on_node(grid: ProcessGrid, cupy: Any) -> list[str]:
    """Where the GPUs of the first two ranks of this rank's node are plugged in."""
    node = grid.node_group
    return [broadcast_text(node, _place_of_gpu(cupy), rank) for rank in range(min(node.size, 2))]


def _place_of_gpu(cupy: Any) -> str:
    place: str = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice())
    return place


def attach_transport(grid: ProcessGrid, name: str, device: Device) -> TransportChoice:
    """Choose the transport of a grid, and let its groups take the arrays of this rank's device; collective.

    Parameters
    ----------
    grid : ProcessGrid
    name : {"auto", "staging", "mpi", "nccl"}
        As for `choose_transport`; ``"auto"`` is staging too where NCCL does not start.
    device : Device

    Raises
    ------
    SettingError, EnvironmentProblem
        As `choose_transport` does, and where NCCL is asked for and does not start.
    """
    choice = choose_transport(grid, name, device.cupy)
    problem = first_problem(grid, grid.attach_device(TransportFactory(choice.name, device)))
    if not problem:
        return choice
    grid.attach_device(TransportFactory("staging", device))
    if name == choice.name:
        raise _not_to_be_had(name, problem)
    return TransportChoice("staging", problem)


def _not_to_be_had(name: str, problem: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"device.transport = {name!r}: {problem}; 'staging' always works")


def _nccl_problem(grid: ProcessGrid, cupy: Any) -> str:
    """Why NCCL cannot connect the ranks of the grid, the same text on all of them; empty if it can."""
    return first_problem(grid, _missing_nccl(cupy)) or _sharing(_gpu_of_every_rank(grid, cupy))


def _missing_nccl(cupy: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy says at length what is said here in a line
        nccl = getattr(cupy.cuda, "nccl", None)
        if nccl is not None and getattr(nccl, "available", True):
            return ""
    return f"CuPy finds no NCCL (pip install nvidia-nccl-cu{cupy.cuda.runtime.runtimeGetVersion() // 1000})"


def first_problem(grid: ProcessGrid, mine: str) -> str:
    """The problem of the lowest rank that has one, with its rank, on all ranks; empty where none has. Collective."""
    world = grid.world
    failing = np.array([world.size - world.rank if mine else 0], np.int64)
    world.allreduce(failing, "max")
    if not failing[0]:
        return ""
    rank = world.size - int(failing[0])
    return f"{broadcast_text(world, mine, rank)} on rank {rank}"


def _gpu_of_every_rank(grid: ProcessGrid, cupy: Any) -> NDArray[np.int64]:
    """A number for the GPU of every rank, by where it is plugged in: ranks may number the same GPU differently."""
    text = f"{grid.node_group.members[0]} {_place_of_gpu(cupy)}"
    numbers = np.zeros(grid.size, np.int64)
    numbers[grid.rank] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    grid.world.allgather_rows(numbers)
    return numbers


def _sharing(gpus: NDArray[np.int64]) -> str:
    """Which ranks share a GPU; empty if none do."""
    for gpu in dict.fromkeys(gpus.tolist()):
        ranks = np.flatnonzero(gpus == gpu)
        if len(ranks) > 1:
            return f"ranks {', '.join(map(str, ranks))} share a GPU"
    return ""
