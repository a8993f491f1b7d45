"""The processes of the ranks, exchanged before anything can go wrong: a dead rank reports nothing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Process", "processes_of", "start_of"]

BYTES = 56
"""Of a host's name."""

START_FIELD, EXIT_FIELD = 19, 49
"""Of ``/proc/N/stat``, counted from behind the process's name."""


@dataclass(frozen=True)
class Process:
    """The process of a rank.

    Attributes
    ----------
    host : str
    number : int
    start : int
        When it started, as `start_of`.
    """

    host: str
    number: int
    start: int

    @property
    def is_gone(self) -> bool:
        """Whether it no longer exists, asked on its own host; False where that cannot be told."""
        # A process that ended, and that its parent has not yet been told of, still has a number.
        return self.start != 0 and (start_of(self.number) != self.start or _state_of(self.number) in "ZX")

    @property
    def way_of_ending(self) -> str:
        """How it ended, in words; the system shows it until the launcher has taken note."""
        fields = _status_of(self.number)
        if (
            self.start == 0
            or len(fields) <= EXIT_FIELD
            or int(fields[START_FIELD]) != self.start
            or fields[0] not in "ZX"
        ):
            return "killed, or ended without a word"
        code, number = divmod(int(fields[EXIT_FIELD]), 256)
        return f"killed by signal {number & 127}" if number & 127 else f"ended with exit code {code} and without a word"

    def __str__(self) -> str:
        return f"host {self.host}, process {self.number}"


def processes_of(comm: MPI.Intracomm) -> tuple[Process, ...]:
    """The process of every rank of `comm`, in its order; collective."""
    record = np.dtype([("host", np.uint8, BYTES), ("number", np.int64), ("start", np.int64)])
    mine, everyone = np.zeros(1, record), np.zeros(comm.Get_size(), record)
    host = socket.gethostname().encode(errors="replace")[:BYTES]
    mine["host"][0, : len(host)] = np.frombuffer(host, np.uint8)
    mine["number"], mine["start"] = os.getpid(), start_of(os.getpid())
    comm.Allgather(mine.view(np.uint8), everyone.view(np.uint8))
    return tuple(
        Process(row["host"].tobytes().rstrip(b"\0").decode(errors="replace"), int(row["number"]), int(row["start"]))
        for row in everyone
    )


def start_of(process: int) -> int:
    """When a process of this host started, in ticks of the system's clock; 0 where that is not known."""
    fields = _status_of(process)
    return int(fields[START_FIELD]) if fields else 0


def _state_of(process: int) -> str:
    fields = _status_of(process)
    return fields[0] if fields else "X"


def _status_of(process: int) -> list[str]:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return status.rpartition(")")[2].split()  # the name in parentheses may hold anything
