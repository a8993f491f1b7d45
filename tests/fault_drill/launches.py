"""One job and the fault that strikes it: watched until every process is gone."""

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
from fault_drill.rank import HERE, OVER, PROCESS
from fault_drill.recipes import Recipe
from fault_drill.strikes import Strike
from mpi_runner.launch import NOT_STARTED, STARTS, job_environment, marked_processes, started_job
from mpi_runner.slowness import deadline

__all__ = ["Launched", "launch", "run_job"]

TESTS = Path(__file__).resolve().parents[1]
MARK = "HYBRIDNN_FAULT_DRILL"
TICK = 0.0005
SECONDS_TO_GO = deadline(20)
"""What ranks may take to notice that their launcher is gone."""


@dataclass(frozen=True)
class Launched:
    """How a run ended.

    Attributes
    ----------
    code : int
        Exit code, negative for a signal.
    said : str
        All output.
    seconds : float
        Until every process was gone.
    struck_seconds : float or None
        The same from the strike on; None where it did not come.
    hung : str or None
        What did not end in time.
    """

    code: int
    said: str
    seconds: float
    struck_seconds: float | None
    hung: str | None


def launch(
    recipe: Recipe, arguments: list[str], strike: Strike | None, folder: Path, name: str, limit: float
) -> Launched:
    """Run ``hybridnn`` with `arguments`, strike it, and wait until all its processes are gone.

    Parameters
    ----------
    recipe : Recipe
        The ranks.
    arguments : list of str
        Of ``hybridnn``.
    strike : Strike, optional
        The fault.
    folder : Path
        Where it runs; command and output are left there.
    name : str
        Of the files for these.
    limit : float
        Seconds it may take.
    """

    def command(signs: Path) -> list[str]:
        orders: dict[str, object] = {"signs": str(signs), "rank": -1}
        if strike is not None:
            orders |= {"moment": strike.moment, "call": strike.call, "rank": strike.rank, "error": strike.error}
            orders["waits"] = strike.delay is None
        return recipe.command(json.dumps(orders), arguments)

    if strike is None:
        return run_job(command, folder, name, limit, "not struck")
    act = partial(_carry_out, strike, folder)
    return run_job(command, folder, name, limit, f"struck by: {strike}", sign=f"{HERE}{strike.rank}", act=act)


def run_job(
    command: Callable[[Path], list[str]],
    folder: Path,
    name: str,
    limit: float,
    title: str,
    *,
    sign: str | None = None,
    act: Callable[[subprocess.Popen[bytes], Path], float] = lambda process, signs: time.monotonic(),
) -> Launched:
    """Run a command and wait until all its processes are gone; start it again where mpirun could not start.

    Parameters
    ----------
    command : callable
        From the folder in which its ranks leave signs to the words of the command.
    folder : Path
        Where it runs; command and output are left there.
    name : str
        Of the files for these.
    limit : float
        Seconds it may take.
    title : str
        First line of the output file.
    sign : str, optional
        File among the signs that tells of the fault's moment.
    act : callable
        What is done then, with the process and the folder of signs; returns when it was done.
    """
    for number in range(1, STARTS):
        attempt = name if number == 1 else f"{name}-start-{number}"
        done = _run_once(command, folder, attempt, limit, title, sign, act)
        if NOT_STARTED not in done.said:
            return done
    return _run_once(command, folder, f"{name}-start-{STARTS}", limit, title, sign, act)


def _run_once(
    command: Callable[[Path], list[str]],
    folder: Path,
    name: str,
    limit: float,
    title: str,
    sign: str | None,
    act: Callable[[subprocess.Popen[bytes], Path], float],
) -> Launched:
    signs = folder / f"{name}-signs"
    signs.mkdir(parents=True)
    words = command(signs)
    output = folder / f"{name}.txt"
    mark = uuid.uuid4().hex
    environment = job_environment({"PYTHONPATH": str(TESTS), MARK: mark})
    start = time.monotonic()
    struck: float | None = None
    hung = None
    with open(output, "wb") as file:
        file.write(f"{title}\n$ {shlex.join(words)}\n\n".encode())
        file.flush()
        before = file.tell()
        with started_job(words, stdout=file, environment=environment, folder=folder) as process:
            while process.poll() is None:
                if time.monotonic() > start + limit:
                    hung = f"the job did not end within {limit:g} s"
                    break
                if sign is not None and struck is None and (signs / sign).exists():
                    struck = act(process, signs)
                time.sleep(TICK)
            code = process.poll()
            if hung is None:
                hung = _wait_for_the_ranks(mark)
            end = time.monotonic()
    if sign is not None and struck is None and (signs / sign).exists():  # it ended before it was looked at again
        struck = (signs / sign).stat().st_mtime - time.time() + time.monotonic()
    said = output.read_bytes()[before:].decode(errors="replace")
    with open(output, "a") as file:
        file.write(f"\nexit code {code} after {end - start:.1f} s{f': {hung}' if hung else ''}\n")
    return Launched(0 if code is None else code, said, end - start, None if struck is None else end - struck, hung)


def _carry_out(strike: Strike, folder: Path, process: subprocess.Popen[bytes], signs: Path) -> float:
    """Do what the fault is, and tell the waiting rank when it is done; returns when that was."""
    if strike.delay is not None:
        time.sleep(strike.delay)
    now = time.monotonic()
    if strike.fault == "disk full":
        fill(folder / "disk", strike.room)
    for place, number in enumerate(strike.signals):
        if place:
            time.sleep(strike.pause)
        for target in _targets(strike, process.pid, signs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)
        if number != signal.SIGSTOP:
            (signs / OVER).touch()
    (signs / OVER).touch()
    return now


def _targets(strike: Strike, launcher: int, signs: Path) -> list[int]:
    if strike.whom == "launcher":
        return [launcher]
    if strike.whom == "rank":
        return [int((signs / f"{PROCESS}{strike.rank}").read_text())]
    ranks = [int(path.read_text()) for path in sorted(signs.glob(f"{PROCESS}*"))]
    return [launcher, *ranks] if strike.whom == "everything" else ranks


def _wait_for_the_ranks(mark: str) -> str | None:
    """What lives on after its launcher."""
    end = time.monotonic() + SECONDS_TO_GO
    while left := marked_processes(f"{MARK}={mark}"):
        if time.monotonic() > end:
            return f"processes {left} lived on for {SECONDS_TO_GO:g} s after their launcher"
        time.sleep(0.02)
    return None
