"""The folder in which ranks without a run folder find what the others report: see ``stalls/files.py``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.comm.mpi import import_mpi, ranks_within

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Place", "find_place"]

PATH_BYTES = 4096


@dataclass(frozen=True)
class Place:
    """A folder, and who sees it.

    Attributes
    ----------
    folder : Path
        Made for these ranks alone, and empty.
    ranks : tuple of int
        Ranks of the grid that see it, this one among them.
    """

    folder: Path
    ranks: tuple[int, ...]


def find_place(world: MPI.Intracomm, node: MPI.Intracomm) -> Place:
    """Make a folder that as many ranks as possible see; collective.

    It is one for all ranks in the temporary directory, or in the current one; else one for each node; else one for this
    rank alone.

    Parameters
    ----------
    world : MPI.Intracomm
        The ranks of the grid.
    node : MPI.Intracomm
        Those on this node.
    """
    tries: list[tuple[MPI.Intracomm, Callable[[], str]]] = [
        (world, tempfile.gettempdir),
        (world, lambda: str(Path.cwd())),
        (node, tempfile.gettempdir),
    ]
    for comm, parent in tries:
        folder = _make_for(comm, parent)
        if folder is not None:
            return Place(folder, tuple(ranks_within(comm, world)))
    return Place(_make(tempfile.gettempdir) or Path("hybridnn-stall"), (world.Get_rank(),))


def _make_for(comm: MPI.Intracomm, parent: Callable[[], str]) -> Path | None:
    """A folder of all ranks of `comm`; None on all of them where one does not see it."""
    made = _make(parent) if comm.Get_rank() == 0 else None
    path = np.zeros(PATH_BYTES, np.uint8)
    name = b"" if made is None else bytes(made)
    if len(name) <= PATH_BYTES:
        path[: len(name)] = np.frombuffer(name, np.uint8)
    comm.Bcast(path, 0)
    folder = Path(path.tobytes().rstrip(b"\0").decode(errors="surrogateescape"))
    sees = np.array([bool(path[0]) and folder.is_dir()], np.uint8)
    comm.Allreduce(import_mpi().IN_PLACE, sees, import_mpi().MIN)
    if sees[0]:
        return folder
    if made is not None:
        with contextlib.suppress(OSError):
            made.rmdir()
    return None


def _make(parent: Callable[[], str]) -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="hybridnn-stall-", dir=parent()))
    except OSError:
        return None
