"""The memory of a training: of every rank the growth, of what ranks share a part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import memory
from benchmarks.cases import CASES, Case
from hybridnn import ProcessGrid
from hybridnn.parallel.node_memory import NodeMemory

if TYPE_CHECKING:
    from mpi4py import MPI

MEGABYTES = 48


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize(("whose", "expected"), [("one", MEGABYTES), ("both", MEGABYTES / 2)])
def test_growth_is_what_was_taken(comm: MPI.Intracomm, whose: str, expected: float) -> None:
    """One rank takes memory of its own, or both share as much."""
    node = NodeMemory(ProcessGrid(comm))
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the tests before, in the same process, does not count

    def train(case: Case) -> Any:
        if case is memory.SMALL:
            return None
        shape = (MEGABYTES * 1_000_000,)
        if whose == "both":
            array = node.allocate(shape, np.uint8)
            comm.Barrier()
        else:
            array = np.empty(shape if comm.rank == 1 else (0,), np.uint8)
        array[...] = 1
        return array

    grown = memory._growth(train, CASES[0]) / 1e6
    assert expected - 2 < grown < expected + 6
    node.free()


def test_each_program_is_started_with_its_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_lines(*call: Any) -> list[dict[str, int]]:
        return [{"grown_bytes": {("model_parallel", "ours"): 5, ("model_parallel", "torch"): 7}[call[2:4]]}]

    calls: list[Any] = []
    monkeypatch.setattr(memory, "run_lines", lambda *call: calls.append(call) or run_lines(*call))
    found = memory.grown_bytes(2, "model_parallel", {"case": "4-64-64-64-1", "way": "columns"})
    assert found == {"our_grown_bytes": 5, "their_grown_bytes": 7}
    assert calls[0] == (2, "memory", "model_parallel", "ours", "4-64-64-64-1", "columns")
