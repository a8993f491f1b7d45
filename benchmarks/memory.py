"""Peak memory of a training, as counted by the operating system.

``python -m benchmarks.memory MODULE ours|torch NAME [WAY]`` runs on the ranks of the module. Each program trains in its
own processes, and the memory of a process before it makes the network is subtracted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.cases import CASES, MICROBATCHES, Case
from benchmarks.harness import run_lines

SMALL = Case("small", (4, 4, 4, 4), 2 * MICROBATCHES, "regression", 1, 1, stages=(2, 1))
"""Trained first, so that all libraries are loaded."""


def grown_bytes(ranks: int, module: str, row: Mapping[str, Any]) -> dict[str, int]:
    """Growth of the memory of a process that trains a network, the largest of all ranks.

    Parameters
    ----------
    module : str
        Module of this package with ``our_program`` and ``torch_program``.
    row : mapping
        Results of the network, with ``case`` and, if there are several variants, ``way``.

    Returns
    -------
    dict
        ``our_grown_bytes`` and ``their_grown_bytes``.
    """

    def grown(program: str) -> int:
        (line,) = run_lines(ranks, "memory", module, program, row["case"], row.get("way", ""))
        found: int = line["grown_bytes"]
        return found

    return {"our_grown_bytes": grown("ours"), "their_grown_bytes": grown("torch")}


def _most_resident() -> int:
    """Peak memory of this process in bytes, with its part of shared memory.

    `getrusage` would include the memory of the parent before the fork.
    """
    most = _bytes("status", "VmHWM")
    return most - _bytes("status", "RssShmem") + _bytes("smaps_rollup", "Pss_Shmem")


def _bytes(file: str, field: str) -> int:
    lines = Path("/proc/self", file).read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(found)


def _trains(module: ModuleType, program: str, way: str) -> Callable[[Case], Any]:
    """A function that makes and trains a network, and returns the objects to keep until memory has been measured."""

    def train(case: Case) -> Any:
        made = module.our_program(case, way) if program == "ours" else (None, module.torch_program(case, way))
        made[1]()
        return made

    return train


def _growth(train: Callable[[Case], Any], case: Case) -> int:
    """Largest growth of the memory of a rank in bytes; collective."""
    from benchmarks.ranks import WORLD

    def measured() -> int:
        # Shared memory is divided by the processes that map it, so all ranks measure at the same time.
        WORLD.Barrier()
        found = _most_resident()
        WORLD.Barrier()
        return found

    kept = [train(SMALL)]
    before = measured()
    kept.append(train(case))
    most: int = max(WORLD.allgather(measured() - before))
    return most


def main() -> None:
    """Train once and print the growth."""
    from benchmarks.ranks import WORLD, gloo, print_row

    name, program, case_name, way = sys.argv[1:]
    case = next(case for case in CASES if case.name == case_name)
    train = _trains(import_module(f"benchmarks.{name}"), program, way)
    if program == "torch" and WORLD.size == 1:
        import torch

        torch.set_num_threads(1)
    with gloo() if program == "torch" and WORLD.size > 1 else nullcontext():
        print_row({"grown_bytes": _growth(train, case)})


if __name__ == "__main__":
    main()
