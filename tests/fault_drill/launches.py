"""One run of the program under mpirun, and the fault that strikes it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from fault_drill.damage import fill
from fault_drill.rank import HERE, OVER, PROCESS
from fault_drill.recipes import Recipe
from fault_drill.strikes import Strike
from mpi_runner.launch import NOT_STARTED, STARTS, job_environment, marked_processes, started_job

__all__ = ["Launched", "launch"]

TESTS = Path(__file__).resolve().parents[1]
MARK = "HYBRIDNN_FAULT_DRILL"
TICK = 0.0005
SECONDS_TO_GO = 20.0
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
    for number in range(1, STARTS):
        done = _launch(recipe, arguments, strike, folder, name if number == 1 else f"{name}-start-{number}", limit)
        if NOT_STARTED not in done.said:
            return done
    return _launch(recipe, arguments, strike, folder, f"{name}-start-{STARTS}", limit)


def _launch(
    recipe: Recipe, arguments: list[str], strike: Strike | None, folder: Path, name: str, limit: float
) -> Launched:
    signs = folder / f"{name}-signs"
    signs.mkdir(parents=True)
    orders: dict[str, object] = {"signs": str(signs), "rank": -1}
    if strike is not None:
        orders |= {"moment": strike.moment, "call": strike.call, "rank": strike.rank, "error": strike.error}
        orders["waits"] = strike.delay is None
    command = recipe.command(json.dumps(orders), arguments)
    output = folder / f"{name}.txt"
    mark = uuid.uuid4().hex
    environment = job_environment({"PYTHONPATH": str(TESTS), MARK: mark})
    start = time.monotonic()
    struck: float | None = None
    hung = None
    with open(output, "wb") as file:
        file.write(f"{f'struck by: {strike}' if strike else 'not struck'}\n$ {shlex.join(command)}\n\n".encode())
        file.flush()
        before = file.tell()
        with started_job(command, stdout=file, environment=environment, folder=folder) as process:
            while process.poll() is None:
                if time.monotonic() > start + limit:
                    hung = f"the job did not end within {limit:g} s"
                    break
                if strike is not None and struck is None and (signs / f"{HERE}{strike.rank}").exists():
                    struck = _carry_out(strike, process, signs, folder)
                time.sleep(TICK)
            code = process.poll()
            if hung is None:
                hung = _wait_for_the_ranks(mark)
            end = time.monotonic()
    said = output.read_bytes()[before:].decode(errors="replace")
    with open(output, "a") as file:
        file.write(f"\nexit code {code} after {end - start:.1f} s{f': {hung}' if hung else ''}\n")
    return Launched(0 if code is None else code, said, end - start, None if struck is None else end - struck, hung)


def _carry_out(strike: Strike, process: subprocess.Popen[bytes], signs: Path, folder: Path) -> float:
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
