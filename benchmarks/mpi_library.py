"""The MPI library of this environment: start, all-reduces, shared windows, more ranks than cores, and signals.

``python -m benchmarks.mpi_library`` prints a JSON object a row; to compare libraries, run it in an environment of each.
Ranks are started as ``hybridnn train -n`` starts them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import numpy as np

from benchmarks.launch import ONE_THREAD, run_lines
from benchmarks.timing import seconds_of
from hybridnn.comm.launcher import RankLauncher

ROUNDS = 9
START_ROUNDS = 5
SIZES = {"8 B": (8, 2000), "64 KiB": (1 << 16, 400), "16 MiB": (1 << 24, 8)}
"""Bytes of a message, and calls in a round."""

WINDOW_BYTES = 1 << 24
CORES = 2
CROWD = 4
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
LIMIT = 120.0
"""Time limit of the start of a training, and of its end after a signal, in seconds."""


def launched(ranks: int, program: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Command that runs Python with arguments on `ranks` ranks, and its environment."""
    environment = os.environ | ONE_THREAD
    launcher = RankLauncher.find(environment)
    command = launcher.command(ranks, [sys.executable, *program], environment)
    return command, environment | launcher.settings(ranks, environment)


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def measure_start() -> None:
    """Wall time of a job that initializes MPI and ends, and of one process that does."""
    program = ["-c", "from mpi4py import MPI"]
    for ranks in (2, CROWD):
        command, environment = launched(ranks, program)
        run = _run(command, environment)
        show({"start": f"{ranks} ranks", "seconds": median(seconds_of(run) for _ in range(START_ROUNDS))})
    run = _run([sys.executable, "-c", "import mpi4py"], dict(os.environ))
    show({"start": "Python alone", "seconds": median(seconds_of(run) for _ in range(START_ROUNDS))})


def _run(command: Sequence[str], environment: dict[str, str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def measure_signals() -> None:
    """Seconds from a signal to the end of the launcher, its exit code, and the checkpoints of the run."""
    for kind in SIGNALS:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--epochs", "1000000", "--quiet", "--out", f"{folder}/run"]
            command, environment = launched(2, ["-m", "hybridnn", "train", *options])
            with open(f"{folder}/output", "wb") as output:
                process = subprocess.Popen(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
                try:
                    _wait_for_training(process, Path(folder, "run", "history.jsonl"))
                    process.send_signal(kind)
                    seconds = seconds_of(lambda waited=process: waited.wait(LIMIT))
                finally:
                    process.kill()
            kept = len(list(Path(folder, "run", "checkpoints").glob("step-*")))
            has_command = "go on with" in Path(folder, "output").read_text(encoding="utf-8", errors="replace")
            row = {"signal": kind.name, "seconds": seconds, "exit_code": process.returncode}
            show({**row, "checkpoints": kept, "command to resume": has_command})


def _wait_for_training(process: subprocess.Popen[bytes], history: Path) -> None:
    end = monotonic() + LIMIT
    while not history.exists() or history.read_bytes().count(b"\n") < 3:
        if process.poll() is not None or monotonic() > end:
            raise RuntimeError(f"the training did not begin (exit code {process.returncode})")
        sleep(0.02)


@contextmanager
def few_cores() -> Iterator[None]:
    """Confine this process and its children to two cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_messages() -> None:
    """Measure all-reduces of several sizes, and a shared window; collective."""
    from mpi4py import MPI

    from benchmarks.ranks import WORLD, idle_barrier, print_row

    for size, (count, calls) in SIZES.items():
        ours, total = np.ones(count // 4, np.float32), np.empty(count // 4, np.float32)
        seconds = []
        for _ in range(ROUNDS + 1):
            idle_barrier()
            seconds.append(seconds_of(lambda a=ours, b=total, n=calls: [WORLD.Allreduce(a, b) for _ in range(n)]))
        print_row({"all-reduce": size, "ranks": WORLD.size, "microseconds": 1e6 * median(seconds[1:]) / calls})

    window = MPI.Win.Allocate_shared(WINDOW_BYTES, 1, comm=WORLD)
    memory, _ = window.Shared_query((WORLD.rank + 1) % WORLD.size)
    neighbour, own = np.frombuffer(memory, np.uint8), np.ones(WINDOW_BYTES, np.uint8)
    for way, (target, source) in {"write": (neighbour, own), "read": (own, neighbour)}.items():
        seconds = []
        for _ in range(ROUNDS + 1):
            WORLD.Barrier()
            seconds.append(seconds_of(lambda a=target, b=source: np.copyto(a, b)))
        print_row({"shared window": way, "ranks": WORLD.size, "GB/s": WINDOW_BYTES / median(seconds[1:]) / 1e9})
    del neighbour, memory
    WORLD.Barrier()
    window.Free()


def measure_waiting() -> None:
    """Measure a product on rank 0 while the other ranks sleep or wait in a barrier; collective."""
    from benchmarks.ranks import WORLD, idle_barrier, print_row

    matrix = np.ones((1000, 1000))
    seconds: dict[str, list[float]] = {"asleep": [], "in a barrier": []}
    for _ in range(ROUNDS):
        for way, together in (("asleep", idle_barrier), ("in a barrier", WORLD.Barrier)):
            idle_barrier()
            if WORLD.rank == 0:
                seconds[way].append(seconds_of(lambda: matrix @ matrix))
            together()
    for way, rounds in seconds.items():
        if WORLD.rank == 0:
            print_row({"product while others wait": way, "ranks": WORLD.size, "seconds": median(rounds)})


def main() -> None:
    """Run all measurements, or the part of a rank that the argument names."""
    parts = {"messages": measure_messages, "waiting": measure_waiting}
    if len(sys.argv) > 1:
        parts[sys.argv[1]]()
        return
    program = [sys.executable, "-m", "mpi4py", "--mpi-lib-version"]
    library = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split("\n")[0]
    show({"library": library.split(",")[0], "cores": len(os.sched_getaffinity(0))})
    measure_start()
    for row in run_lines(2, "mpi_library", "messages"):
        show(row)
    with few_cores():
        for part in parts:
            for row in run_lines(CROWD, "mpi_library", part):
                show({**row, "cores": CORES})
    measure_signals()


if __name__ == "__main__":
    main()
