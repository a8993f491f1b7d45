"""The one door to mpi4py: importing it, naming what is missing, and datatypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.launcher import NO_MPI
from hybridnn.comm.stand_in import current_stand_in
from hybridnn.errors import EnvironmentProblem

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI

__all__ = ["import_mpi", "library_version", "ranks_within", "require_buffer", "running_ranks"]


def import_mpi() -> ModuleType:
    """``mpi4py.MPI``, initialized, or what stands for it in a rank that is a thread.

    Raises
    ------
    EnvironmentProblem
        If mpi4py finds no MPI library; the message names the extras that bring one.
    """
    stand_in = current_stand_in()
    if stand_in is not None:
        return cast("ModuleType", stand_in)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(f"{NO_MPI}; mpi4py says: {str(error).splitlines()[0]}") from error
    return MPI


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
