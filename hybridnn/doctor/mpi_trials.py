"""MPI with time limits: starting it, trials of memory, a file, messages and all-reduces, and collecting the reports.

MPI is called directly, without groups and recorder, so that the findings are about the machine. Nothing waits without
end for a rank that does not arrive: blocking calls run in a thread of their own where the MPI library allows it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.checkpoints.file_io import Rectangle, sync, write_rectangle
from hybridnn.comm.mpi import import_mpi
from hybridnn.doctor.job_checks import ALL_REDUCE, PING_PONG, PING_PONG_BETWEEN_NODES, SIZES, RankFacts
from hybridnn.doctor.report import Check, Finding, Result, TimeLimitError, call_within, failure, ok, run_check

if TYPE_CHECKING:
    from mpi4py import MPI


POLL_SECONDS = 1e-3
REPORT_TAG, PING_TAG = 7001, 7002
ROUNDS = 5  # repetitions of which the fastest counts
ROUND_BYTES = 1 << 22
MOST_REPEATS = 200
AGREEMENT_LIMITS = 2  # ranks begin an agreement at most about one time limit apart


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


def call_mpi(deadline: Deadline, action: Callable[[], Result]) -> Result:
    """Make a blocking call of MPI; the deadline counts where threads other than the first may call MPI."""
    mpi = import_mpi()
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        return action()
    try:
        return call_within(deadline.remaining, action)
    except TimeLimitError:
        raise TimeLimitError(deadline.seconds) from None


def start_mpi() -> str:
    """Start MPI unless it runs; returns its thread level: single, funneled, serialized or multiple."""
    mpi = import_mpi()
    if not mpi.Is_initialized():
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    level = mpi.Query_thread()
    names = ("single", "funneled", "serialized", "multiple")
    return next(name for name in names if getattr(mpi, f"THREAD_{name.upper()}") == level)


# -- trials ------------------------------------------------------------------------------------------------------------


class MpiTrials:
    """The trials of this rank, one after the other, of `limit` seconds each; none begins after one that did not end."""

    def __init__(self, limit: float) -> None:
        self.findings: list[Finding] = []
        self.facts: RankFacts | None = None  # None where the ranks have no common communicator
        self.timings: dict[str, list[float]] = {}  # on rank 0: seconds for each of `SIZES`, by the name of the trial
        self.stuck = False  # whether a call did not end, so that the state of MPI is unknown
        self._limit = limit

    def run(self, gather_facts: Callable[[int], RankFacts]) -> None:
        """Carry out all trials; collective. `gather_facts` is called with the lowest rank on this node."""
        found: list[tuple[MPI.Intracomm, MPI.Intracomm, list[int]]] = []

        def find_ranks() -> None:
            comm = duplicate_world(self._limit)
            found.append((comm, *find_nodes(comm, self._limit)))

        self._attempt("meeting", find_ranks)
        if not found:
            self.stuck = True
            return
        comm, node, nodes = found[0]
        if self._all_go_on(comm):
            self.facts = gather_facts(nodes[comm.Get_rank()])
        for name, trial in self._trials(comm, node, nodes).items():
            if self.stuck or not self._all_go_on(comm):
                return
            self._attempt(name, trial)
        self._all_go_on(comm)

    def _attempt(self, name: str, trial: Check) -> None:
        def noting_timeouts() -> Finding | None:
            try:
                return trial()
            except TimeLimitError:
                self.stuck = True
                raise

        finding = run_check(name, noting_timeouts)
        if finding is not None:
            self.findings.append(finding)

    def _all_go_on(self, comm: MPI.Intracomm) -> bool:
        self.stuck = not all_ready(comm, not self.stuck, AGREEMENT_LIMITS * self._limit)
        return not self.stuck

    def _trials(self, comm: MPI.Intracomm, node: MPI.Intracomm, nodes: list[int]) -> Mapping[str, Check]:
        """The trials in their order, the same on every rank."""

        def timed(name: str, measure: Callable[[], list[float]]) -> Check:
            def trial() -> None:
                seconds = measure()
                if comm.Get_rank() == 0:
                    self.timings[name] = seconds

            return trial

        trials: dict[str, Check] = {
            "shared memory": lambda: try_window(node, self._limit),
            "common folder": lambda: try_file(comm, self._path_of_all(), self._limit),
        }
        same_node = [rank for rank, lowest in enumerate(nodes) if rank and lowest == nodes[0]]
        other_nodes = [rank for rank, lowest in enumerate(nodes) if lowest != nodes[0]]
        if same_node:
            trials[PING_PONG] = timed(PING_PONG, partial(time_ping_pong, comm, same_node[0], SIZES, self._limit))
        if other_nodes:
            measure = partial(time_ping_pong, comm, other_nodes[0], SIZES, self._limit)
            trials[PING_PONG_BETWEEN_NODES] = timed(PING_PONG_BETWEEN_NODES, measure)
        if len(nodes) > 1:
            trials[ALL_REDUCE] = timed(ALL_REDUCE, partial(time_all_reduce, comm, SIZES, self._limit))
        return trials

    def _path_of_all(self) -> Path:
        job = broadcast_number(os.getpid(), self._limit)  # no other job has a file of this name
        return Path.cwd() / f".hybridnn-doctor-{job}"


def try_window(node: MPI.Intracomm, seconds: float) -> Finding:
    """Share a window of memory among the ranks of a node: each writes its number, all read all; collective."""
    advice = "enlarge or empty /dev/shm; without windows train with --set data.distribution=scatter"
    mpi = import_mpi()
    deadline = Deadline(seconds)
    rank, size = node.Get_rank(), node.Get_size()
    try:
        window = call_mpi(deadline, lambda: mpi.Win.Allocate_shared(8 * size if rank == 0 else 0, 8, comm=node))
        window.Lock_all(mpi.MODE_NOCHECK)
        memory, _ = window.Shared_query(0)
        numbers = np.ndarray(size, np.int64, buffer=memory)
        numbers[rank] = rank + 1
        window.Sync()
        wait_for([node.Ibarrier()], deadline)
        window.Sync()
        intact = numbers.tolist() == list(range(1, size + 1))
        wait_for([node.Ibarrier()], deadline)  # the window is freed when all have read it
        del numbers, memory
        window.Unlock_all()
        call_mpi(deadline, window.Free)
    except RuntimeError as error:  # the class of MPI's errors
        return failure(f"no window of shared memory: {error}", advice)
    if not intact:
        what = "a rank does not see in shared memory what another rank of its node wrote"
        return failure(f"no window of shared memory: {what}", advice)
    return ok("the ranks of a node see what each writes to a window")


def try_file(comm: MPI.Intracomm, path: Path, seconds: float) -> Finding:
    """Write one file together, each rank its number, read it back as a plain file, and remove it; collective."""
    deadline = Deadline(seconds)
    rank, size = comm.Get_rank(), comm.Get_size()
    number = np.array([[rank + 1]], np.int64)
    problem = ""
    try:
        write_rectangle(path, number, Rectangle((size, 1), slice(rank, rank + 1), slice(0, 1)), b"")
        sync(path)
    except OSError as error:
        problem = f"it cannot be written: {error.strerror}"
    wait_for([comm.Ibarrier()], deadline)
    found = np.fromfile(path, np.int64).tolist() if path.exists() else None
    wait_for([comm.Ibarrier()], deadline)  # the file is removed when all have read it
    if rank == 0:
        path.unlink(missing_ok=True)
    if not problem and found is None:
        problem = "a file that all ranks wrote together is not there for this rank: the folder is not shared"
    elif not problem and found != list(range(1, size + 1)):
        problem = "a file that all ranks wrote together holds other values than were written"
    if problem:
        advice = "start in a folder that every node sees and every rank can write to, such as your home"
        return failure(f"{path.parent}: {problem}", advice)
    return ok(f"what all ranks wrote to a file in {path.parent} is in it")


def time_ping_pong(comm: MPI.Intracomm, other: int, sizes: Sequence[int], seconds: float) -> list[float]:
    """Seconds of a message between rank 0 and the rank `other`, one way, by size; empty on other ranks.

    Raises `RuntimeError` if other values arrive than were sent, and `TimeLimitError`.
    """
    rank = comm.Get_rank()
    if rank not in (0, other):
        return []
    deadline = Deadline(seconds)
    peer = other if rank == 0 else 0

    def there_and_back(array: NDArray[np.uint8]) -> None:
        for step in (comm.Isend, comm.Irecv) if rank == 0 else (comm.Irecv, comm.Isend):
            wait_for([step(array, peer, PING_TAG)], deadline, busy=True)

    timings = []
    for nbytes in sizes:
        array = np.full(nbytes, 7 if rank == 0 else 0, np.uint8)
        timings.append(_fastest(partial(there_and_back, array), nbytes) / 2)
        if not (array == 7).all():
            raise RuntimeError(f"a message of {nbytes:,} bytes arrived with other values than were sent")
    return timings


def time_all_reduce(comm: MPI.Intracomm, sizes: Sequence[int], seconds: float) -> list[float]:
    """Seconds of an all-reduce over all ranks, by size; collective.

    Raises `RuntimeError` if a sum is wrong, and `TimeLimitError`.
    """
    deadline = Deadline(seconds)
    size = comm.Get_size()
    timings = []
    for nbytes in sizes:
        addend = np.full(nbytes // 8, comm.Get_rank() + 1.0)
        total = np.zeros_like(addend)

        def reduce(addend: NDArray[np.float64] = addend, total: NDArray[np.float64] = total) -> None:
            wait_for([comm.Iallreduce(addend, total)], deadline, busy=True)

        timings.append(_fastest(reduce, nbytes))
        if not (total == size * (size + 1) / 2).all():
            raise RuntimeError(f"an all-reduce of {nbytes:,} bytes gave a wrong sum")
    return timings


def _fastest(action: Callable[[], Any], nbytes: int) -> float:
    """Seconds of one call of `action`: the fastest round, after a call that opens connections and touches memory."""
    repeats = max(1, min(MOST_REPEATS, ROUND_BYTES // nbytes))
    action()
    fastest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        fastest = min(fastest, (time.perf_counter() - start) / repeats)
    return fastest


# -- agreement ---------------------------------------------------------------------------------------------------------


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
