"""Whether MPI sends arrays that lie on GPUs: two ranks of a job of their own try it, or where none can be had, one."""

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
"""What the lines of the program begin with: how many there are, and what is wrong."""

RunChild = Callable[..., ChildResult]

ON_GPUS = {1: " on one GPU", 2: " with a GPU each"}

GRACE_SECONDS = 10
"""By which the program's own time is over before that of its launcher."""

BY_SIGNAL = re.compile(r"signal:? (\d+)")
"""How launchers say that a process crashed."""


@dataclass(frozen=True)
class DeviceMpiTrial:
    """What came of it.

    Attributes
    ----------
    problem : str
        Why MPI cannot send an array that lies on a GPU; empty if it can.
    endpoints : str
        Between whom messages were tried, in words.
    """

    problem: str
    endpoints: str


def try_device_mpi(
    environment: Mapping[str, str], seconds: float, places: Sequence[str] = (), run: RunChild = run_child
) -> DeviceMpiTrial:
    """Let two processes on this node send arrays of their GPUs to one another.

    Parameters
    ----------
    environment : mapping
        Of this process.
    seconds : float
        In which a try ends; a hang is a problem.
    places : sequence of str
        Where the GPUs of the node's first two ranks are plugged in; by default those that CUDA names first.
    run : callable
        As `run_child`.
    """
    program = [
        sys.executable,
        "-m",
        "hybridnn.diagnostics.device_mpi_probe",
        str(max(1, int(seconds) - GRACE_SECONDS)),
        *places,
    ]
    clean = without_launcher(environment)
    mpirun = find_mpirun(environment)
    if mpirun is not None:
        end = run([mpirun, "-n", "2", *program], seconds, mpirun_settings(as_root=os.geteuid() == 0) | clean)
        if f"{RANKS}2" in end.output:
            gpus = [words for number, words in ON_GPUS.items() if f"{GPUS}{number}" in end.output]
            return DeviceMpiTrial(_problem_of(end), "".join(["between two processes", *gpus]))
    end = run(program, seconds, clean)
    return DeviceMpiTrial(_problem_of(end), "from a process to itself, as no two could be started")


def _problem_of(end: ChildResult) -> str:
    if end.code == 0 and not end.timed_out:
        return ""
    said = [line.removeprefix(PROBLEM) for line in end.output.splitlines() if line.startswith(PROBLEM)]
    crash = BY_SIGNAL.search(end.errors)
    number = int(crash[1]) if crash is not None else max(-end.code, 0)
    if said:
        what = f"says: {said[0]}"
    elif end.timed_out or number == signal.SIGALRM:
        what = "did not end in time"
    elif number in signal.valid_signals():
        what = f"was ended by {signal.Signals(number).name}"
    else:
        what = end.summary
    return f"a process that sent from GPU memory {what}"
