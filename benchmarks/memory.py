"""Most memory that a training takes, by the operating system's count: ``python -m benchmarks.memory ours|torch NAME``.

Each program trains in a process of its own, and what that had taken before it made the network does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case, our_run, torch_model, torch_run

__all__ = ["grown_bytes"]

SMALL = Case("small", (4, 4, 1), 4, "regression", 1, 1)
"""Trained first, so that everything is loaded."""


def grown_bytes(program: str, case: Case) -> int:
    """Bytes by which a process grows while `program`, ``"ours"`` or ``"torch"``, trains a network."""
    command = [sys.executable, "-m", "benchmarks.memory", program, case.name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(json.loads(done.stdout))


def _most_resident() -> int:
    """Bytes of memory that this program had at most; `getrusage` would count what its parent had before."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmHWM"].removesuffix("kB"))


def _trains(program: str) -> Callable[[Case], Any]:
    """What makes a network and trains it, with all its code loaded."""
    if program == "ours":
        from hybridnn import ProcessGrid

        grid = ProcessGrid()
        return lambda case: our_run(case, grid)[1]()
    import torch

    torch.set_num_threads(1)
    return lambda case: torch_run(case, torch_model(case))()


def main() -> None:
    """Train once and print the growth."""
    program, name = sys.argv[1:]
    case = next(case for case in CASES if case.name == name)
    train = _trains(program)
    train(SMALL)
    before = _most_resident()
    train(case)
    print(json.dumps(_most_resident() - before))


if __name__ == "__main__":
    main()
