"""Gradients on their way between ranks: their bytes, and what rounding them takes."""

from __future__ import annotations

from hybridnn.cost.machine.compute import Compute
from hybridnn.cost.prediction.layer_costs import ChunkCosts
from hybridnn.cost.prediction.workload import Layout
from hybridnn.parallel.gradient_reduction import wire_pieces
from hybridnn.parallel.wire_sum import piece_sizes, wire_bytes

__all__ = ["bytes_of_gradients", "bytes_of_slice", "rounding_seconds"]

ROUNDING_COPIES = {"bfloat16": 12, "float16": 65}
"""Times that a number could be copied while it is rounded, added up, rounded again and read, by NumPy in the cache."""


def bytes_of_gradients(layout: Layout, stage: int, costs: ChunkCosts) -> int:
    """Bytes of a chunk's gradients that a batch group sums, with the loss behind them where they are not rounded."""
    words = layout.words(stage)
    if words is None:
        return (costs.parameters + 1) * costs.itemsize
    sizes = wire_pieces(costs.parameter_layout.ends, costs.itemsize, layout.overlap)
    return wire_bytes(sizes, layout.stages[stage][0], words)


def bytes_of_slice(layout: Layout, stage: int, numbers: int, itemsize: int, nodes: int) -> int:
    """Bytes of a slice of shared gradients, of so many numbers, that its owners on so many nodes sum."""
    words = layout.words(stage)
    if words is None:
        return numbers * itemsize
    return wire_bytes(piece_sizes(numbers), nodes, words)


def rounding_seconds(layout: Layout, stage: int, numbers: int, compute: Compute) -> float:
    """Computing of a sum of so many numbers that is not part of it where they travel as computed."""
    words = layout.words(stage)
    # They are rounded in pieces that stay in the cache.
    return 0.0 if words is None else ROUNDING_COPIES[words.name] * compute.packing.seconds(numbers, cached=True)
