"""The processes of the ranks, exchanged before anything can go wrong: a dead rank reports nothing.

A job that loses a rank ends at once, with the reason and how to go on, whatever its launcher does.

Every rank watches the process of the next one on its node. The system wakes it when that process ends, however it does,
so that watching costs nothing; without a system that can (Linux 5.3), nothing is watched.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hybridnn.diagnostics.failsafe import end_job

if TYPE_CHECKING:
    from mpi4py import MPI


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


class PeerWatch:
    """Watches a neighbour from now on, and ends the job with exit code 1 when that process is gone.

    Parameters
    ----------
    rank : int
        Of the neighbour, to name it by.
    process : Process
    has_left : callable
        Whether the neighbour left as it should; then nothing is wrong.
    advice : callable
        What to add to the reason, asked for when it is known.
    """

    def __init__(self, rank: int, process: Process, has_left: Callable[[], bool], advice: Callable[[], str]) -> None:
        self._rank, self._process, self._has_left, self._advice = rank, process, has_left, advice
        self._stop = -1
        neighbour = self._open()
        if neighbour is not None:
            stopped, self._stop = os.pipe()
            threading.Thread(target=self._watch, args=(neighbour, stopped), name="peer watch", daemon=True).start()

    def end(self) -> None:
        """Watch no more."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1

    def _open(self) -> int | None:
        """A descriptor of the neighbour's process; None where the system gives none."""
        try:
            descriptor = os.pidfd_open(self._process.number)
        except (AttributeError, OSError):
            return None
        # Ranks in containers of their own have each its own numbering of processes.
        if self._process.start and start_of(self._process.number) == self._process.start:
            return descriptor
        os.close(descriptor)
        return None

    def _watch(self, neighbour: int, stopped: int) -> None:
        either = select.poll()
        either.register(neighbour, select.POLLIN)
        either.register(stopped, select.POLLIN | select.POLLHUP)
        ended = {descriptor for descriptor, _ in either.poll()}
        if stopped not in ended:
            way = self._process.way_of_ending  # the launcher takes note of it, and ends this process too, in a moment
            if not self._has_left():
                name = f"rank {self._rank} (process {self._process.number})"
                end_job(f"\n=== {name} is gone: {way}; the job ends ===\n{self._advice()}\n")
        os.close(neighbour)
        os.close(stopped)
