"""Placement of ranks on nodes as a list of all ranks, independent of the library's."""

from collections.abc import Sequence


def place_ranks(nodes: Sequence[int], model: int) -> list[int]:
    """The rank at each position of a grid: complete model groups of every node, then all remaining ranks."""
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    grouped, remaining = [], []
    for ranks in by_node.values():
        fitting = len(ranks) // model * model
        grouped += ranks[:fitting]
        remaining += ranks[fitting:]
    return grouped + remaining
