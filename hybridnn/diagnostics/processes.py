"""Processes of the ranks: their identity on each node, and a watchdog that ends the job when one of them dies.

Every rank watches the process of the next rank on its node. The system wakes the watchdog when that process ends, so
watching takes no time; without such a system (Linux 5.3 or newer), nothing is watched.
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


HOST_BYTES = 56

STATE_FIELD, START_FIELD, EXIT_FIELD = 0, 19, 49  # fields of ``/proc/N/stat`` behind the name of the process

UNKNOWN_END = "killed, or ended without a word"


@dataclass(frozen=True)
class Process:
    """The process of a rank."""

    host: str
    number: int
    start: int  # its start time, from `start_of`

    @property
    def is_dead(self) -> bool:
        """Whether it no longer exists on this host; False where that is unknown."""
        # A process that ended keeps its number until its parent has taken its exit code.
        fields = _status_of(self.number)
        return self.start != 0 and (not self._has(fields) or _has_ended(fields))

    @property
    def exit_description(self) -> str:
        """How it ended; the system keeps its exit code until the launcher has taken it."""
        fields = _status_of(self.number)
        if self.start == 0 or len(fields) <= EXIT_FIELD or not self._has(fields) or not _has_ended(fields):
            return UNKNOWN_END
        code, signal = divmod(int(fields[EXIT_FIELD]), 256)
        return f"killed by signal {signal & 127}" if signal & 127 else f"ended with exit code {code} and without a word"

    def _has(self, fields: list[str]) -> bool:
        return bool(fields) and int(fields[START_FIELD]) == self.start

    def __str__(self) -> str:
        return f"host {self.host}, process {self.number}"


def processes_of(comm: MPI.Intracomm) -> tuple[Process, ...]:
    """The process of every rank of `comm`, in its order; collective."""
    record = np.dtype([("host", np.uint8, HOST_BYTES), ("number", np.int64), ("start", np.int64)])
    own, gathered = np.zeros(1, record), np.zeros(comm.Get_size(), record)
    host = socket.gethostname().encode(errors="replace")[:HOST_BYTES]
    own["host"][0, : len(host)] = np.frombuffer(host, np.uint8)
    own["number"], own["start"] = os.getpid(), start_of(os.getpid())
    comm.Allgather(own.view(np.uint8), gathered.view(np.uint8))
    return tuple(
        Process(row["host"].tobytes().rstrip(b"\0").decode(errors="replace"), int(row["number"]), int(row["start"]))
        for row in gathered
    )


def start_of(process: int) -> int:
    """Start time of a process of this host in clock ticks of the system; 0 if unknown."""
    fields = _status_of(process)
    return int(fields[START_FIELD]) if fields else 0


def _has_ended(fields: list[str]) -> bool:
    return fields[STATE_FIELD] in "ZX"


def _status_of(process: int) -> list[str]:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return status.rpartition(")")[2].split()  # the name in parentheses may contain anything


class ProcessWatchdog:
    """A thread that ends the job with exit code 1 when the process of another rank dies.

    The end of the process is no error if that rank has left the job as it should (`has_left`). `advice` follows the
    error message.
    """

    def __init__(self, rank: int, process: Process, has_left: Callable[[], bool], advice: Callable[[], str]) -> None:
        self._rank, self._process, self._has_left, self._advice = rank, process, has_left, advice
        self._stop_descriptor = -1
        watched = self._open()
        if watched is not None:
            stopped, self._stop_descriptor = os.pipe()
            threading.Thread(target=self._watch, args=(watched, stopped), name="process watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        if self._stop_descriptor >= 0:
            os.close(self._stop_descriptor)
            self._stop_descriptor = -1

    def _open(self) -> int | None:
        """A descriptor of the process; None where the system has none."""
        try:
            descriptor = os.pidfd_open(self._process.number)
        except (AttributeError, OSError):
            return None
        # In another container the same number belongs to another process.
        if self._process.start and start_of(self._process.number) == self._process.start:
            return descriptor
        os.close(descriptor)
        return None

    def _watch(self, watched: int, stopped: int) -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(stopped, select.POLLIN | select.POLLHUP)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if stopped not in ready:
            # Read at once: the launcher takes the exit code, and ends this process too, in a moment.
            description = self._process.exit_description
            if not self._has_left():
                name = f"rank {self._rank} (process {self._process.number})"
                end_job(f"\n=== {name} is gone: {description}; the job ends ===\n{self._advice()}\n")
        os.close(watched)
        os.close(stopped)
