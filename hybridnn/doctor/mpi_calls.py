"""Calls of MPI with time limits: starting it, finding ranks and nodes, collecting reports.

None of them waits without end for a rank that does not arrive. Blocking calls run in a thread of their own where the
MPI library allows it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hybridnn.comm.mpi import import_mpi, library_version, load_mpi_library
from hybridnn.doctor.report import Finding, failure

if TYPE_CHECKING:
    from mpi4py import MPI


Result = TypeVar("Result")
Check = Callable[[], "Finding | None"]
"""A check of one thing; returns None where the thing does not exist here and is not needed."""

POLL_SECONDS = 1e-3
REPORT_TAG = 7001


class TimeLimitError(Exception):
    """A call did not end within its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not end within {seconds:g} s")


class Deadline:
    """A time limit in seconds that starts now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Remaining seconds, 0 or more."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise `TimeLimitError` once no time remains."""
        if not self.remaining:
            raise TimeLimitError(self.seconds)


def wait_for(requests: Sequence[Any], deadline: Deadline, *, busy: bool = False) -> None:
    """Wait for MPI requests; if `busy`, by polling without sleep, for measurements.

    After a `TimeLimitError` the buffers of the requests must be kept as long as the process lives.
    """
    for request in requests:
        while not request.Test():
            deadline.check()
            if busy:
                os.sched_yield()
            else:
                time.sleep(POLL_SECONDS)


def call_within(seconds: float, action: Callable[[], Result]) -> Result:
    """Call `action` in a thread of its own, and return or raise what it does, or `TimeLimitError`.

    The thread is left behind when the time is over.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="call with a time limit", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeLimitError(seconds)
    return results[0]


def call_mpi(deadline: Deadline, action: Callable[[], Result]) -> Result:
    """Make a blocking call of MPI; the deadline counts where threads other than the first may call MPI."""
    mpi = import_mpi()
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        return action()
    try:
        return call_within(deadline.remaining, action)
    except TimeLimitError:
        raise TimeLimitError(deadline.seconds) from None


def run_check(name: str, check: Check, seconds: float | None = None) -> Finding | None:
    """Carry out a check; one that raises an exception, or takes longer than `seconds`, is a failure.

    Without `seconds` the check is called directly, and has limits of its own.
    """
    try:
        finding = check() if seconds is None else call_within(seconds, check)
    except TimeLimitError as error:
        advice = "a file system, another rank or a library does not answer: try with fewer ranks, or in another folder"
        finding = failure(str(error), advice)
    except (Exception, SystemExit) as error:
        kind, text = type(error).__name__, str(error).strip()
        reason = f"{kind}: {text.splitlines()[0]}" if text else kind
        finding = failure(f"the check itself failed: {reason}", "mend what this names, and run doctor again")
    return None if finding is None else replace(finding, name=name)


def run_checks(checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Findings of checks that have time limits of their own."""
    findings = (run_check(name, check) for name, check in checks)
    return [finding for finding in findings if finding is not None]


# -- start of the job ------------------------------------------------------------------------------------------


def load_mpi() -> str:
    """Load the MPI library without starting it; returns its name and version, or raises `EnvironmentProblem`."""
    if "mpi4py.MPI" not in sys.modules:
        with contextlib.suppress(ImportError):  # `load_mpi_library` raises it with a better message
            import mpi4py

            mpi4py.rc(initialize=False, finalize=True)
    load_mpi_library()
    return library_version()


def start_mpi() -> str:
    """Start MPI unless it runs; returns its thread level: single, funneled, serialized or multiple."""
    mpi = import_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    level = mpi.Query_thread()
    names = ("single", "funneled", "serialized", "multiple")
    return next(name for name in names if getattr(mpi, f"THREAD_{name.upper()}") == level)


# -- collectives -------------------------------------------------------------------------------------------------------


def duplicate_world(seconds: float) -> MPI.Intracomm:
    """A communicator of all ranks for trials, so that one that is given up leaves COMM_WORLD intact; collective."""
    copy, request = import_mpi().COMM_WORLD.Idup()
    wait_for([request], Deadline(seconds))
    result: MPI.Intracomm = copy
    return result


def find_nodes(comm: MPI.Intracomm, seconds: float) -> tuple[MPI.Intracomm, list[int]]:
    """Communicator of the ranks on this node, and the lowest rank on the node of every rank; collective."""
    mpi = import_mpi()
    deadline = Deadline(seconds)
    node: Any = call_mpi(deadline, lambda: comm.Split_type(mpi.COMM_TYPE_SHARED))
    lowest = np.array([comm.Get_rank()], np.int64)
    wait_for([node.Iallreduce(mpi.IN_PLACE, lowest, mpi.MIN)], deadline)
    nodes = np.empty(comm.Get_size(), np.int64)
    wait_for([comm.Iallgather(lowest, nodes)], deadline)
    return node, nodes.tolist()


def all_ready(comm: MPI.Intracomm, ready: bool, seconds: float) -> bool:
    """Whether every rank calls this within the time limit, with `ready` true; collective."""
    mpi = import_mpi()
    flag = np.array([ready], np.int64)
    try:
        wait_for([comm.Iallreduce(mpi.IN_PLACE, flag, mpi.MIN)], Deadline(seconds))
    except TimeLimitError:
        return False
    return bool(flag[0])


def gather_texts(text: str, seconds: float) -> list[str | None]:
    """Texts of all ranks on rank 0, None for a rank that sent none in time; on other ranks an empty list."""
    mpi = import_mpi()
    world = mpi.COMM_WORLD
    deadline = Deadline(seconds)
    if world.Get_rank() != 0:
        encoded = np.frombuffer(text.encode(), np.uint8)
        with contextlib.suppress(TimeLimitError):
            wait_for([world.Isend(encoded, 0, REPORT_TAG)], deadline)
        return []
    texts: list[str | None] = [text, *[None] * (world.Get_size() - 1)]
    status = mpi.Status()
    with contextlib.suppress(TimeLimitError):
        while None in texts:
            if world.Iprobe(mpi.ANY_SOURCE, REPORT_TAG, status):
                source, buffer = status.Get_source(), np.empty(status.Get_count(mpi.BYTE), np.uint8)
                wait_for([world.Irecv(buffer, source, REPORT_TAG)], deadline)
                texts[source] = buffer.tobytes().decode()
            else:
                deadline.check()
                time.sleep(POLL_SECONDS)
    return texts


def broadcast_number(number: int, seconds: float) -> int | None:
    """The number of rank 0 on every rank; None where it does not arrive in time."""
    buffer = np.array([number], np.int64)
    try:
        wait_for([import_mpi().COMM_WORLD.Ibcast(buffer, 0)], Deadline(seconds))
    except TimeLimitError:
        return None
    return int(buffer[0])
