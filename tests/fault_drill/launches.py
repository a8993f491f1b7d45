"""Jobs with an injected fault, until all their processes have ended."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path

from fault_drill.damage import fill
from fault_drill.injections import Injection
from fault_drill.rank import HERE, OVER, PROCESS
from mpi_runner.launch import NOT_STARTED, STARTS, find_mpirun, job_environment, marked_processes, started_job
from mpi_runner.slowness import deadline

EPOCHS, SAMPLES, BATCH_SIZE = 4, 240, 20


@dataclass(frozen=True)
class Recipe:
    """A layout."""

    name: str
    grid: tuple[int, int, int]  # stages of the pipeline, batch ranks, model ranks
    settings: tuple[str, ...] = ()  # further options of ``hybridnn train``
    exact: bool = True  # whether the method is exact, so that the run may resume on another exact layout
    launched: bool = True  # whether mpirun starts the ranks

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.grid)

    @property
    def layout(self) -> list[str]:
        """Options of ``hybridnn train`` that set the layout, for a new or a resumed run."""
        axes = zip(("--pipeline", "--batch", "--model"), map(str, self.grid), strict=True)
        return [*chain.from_iterable(axes), *self.settings]

    def command(self, orders: str, arguments: Sequence[str]) -> list[str]:
        """The command of a run; `orders` describes the fault for its ranks."""
        python = [sys.executable, "-m", "fault_drill.rank", orders, *arguments]
        return [find_mpirun(), "-n", str(self.ranks), *python] if self.launched else python


RECIPES = (
    Recipe("one process", (1, 1, 1), launched=False),
    Recipe("batch 2", (1, 2, 1)),
    Recipe("model 2, alternating", (1, 1, 2), ("--set", "parallel.model_split=alternating")),
    Recipe("gpipe over 2", (2, 1, 1), ("--method", "gpipe")),
    Recipe("pipedream over 2", (2, 1, 1), ("--method", "pipedream"), exact=False),
    Recipe("batch 2 x model 2", (1, 2, 2)),
    Recipe("interleaved over 2 x batch 2", (2, 2, 1), ("--method", "interleaved")),
    Recipe("zb-h1 over 4", (4, 1, 1), ("--method", "zb-h1")),
    Recipe("spectrain over 4", (4, 1, 1), ("--method", "spectrain"), exact=False),
)


def new_run(recipe: Recipe, folder: str) -> list[str]:
    """Arguments of ``hybridnn`` for a new run."""
    sizes = ["--data", "synthetic", "--hidden", "12,11,10,9", "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    settings = {
        "training.dtype": "float64",
        "data.rows": SAMPLES,
        "data.synthetic.test_samples": 40,
        "output.log_every": 1,
    }
    sets = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    optimizer = ["--optimizer", "adam" if recipe.exact else "sgd", "--lr", "0.01"]
    return ["train", *sizes, "--seed", "5", *sets, *optimizer, *recipe.layout, "--out", folder, "-q"]


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
    orders: dict[str, object] = {"rank": -1}
    if injection is None:
        return run_job(lambda given: recipe.command(given, arguments), orders, folder, name, limit)
    orders = {key: getattr(injection, key) for key in ("moment", "call", "rank", "error")}
    orders |= {"waits": injection.delay is None, "title": str(injection)}
    act = partial(_carry_out, injection, folder)
    return run_job(lambda given: recipe.command(given, arguments), orders, folder, name, limit, act=act)


def run_job(
    command: Callable[[str], list[str]],
    orders: Mapping[str, object],
    folder: Path,
    name: str,
    limit: float,
    *,
    act: Callable[[subprocess.Popen[bytes], Path], float] | None = None,
    program: str = "",
    starts: int = STARTS,
) -> Launched:
    """Run a command and wait until all its processes have ended; repeat it if mpirun could not start.

    `command` returns the command for the orders of its ranks, with the folder to which they write marker files. It
    runs in `folder`, to which it and its output are written under a name. `act` injects the fault at its moment, given
    the process and the folder of markers, and returns the time. `program` is a part of the command lines of the
    processes that must have ended; by default all.
    """
    markers = folder / f"{name}-markers"
    markers.mkdir(parents=True)
    here = markers / f"{HERE}{orders['rank']}"
    arguments = command(json.dumps({**orders, "markers": str(markers)}))
    output_file = folder / f"{name}.txt"
    mark = uuid.uuid4().hex
    environment = job_environment({"PYTHONPATH": str(TESTS), MARK: mark})
    start = time.monotonic()
    injected: float | None = None
    hung = None
    with open(output_file, "wb") as file:
        file.write(f"{orders.get('title', 'without fault')}\n$ {shlex.join(arguments)}\n\n".encode())
        file.flush()
        before = file.tell()
        with started_job(arguments, stdout=file, environment=environment, folder=folder) as process:
            while process.poll() is None:
                if time.monotonic() > start + limit:
                    hung = f"the job did not end within {limit:g} s"
                    break
                if act is not None and injected is None and here.exists():
                    injected = act(process, markers)
                time.sleep(TICK)
            code = process.poll()
            hung = hung or _wait_for_the_ranks(mark, program)
            end = time.monotonic()
    if act is not None and injected is None and here.exists():  # the process ended first
        injected = here.stat().st_mtime - time.time() + time.monotonic()
    output = output_file.read_bytes()[before:].decode(errors="replace")
    with open(output_file, "a") as file:
        file.write(f"\nexit code {code} after {end - start:.1f} s{f': {hung}' if hung else ''}\n")
    if NOT_STARTED in output and starts > 1:
        return run_job(command, orders, folder, f"{name}-again", limit, act=act, program=program, starts=starts - 1)
    return Launched(code or 0, output, end - start, None if injected is None else end - injected, hung)


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
