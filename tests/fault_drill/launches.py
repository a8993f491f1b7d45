"""Jobs with an injected fault, until all their processes have ended."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fault_drill.damage import fill
from fault_drill.injections import Injection
from fault_drill.rank import HERE, OVER, PROCESS
from fault_drill.recipes import Recipe
from mpi_runner.launch import NOT_STARTED, STARTS, job_environment, marked_processes, started_job
from mpi_runner.slowness import deadline

__all__ = ["Launched", "launch", "run_job"]

TESTS = Path(__file__).resolve().parents[1]
MARK = "HYBRIDNN_FAULT_DRILL"
TICK = 0.0005
SECONDS_TO_GO = 20.0
"""Time limit of the ranks after the end of their launcher, on an idle machine."""


@dataclass(frozen=True)
class Launched:
    """End of a job."""

    code: int  # exit code, negative for a signal
    output: str
    seconds: float  # time until all processes had ended
    seconds_after_fault: float | None  # the same from the fault on; None if it was not injected
    hung: str | None  # description of what did not end in time


def launch(
    recipe: Recipe, arguments: list[str], injection: Injection | None, folder: Path, name: str, limit: float
) -> Launched:
    """Run ``hybridnn`` with `arguments` by `run_job`, and inject a fault."""

    def command(markers: Path) -> list[str]:
        orders: dict[str, object] = {"markers": str(markers), "rank": -1}
        if injection is not None:
            orders |= {name: getattr(injection, name) for name in ("moment", "call", "rank", "error")}
            orders["waits"] = injection.delay is None
        return recipe.command(json.dumps(orders), arguments)

    if injection is None:
        return run_job(command, folder, name, limit, "without fault")
    act = partial(_carry_out, injection, folder)
    return run_job(command, folder, name, limit, f"with fault: {injection}", marker=f"{HERE}{injection.rank}", act=act)


def run_job(
    command: Callable[[Path], list[str]],
    folder: Path,
    name: str,
    limit: float,
    title: str,
    *,
    marker: str | None = None,
    act: Callable[[subprocess.Popen[bytes], Path], float] = lambda process, markers: time.monotonic(),
    program: str = "",
) -> Launched:
    """Run a command and wait until all its processes have ended; repeat it if mpirun could not start.

    `command` returns the command for a folder, to which its ranks write marker files. It runs in `folder`, to which it
    and its output are written under a name, the output after a title. `act` injects the fault when there is a file
    `marker`, given the process and the folder of markers, and returns the time. `program` is a part of the command
    lines of the processes that must have ended; by default all.
    """
    for number in range(1, STARTS):
        attempt = name if number == 1 else f"{name}-start-{number}"
        done = _run_once(command, folder, attempt, limit, title, marker, act, program)
        if NOT_STARTED not in done.output:
            return done
    return _run_once(command, folder, f"{name}-start-{STARTS}", limit, title, marker, act, program)


def _run_once(
    command: Callable[[Path], list[str]],
    folder: Path,
    name: str,
    limit: float,
    title: str,
    marker: str | None,
    act: Callable[[subprocess.Popen[bytes], Path], float],
    program: str,
) -> Launched:
    markers = folder / f"{name}-markers"
    markers.mkdir(parents=True)
    arguments = command(markers)
    output_file = folder / f"{name}.txt"
    mark = uuid.uuid4().hex
    environment = job_environment({"PYTHONPATH": str(TESTS), MARK: mark})
    start = time.monotonic()
    injected: float | None = None
    hung = None
    with open(output_file, "wb") as file:
        file.write(f"{title}\n$ {shlex.join(arguments)}\n\n".encode())
        file.flush()
        before = file.tell()
        with started_job(arguments, stdout=file, environment=environment, folder=folder) as process:
            while process.poll() is None:
                if time.monotonic() > start + limit:
                    hung = f"the job did not end within {limit:g} s"
                    break
                if marker is not None and injected is None and (markers / marker).exists():
                    injected = act(process, markers)
                time.sleep(TICK)
            code = process.poll()
            if hung is None:
                hung = _wait_for_the_ranks(mark, program)
            end = time.monotonic()
    if marker is not None and injected is None and (markers / marker).exists():  # the process ended first
        injected = (markers / marker).stat().st_mtime - time.time() + time.monotonic()
    output = output_file.read_bytes()[before:].decode(errors="replace")
    with open(output_file, "a") as file:
        file.write(f"\nexit code {code} after {end - start:.1f} s{f': {hung}' if hung else ''}\n")
    return Launched(
        0 if code is None else code, output, end - start, None if injected is None else end - injected, hung
    )


def _carry_out(injection: Injection, folder: Path, process: subprocess.Popen[bytes], markers: Path) -> float:
    """Inject the fault and release the waiting rank; return the time of the fault."""
    if injection.delay is not None:
        time.sleep(injection.delay)
    now = time.monotonic()
    if injection.fault == "disk full":
        fill(folder / "disk", injection.free_bytes)
    for index, number in enumerate(injection.signals):
        if index:
            time.sleep(injection.pause)
        for target in _targets(injection, process.pid, markers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)
        if number != signal.SIGSTOP:
            (markers / OVER).touch()
    (markers / OVER).touch()
    return now


def _targets(injection: Injection, launcher: int, markers: Path) -> list[int]:
    if injection.target == "launcher":
        return [launcher]
    if injection.target == "rank":
        return [int((markers / f"{PROCESS}{injection.rank}").read_text())]
    ranks = [int(path.read_text()) for path in sorted(markers.glob(f"{PROCESS}*"))]
    return [launcher, *ranks] if injection.target == "everything" else ranks


def _wait_for_the_ranks(mark: str, program: str) -> str | None:
    """Wait for the end of all ranks; return a description of those that outlive their launcher."""
    seconds = deadline(SECONDS_TO_GO)
    end = time.monotonic() + seconds
    while left := [number for number in marked_processes(f"{MARK}={mark}") if _runs(number, program)]:
        if time.monotonic() > end:
            return f"processes {left} lived on for {seconds:.1f} s after their launcher"
        time.sleep(0.02)
    return None


def _runs(process: int, program: str) -> bool:
    """Whether `program` is part of the command line of a process."""
    try:
        return program in Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    except OSError:
        return False
