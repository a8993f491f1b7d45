"""Most memory that a training takes, by the operating system's count.

``python -m benchmarks.memory MODULE ours|torch NAME [WAY]``, on as many ranks as the module measures. Each program
trains in processes of its own, and what a process had taken before it made the network does not count.
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
from benchmarks.launch import run_lines

__all__ = ["grown_bytes"]

SMALL = Case("small", (4, 4, 4, 4), 2 * MICROBATCHES, "regression", 1, 1, stages=(2, 1))
"""Trained first, so that everything is loaded."""


def grown_bytes(ranks: int, module: str, row: Mapping[str, Any]) -> dict[str, int]:
    """By how many bytes a process grows that trains a network, the most of all ranks.

    Parameters
    ----------
    ranks : int
    module : str
        Module of this package with ``our_program`` and ``torch_program``.
    row : mapping
        Figures of the network: ``case``, and ``way`` where there are several.

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
    """Bytes that this process had at most; of memory that it shares now, its part.

    `getrusage` would count what the parent had before.
    """
    most = _bytes("status", "VmHWM")
    return most - _bytes("status", "RssShmem") + _bytes("smaps_rollup", "Pss_Shmem")


def _bytes(file: str, field: str) -> int:
    lines = Path("/proc/self", file).read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(found)


def _trains(module: ModuleType, program: str, way: str) -> Callable[[Case], Any]:
    """What makes a network and trains it; it returns what must be kept until memory has been looked at."""

    def train(case: Case) -> Any:
        if program == "ours":
            trainer, run = module.our_program(case, way)
        else:
            trainer, run = None, module.torch_program(case, way)
        run()
        return trainer, run

    return train


def _growth(train: Callable[[Case], Any], case: Case) -> int:
    """Bytes by which the rank that grows most does so; collective."""
    from benchmarks.ranks import WORLD

    def looked() -> int:
        # What is shared is divided by those who have it, so nobody may come late or leave early.
        WORLD.Barrier()
        found = _most_resident()
        WORLD.Barrier()
        return found

    kept = [train(SMALL)]
    before = looked()
    kept.append(train(case))
    most: int = max(WORLD.allgather(looked() - before))
    return most


def main() -> None:
    """Train once and print the growth."""
    from benchmarks.ranks import WORLD, gloo, tell

    name, program, case_name, way = sys.argv[1:]
    case = next(case for case in CASES if case.name == case_name)
    train = _trains(import_module(f"benchmarks.{name}"), program, way)
    if program == "torch" and WORLD.size == 1:
        import torch

        torch.set_num_threads(1)
    with gloo() if program == "torch" and WORLD.size > 1 else nullcontext():
        tell({"grown_bytes": _growth(train, case)})


if __name__ == "__main__":
    main()
