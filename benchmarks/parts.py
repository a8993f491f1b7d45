"""The parts of the benchmarks by name, with their modules and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import tables
from benchmarks.harness import run_lines
from benchmarks.memory import grown_bytes
from benchmarks.tables import Sheet


@dataclass(frozen=True)
class Part:
    """A part of the benchmarks."""

    module: str  # of this package, which measures
    ranks: int
    sheets: tuple[Sheet, ...]
    bars: str  # label of its ratios in the chart
    has_peer: bool = True  # whether rows with a ratio compare with PyTorch, so that the memory of both is measured

    def measure(self, words: Sequence[str], pairs: int | None) -> list[dict[str, Any]]:
        """Results of the networks that `words` select, from `pairs` of runs or the default number."""
        counted = [] if pairs is None else ["--pairs", str(pairs)]
        rows = run_lines(self.ranks, self.module, *counted, *words)
        if self.has_peer:
            for row in rows:
                if "ratio" in row:
                    row.update(grown_bytes(self.ranks, self.module, row))
        return rows


PARTS = {
    "serial": Part("serial", 1, (tables.SERIAL,), "one process, over PyTorch eager"),
    "batch": Part("batch_parallel", 2, (tables.BATCH,), "batch, 2 ranks, over DDP"),
    "model": Part("model_parallel", 2, (tables.MODEL,), "model, 2 ranks, over tensor parallel"),
    "pipeline": Part("pipeline", 2, (tables.PIPELINE, tables.METHODS), "2 stages, over torch pipelining"),
    "partition": Part("partitions", 2, (tables.PARTITION,), "default partition, over the best", has_peer=False),
    "shared": Part("shared_replicas", 2, (tables.SHARED,), "shared replica, 2 ranks over one", has_peer=False),
}
