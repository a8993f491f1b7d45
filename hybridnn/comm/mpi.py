"""The one door to mpi4py: importing it, naming what is missing, and datatypes."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.launcher import NO_MPI, launch_of
from hybridnn.comm.stand_in import ONE_RANK_FACTORY, current_stand_in
from hybridnn.errors import EnvironmentProblem, GridError

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI


def import_mpi() -> ModuleType:
    """``mpi4py.MPI``, initialized, or its stand-in: in a rank of `run_ranks`, and in a single process without MPI.

    Raises
    ------
    EnvironmentProblem
        If a launcher started several processes and there is no MPI library; the message names the extras with one.
    """
    return cast("ModuleType", current_stand_in() or _mpi_of_process())


def load_mpi_library() -> ModuleType:
    """``mpi4py.MPI``, initialized; never a stand-in.

    Raises
    ------
    EnvironmentProblem
        If there is no mpi4py, or it finds no MPI library.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py says: {str(error).splitlines()[0]}") from error
    return MPI


@lru_cache(maxsize=1)
def _mpi_of_process() -> object:
    """MPI's module, or without an MPI library the stand-in of a single rank."""
    try:
        return load_mpi_library()
    except EnvironmentProblem:
        launch = launch_of(os.environ)
        if launch is not None and launch.ranks > 1:
            raise
        return ONE_RANK_FACTORY[0]()


def require_communicator(comm: object) -> None:
    """Refuse a communicator of ranks other than those that run here.

    Raises
    ------
    GridError
        In a rank of `run_ranks`: for a communicator of MPI, or of another `run_ranks`. Outside: for one of `run_ranks`.
    """
    mpi: Any = import_mpi()
    if isinstance(comm, mpi.Intracomm) and getattr(comm, "engine", None) is getattr(mpi.COMM_WORLD, "engine", None):
        return
    if current_stand_in() is None:
        raise GridError("the communicator is one of run_ranks, whose ranks have ended or are not running here")
    raise GridError("the communicator is not of this run_ranks: its ranks use the one that they were given")


def library_version() -> str:
    """First line of the MPI library's own version text."""
    text: str = import_mpi().Get_library_version()
    return text.split("\n")[0].split(",")[0].strip("\0 ")


def running_ranks() -> int:
    """Ranks of the job."""
    size: int = import_mpi().COMM_WORLD.Get_size()
    return size


def ranks_within(comm: MPI.Intracomm, larger: MPI.Intracomm) -> list[int]:
    """Numbers in `larger` of the ranks of `comm`, in the order of `comm`; needs no communication."""
    ours, theirs = comm.Get_group(), larger.Get_group()
    numbers: list[int] = ours.Translate_ranks(None, theirs)
    ours.Free()
    theirs.Free()
    return numbers


def require_buffer(array: NDArray[Any], what: str, dtype: np.dtype[Any] | None = None) -> None:
    """Refuse what MPI would misread: arrays with gaps, of object type, or of another dtype than agreed.

    Raises
    ------
    TypeError
        If the dtype is not `dtype`, or holds Python objects.
    ValueError
        If the array is not C-contiguous.
    """
    if array.dtype.hasobject:
        raise TypeError(f"{what}: arrays of Python objects cannot be sent")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{what}: expected dtype {dtype}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what}: the array of shape {array.shape} is not contiguous")
