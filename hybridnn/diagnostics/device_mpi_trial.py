"""Trial of device-aware MPI: two processes of a job of their own send arrays of GPUs; one, where two cannot start."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hybridnn.comm.launcher import find_mpirun, without_launcher
from hybridnn.comm.open_mpi import mpirun_settings
from hybridnn.utils.processes import ChildResult, run_child

RANKS, GPUS, PROBLEM = "ranks: ", "GPUs: ", "problem: "
"""Beginnings of the output lines of the program: numbers of ranks and GPUs, and the error."""

RunChild = Callable[..., ChildResult]

ON_GPUS = {1: " on one GPU", 2: " with a GPU each"}

GRACE_SECONDS = 10  # difference between the time limits of the launcher and of the program
BY_SIGNAL = re.compile(r"signal:? (\d+)")  # how launchers report a crash


@dataclass(frozen=True)
class DeviceMpiTrial:
    """Result of a trial."""

    problem: str  # why MPI cannot send arrays of a GPU; empty if it can
    endpoints: str  # sender and receiver of the messages, such as ``between two processes on one GPU``


def try_device_mpi(
    environment: Mapping[str, str], seconds: float, bus_ids: Sequence[str] = (), run: RunChild = run_child
) -> DeviceMpiTrial:
    """Start two processes on this node that send arrays of their GPUs to each other, with a time limit.

    `bus_ids` are the PCI bus IDs of the GPUs of the node's first two ranks; by default the first GPUs of CUDA.
    """
    program = [
        sys.executable,
        "-m",
        "hybridnn.diagnostics.device_mpi_probe",
        str(max(1, int(seconds) - GRACE_SECONDS)),
        *bus_ids,
    ]
    clean = without_launcher(environment)
    mpirun = find_mpirun(environment)
    if mpirun is not None:
        end = run([mpirun, "-n", "2", *program], seconds, mpirun_settings(as_root=os.geteuid() == 0) | clean)
        if f"{RANKS}2" in end.output:
            gpus = [text for number, text in ON_GPUS.items() if f"{GPUS}{number}" in end.output]
            return DeviceMpiTrial(_problem_of(end), "".join(["between two processes", *gpus]))
    end = run(program, seconds, clean)
    return DeviceMpiTrial(_problem_of(end), "from a process to itself, as no two could be started")


def _problem_of(end: ChildResult) -> str:
    if end.code == 0 and not end.timed_out:
        return ""
    problems = [line.removeprefix(PROBLEM) for line in end.output.splitlines() if line.startswith(PROBLEM)]
    crash = BY_SIGNAL.search(end.errors)
    number = int(crash[1]) if crash is not None else max(-end.code, 0)
    if problems:
        what = f"says: {problems[0]}"
    elif end.timed_out or number == signal.SIGALRM:
        what = "did not end in time"
    elif number in signal.valid_signals():
        what = f"was ended by {signal.Signals(number).name}"
    else:
        what = end.summary
    return f"a process that sent from GPU memory {what}"
