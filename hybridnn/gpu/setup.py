"""The GPU of every rank: its kernels, the transport of its arrays, and whether its steps can be captured."""

from __future__ import annotations

import ctypes
import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hybridnn.comm.agreement import broadcast_text, lowest_rank
from hybridnn.comm.transport import Transport
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.cupy_kernels import CupyKernels, cupy_kernels
from hybridnn.gpu.cupy_loading import first_line
from hybridnn.gpu.device import Device
from hybridnn.gpu.nccl import Nccl
from hybridnn.gpu.staging import DeviceMpi, Staging
from hybridnn.parallel.grid import ProcessGrid

OTHER_PROGRAMS = "nvidia-smi shows the programs on it: end them, or choose another GPU by CUDA_VISIBLE_DEVICES"

NO_CUDA = "this Open MPI was built without support of CUDA (ompi_info --all | grep cuda)"

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

    def of_parts(self) -> TransportFactory:
        """The factory of groups that are split off later: without connections by NCCL."""
        return replace(self, name="staging") if self.name == "nccl" else self


@dataclass(frozen=True)
class TransportChoice:
    """A transport and the reason for it."""

    name: TransportName
    why: str


def start_gpu(
    grid: ProcessGrid, cupy: Any, tf32: bool, make: Callable[..., CupyKernels] | None = None
) -> tuple[Device, CupyKernels]:
    """Make the streams and kernels of this rank's GPU, and compile the kernels; collective.

    Raises `EnvironmentProblem` on every rank if that fails on one, which the message names.
    """
    device, kernels, problem = None, None, ""
    try:
        device = Device(cupy)
        kernels = (make or cupy_kernels)(tf32=tf32, progress=device.progress if grid.size > 1 else None)
        kernels.compile(np.float32)
    except EnvironmentProblem as error:
        problem = str(error)
    except Exception as error:  # of CuPy, CUDA or cuBLAS, most often because others use the memory of the GPU
        problem = f"the GPU does not start ({first_line(error)}{_free_memory(cupy)}); {OTHER_PROGRAMS}"
    problem = first_problem(grid, problem)
    if device is None or kernels is None or problem:
        raise EnvironmentProblem(problem)
    return device, kernels


def _free_memory(cupy: Any) -> str:
    try:
        free, total = cupy.cuda.runtime.memGetInfo()
    except Exception:  # the device may have failed altogether
        return ""
    return f"; {free:,} of its {total:,} bytes are free"


def choose_transport(grid: ProcessGrid, name: str, cupy: Any) -> TransportChoice:
    """Choose the transport for a grid whose ranks compute on GPUs, each on its current device; collective.

    ``"auto"`` is NCCL if every rank has its own GPU, else staging. Device-aware MPI is used only on request; whether it
    works is not tried.

    Raises `EnvironmentProblem` on all ranks if the requested transport is not available, or the MPI library was built
    without it.
    """
    if grid.size == 1:
        return TransportChoice("staging", "a single rank sends no messages")
    if name == "staging":
        return TransportChoice("staging", "as requested")
    if name == "mpi":
        problem = first_problem(grid, NO_CUDA if cuda_support() is False else "")
        if problem:
            raise _unavailable(name, problem)
        return TransportChoice("mpi", "as requested")
    problem = first_problem(grid, _missing_nccl(cupy)) or _shared_gpu_problem(grid, cupy)
    if not problem:
        return TransportChoice("nccl", "every rank has a GPU of its own")
    if name == "nccl":
        raise _unavailable(name, problem)
    return TransportChoice("staging", problem)


def attach_transport(grid: ProcessGrid, name: str, device: Device) -> TransportChoice:
    """Choose the transport of a grid by `choose_transport`, and attach it to all groups of the grid; collective.

    ``"auto"`` falls back to staging if NCCL does not start; where it was requested, this is an `EnvironmentProblem`,
    too.
    """
    choice = choose_transport(grid, name, device.cupy)
    problem = first_problem(grid, grid.attach_device(TransportFactory(choice.name, device)))
    if not problem:
        return choice
    grid.attach_device(TransportFactory("staging", device))
    if name == choice.name:
        raise _unavailable(name, problem)
    return TransportChoice("staging", problem)


def _unavailable(name: str, problem: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"device.transport = {name!r}: {problem}; 'staging' always works")


def _missing_nccl(cupy: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns if NCCL is missing; the text below replaces the warning
        nccl = getattr(cupy.cuda, "nccl", None)
        if nccl is not None and getattr(nccl, "available", True):
            return ""
    return f"CuPy finds no NCCL (pip install nvidia-nccl-cu{cupy.cuda.runtime.runtimeGetVersion() // 1000})"


def first_problem(grid: ProcessGrid, problem: str) -> str:
    """The non-empty `problem` of the lowest rank, with its number, on all ranks; empty if none. Collective."""
    rank = lowest_rank(grid.world, bool(problem))
    return "" if rank is None else f"{broadcast_text(grid.world, problem, rank)} on rank {rank}"


def _shared_gpu_problem(grid: ProcessGrid, cupy: Any) -> str:
    """Text naming the first ranks that share a GPU; empty if none do. Collective."""
    # Identified by its node and PCI bus address: CUDA's indices may differ between ranks.
    runtime = cupy.cuda.runtime
    text = f"{grid.node_group.members[0]} {runtime.deviceGetPCIBusId(runtime.getDevice())}"
    gpus = np.zeros(grid.size, np.int64)
    gpus[grid.rank] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    grid.world.allgather_rows(gpus)
    for gpu in dict.fromkeys(gpus.tolist()):
        ranks = np.flatnonzero(gpus == gpu)
        if len(ranks) > 1:
            return f"ranks {', '.join(map(str, ranks))} share a GPU"
    return ""


def graphs_problem(grid: ProcessGrid, transport: str) -> str:
    """The reason why steps cannot be captured on this grid, the same text on all ranks; empty if they can."""
    if grid.size == 1:
        return ""
    if grid.batch < grid.size:
        return "graphs need a single rank, or batch ranks only"
    if transport != "nccl":
        return "graphs of several ranks need NCCL"
    return ""


def cuda_support(library: str = "libmpi.so.40") -> bool | None:
    """Whether the Open MPI that is loaded can send arrays of a GPU, by its own account; None without an Open MPI."""
    try:
        return bool(ctypes.CDLL(library, os.RTLD_NOW | os.RTLD_NOLOAD).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return None
