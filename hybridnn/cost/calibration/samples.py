"""What is measured of communication: groups of ranks, operations and sizes, and the seconds they took.

Waiting for other ranks without keeping a core busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from time import sleep

import numpy as np

from hybridnn.comm.group import Group

DOZE_SECONDS = 1e-3


def meet_asleep(group: Group) -> None:
    """Return when every rank has arrived; asleep meanwhile, because ranks that wait in a barrier disturb the others."""
    request = group.iallreduce(np.zeros(1))
    while not request.test():
        sleep(DOZE_SECONDS)


SIZES = {"send": 42, "allreduce": 42, "allgather": 42, "iallreduce": 21, "broadcast": 21}
"""Sizes of every operation; multiples of three, so that neither the smallest nor the largest is held out."""

LEAST_BYTES, MOST_BYTES = 8, 1 << 26
ITEMSIZE = 4
"""Bytes of a number; everything travels as float32."""

BYTES_PER_SECOND = 1 << 22
"""With a short time to measure in, the largest size is so much for each second of it, and at least `LEAST_RANGE`: so
that every size gets several turns at a few hundred MB/s."""
LEAST_RANGE = 1 << 18


@dataclass(frozen=True)
class MeasuredGroup:
    """Ranks that communicate while the others wait.

    Attributes
    ----------
    members : tuple of int
        Positions in the grid.
    spans_nodes : bool
        Whether they are on several nodes.
    ranks_per_node : int
        Most of them on one node, where they are on several.
    """

    members: tuple[int, ...]
    spans_nodes: bool
    ranks_per_node: int = 1

    @property
    def label(self) -> str:
        """In words."""
        return f"{len(self.members)} ranks {'on several nodes' if self.spans_nodes else 'of a node'}"


@dataclass(frozen=True)
class CollectiveCase:
    """One operation at one size, in one group.

    Attributes
    ----------
    operation : str
        ``"send"`` (one way), a collective, or ``"iallreduce"``: the all-reduce without blocking, in pieces.
    nbytes : int
        Of the message, or of the full vector.
    held_out : bool
        Whether it judges the fit instead of entering it.
    """

    operation: str
    nbytes: int
    held_out: bool = False


@dataclass(frozen=True)
class TimedCase:
    """A case and its median seconds, each of the slowest rank.

    Attributes
    ----------
    operation, nbytes, held_out
        As in `CollectiveCase`.
    ranks : int
        Size of the group.
    spans_nodes : bool
        Whether the group was on several nodes.
    seconds : float
    ranks_per_node : int
        Most ranks of the group on one of its nodes, where it was on several.
    """

    operation: str
    ranks: int
    spans_nodes: bool
    nbytes: int
    seconds: float
    held_out: bool
    ranks_per_node: int = 1


def measured_groups(nodes: Sequence[int]) -> tuple[MeasuredGroup, ...]:
    """Groups to measure: of 2, 3, 4, 8, 16, … ranks and of all, inside a node and across nodes apart.

    Inside a node they are the first ranks of the node that has most. Across nodes they have one rank on each, so that
    all messages leave their node; the last group has all ranks of the job.

    Parameters
    ----------
    nodes : sequence of int
        The node of every rank of the grid, by any numbers.
    """
    by_node: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    fullest = max(by_node.values(), key=len)
    groups = [MeasuredGroup(tuple(fullest[:ranks]), False) for ranks in _group_sizes(len(fullest))]
    if len(by_node) > 1:
        first_ranks = [ranks[0] for ranks in by_node.values()]
        groups += [MeasuredGroup(tuple(first_ranks[:ranks]), True) for ranks in _group_sizes(len(by_node))]
        if len(nodes) > len(by_node):
            groups.append(MeasuredGroup(tuple(range(len(nodes))), True, len(fullest)))
    return tuple(groups)


def plan_cases(ranks: int, seconds: float, generator: np.random.Generator) -> tuple[CollectiveCase, ...]:
    """Operations and sizes for a group of so many ranks, to be measured in so many seconds.

    Sizes are random and spread evenly on a logarithmic scale: one from each of as many equal parts of it. The second of
    every three is held out. Messages from rank to rank are measured in groups of two. Every other all-gather has blocks
    of equal size; the others as they come.
    """
    most = min(MOST_BYTES, max(LEAST_RANGE, int(seconds * BYTES_PER_SECOND)))
    cases = []
    for operation, count in SIZES.items():
        if operation == "send" and ranks > 2:
            continue
        places = (np.arange(count) + generator.uniform(size=count)) / count
        numbers = 0
        for index, place in enumerate(places):
            # More than the last, so that no size is both fitted and held out.
            numbers = max(round(LEAST_BYTES * exp(place * log(most / LEAST_BYTES)) / ITEMSIZE), numbers + 1)
            if operation == "allgather" and index % 2:
                numbers += -numbers % ranks
            cases.append(CollectiveCase(operation, ITEMSIZE * numbers, held_out=index % 3 == 1))
    return (*cases, CollectiveCase("barrier", 0))


def _group_sizes(most: int) -> list[int]:
    powers = {2**exponent for exponent in range(1, most.bit_length())}
    return sorted(size for size in powers | {3, most} if 2 <= size <= most)
