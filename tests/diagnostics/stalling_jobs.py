"""Jobs that stall, each in its own way: ranks without MPI, forked from one process, whose watchdogs share a folder.

``python stalling_jobs.py FOLDER SECONDS`` runs all `JOBS` at once, each in a subfolder of FOLDER that gets the files
``output``, of all its ranks, and ``code``: 1 if a rank has ended the job, else 0. SECONDS is the limit of a stall.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pydantic  # noqa: F401 - which every rank would import by itself

from hybridnn.comm.group import Group, Request
from hybridnn.comm.recorder import Recorder
from hybridnn.diagnostics.failsafe import exit_now, install
from hybridnn.diagnostics.stall_watchdog import Process, StallWatchdog, start_of

FOR_EVER = 1000.0


@dataclass(frozen=True)
class Job:
    """A program of all ranks, and what their watchdogs know."""

    program: Callable[[Rank], None]
    ranks: int = 3
    factor: float = 1.0  # of the limit of a stall
    on_one_node: bool = True
    knows_processes: bool = False


class Rank:
    """A rank whose calls end at once, or never."""

    def __init__(self, job: Job, number: int, seconds: float) -> None:
        self.number, self.seconds = number, seconds * job.factor
        size = job.ranks if job.on_one_node else 2
        self.recorder = Recorder()
        self.world = Group(None, "world", self.recorder, members=range(size))
        shared = Path("notes"), tuple(range(job.ranks))
        numbers = self._meet("process", size) if job.knows_processes else ()
        processes = [Process(socket.gethostname(), number, start_of(number)) for number in numbers]
        self.watch = StallWatchdog(self.recorder, shared, number, size, processes)
        self.end_watch = self.watch.start(self, self.seconds)
        if job.on_one_node:
            self.watch.use_folder(Path("run"), lambda: "go on like this")
        # Before a fault: rank 0 removes the notes of earlier runs, and a process that has ended cannot be watched.
        self._meet("ready", job.ranks)
        for _ in range(5):
            self.world._finish(self.world._begin("allreduce", np.zeros(100), reduction="sum"))

    def _meet(self, name: str, size: int) -> list[int]:
        """Wait until all ranks call this; returns the numbers of their processes."""
        Path(f".{name}-{self.number}").write_text(str(os.getpid()))
        Path(f".{name}-{self.number}").rename(f"{name}-{self.number}")
        while len(found := sorted(Path().glob(f"{name}-*"))) < size:
            time.sleep(0.01)
        return [int(path.read_text()) for path in found]

    def wait(self, operation: str = "allreduce", elements: int = 100, until: Path | None = None) -> None:
        """Wait in a collective that other ranks do not enter, or only when there is a file."""
        self._started(operation, elements, until).wait()

    def poll(self, seconds: float = FOR_EVER) -> None:
        """Test a collective that other ranks do not enter."""
        request, end = self._started("allreduce", 100), time.monotonic() + seconds
        while time.monotonic() < end:
            request.test()
            time.sleep(0.02)

    def receive(self, peer: int) -> None:
        """Wait for a message that is not sent."""
        call = self.world._begin_message("receive", np.zeros(100), peer, 3, "forward 4")
        self.world._started(call, [Pending()]).wait()

    def _started(self, operation: str, elements: int, until: Path | None = None) -> Request:
        reduction, root = ("sum", -1) if operation == "allreduce" else (None, 0)
        array = np.zeros(elements)
        return self.world._started(self.world._begin(operation, array, root, reduction), [Pending(until)], array)


class Pending:
    """An operation of MPI that ends when there is a file, or never."""

    def __init__(self, until: Path | None = None) -> None:
        self.until = until

    def Testall(self, requests: object) -> bool:  # noqa: N802 - MPI's name
        return self.until is not None and self.until.exists()

    def Waitall(self, requests: object) -> None:  # noqa: N802
        while not self.Testall(requests):
            time.sleep(0.02)


def oversleep() -> None:
    time.sleep(FOR_EVER)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fault_of(faulty: int, fault: Callable[[Rank], object]) -> Callable[[Rank], None]:
    """A program in which one rank has a fault, and the others wait for it."""

    def program(rank: Rank) -> None:
        fault(rank) if rank.number == faulty else rank.wait()

    return program


def polls(rank: Rank) -> None:
    oversleep() if rank.number == 1 else rank.poll()


def receive_from_each_other(rank: Rank) -> None:
    rank.receive(1 - rank.number) if rank.number < 2 else rank.wait()


def announces_work(rank: Rank) -> None:
    done = Path("work-is-done")
    if rank.number != 1:
        rank.wait(until=done)
        return
    with rank.watch.busy("writing a checkpoint"):
        time.sleep(2.5 * rank.seconds)
    done.touch()


def works_for_too_long(rank: Rank) -> None:
    with rank.watch.busy("writing a checkpoint", at_most=rank.seconds / 3):
        oversleep()


def waits_in_announced_work(rank: Rank) -> None:
    with rank.watch.busy("writing a checkpoint", at_most=FOR_EVER):
        rank.receive(0)


def waits_for_no_rank_at_last(rank: Rank) -> None:
    rank.poll(0.2 * rank.seconds)
    time.sleep(3 * rank.seconds)
    rank.poll(0.2 * rank.seconds)


def is_suspended(rank: Rank) -> None:
    rank.poll(0.05 * rank.seconds)
    process = os.getpid()
    if os.fork() == 0:
        time.sleep(1.5 * rank.seconds)
        os.kill(process, signal.SIGCONT)
        exit_now(0)
    stop()
    rank.poll(0.05 * rank.seconds)


JOBS = {
    "stopped": Job(fault_of(0, lambda rank: stop())),
    "exit": Job(fault_of(1, lambda rank: sys.exit(0)), factor=1000.0),
    "killed": Job(fault_of(2, lambda rank: os.kill(os.getpid(), signal.SIGKILL)), factor=1000.0, knows_processes=True),
    "ended": Job(fault_of(2, lambda rank: exit_now(0)), factor=1000.0, knows_processes=True),
    "another collective": Job(fault_of(1, lambda rank: rank.wait("broadcast", 50))),
    "polls": Job(polls),
    "receives": Job(receive_from_each_other),
    "work": Job(announces_work),
    "long work": Job(fault_of(1, works_for_too_long)),
    "waiting work": Job(fault_of(1, waits_in_announced_work)),
    "no folder": Job(fault_of(1, lambda rank: oversleep()), ranks=2),
    "other node": Job(lambda rank: rank.poll(), ranks=1, on_one_node=False),
    "nothing to wait for": Job(waits_for_no_rank_at_last, ranks=1, on_one_node=False),
    "suspended": Job(is_suspended, ranks=1, factor=3.0, on_one_node=False),
}


def run_rank(job: Job, number: int, folder: Path, seconds: float) -> None:
    os.chdir(folder)
    descriptor = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    print(f"rank {number} begins", end="")  # in one piece: the ranks share the file
    install()
    rank = Rank(job, number, seconds)
    job.program(rank)
    rank.end_watch()
    print("\ndone", flush=True)
    exit_now(0)


def main(folder: Path, seconds: float) -> None:
    names: dict[int, str] = {}
    codes = dict.fromkeys(JOBS, 0)
    for name, job in JOBS.items():
        (folder / name).mkdir()
        if name == "no folder":
            (folder / name / "run").touch()
        for number in range(job.ranks):
            process = os.fork()
            if process == 0:
                run_rank(job, number, folder / name, seconds)
            names[process] = name
    while names:
        process, status = os.wait()
        name = names.pop(process)
        if os.waitstatus_to_exitcode(status) == 1 and not codes[name]:
            codes[name] = 1
            for other in [other for other in names if names[other] == name]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    for name, code in codes.items():
        (folder / name / "code").write_text(str(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
