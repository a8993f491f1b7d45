"""Measuring messages and collectives, through the methods that training calls: Python and pieces are part of it.

All sizes of a group take turns in random order, round after round, so that a disturbance hits few turns of each; the
median over the rounds counts. Ranks that are not in the group sleep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.grid import ProcessGrid
from hybridnn.comm.group import Group
from hybridnn.comm.large_messages import pieces
from hybridnn.comm.meeting import meet_asleep
from hybridnn.comm.request import Request
from hybridnn.cost.calibration.samples import ITEMSIZE, Case, Sample, measured_groups, plan_cases
from hybridnn.parallel.gradient_reduction import IN_FLIGHT, PIECE_BYTES

__all__ = ["measure_communication", "measure_reduction"]

BATCH_SECONDS = 2e-4
"""Short operations are repeated until a turn takes about so long, against the noise of the clock and of the barrier
before it."""
MOST_REPEATS = 20
LEAST_ROUNDS = 3
TAG = 1

Array = NDArray[np.float32]


def measure_communication(
    grid: ProcessGrid, seconds: float, seed: int, report: Callable[[str], None] = lambda text: None
) -> tuple[Sample, ...]:
    """Measure every group of `measured_groups` in turn; collective over the grid, and the same result on every rank.

    Parameters
    ----------
    grid : ProcessGrid
        Two ranks or more; with one nothing is measured.
    seconds : float
        For all groups together.
    seed : int
        Of the sizes and of their order.
    report : callable
        Told what is measured next.
    """
    samples: list[Sample] = []
    groups = measured_groups(_nodes_of_ranks(grid))
    for index, measured in enumerate(groups):
        share = seconds / len(groups)
        generator = np.random.default_rng([seed, index])  # the same on every rank
        ranks = len(measured.members)
        cases = plan_cases(ranks, share, generator)
        medians = np.zeros(len(cases))
        is_member = grid.rank in measured.members
        part = grid.world.split(int(is_member), "calibration")
        report(f"messages and collectives among {measured.label}")
        if is_member:
            medians[:] = _time_cases(part, cases, share, generator)
        meet_asleep(grid.world)
        grid.world.allreduce(medians, "max")
        samples += [
            Sample(
                case.operation,
                ranks,
                measured.spans_nodes,
                case.nbytes,
                median,
                case.held_out,
                measured.ranks_per_node,
            )
            for case, median in zip(cases, medians.tolist(), strict=True)
        ]
    return tuple(samples)


def measure_reduction(group: Group) -> float:
    """Seconds per byte of adding arrays of the size of a piece, while all ranks of `group` do so; collective."""
    total, other = (np.ones(PIECE_BYTES // ITEMSIZE, np.float32) for _ in range(2))
    seconds = []
    group.barrier()
    for _ in range(MOST_REPEATS):
        start = perf_counter()
        np.add(total, other, out=total)
        seconds.append(perf_counter() - start)
    slowest = np.array([np.median(seconds)])
    group.allreduce(slowest, "max")
    return float(slowest[0]) / PIECE_BYTES


def _time_cases(
    group: Group, cases: tuple[Case, ...], seconds: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Median seconds of every case over as many rounds as fit the time, each of the slowest rank."""
    buffer = np.zeros(max(case.nbytes for case in cases) // ITEMSIZE, np.float32)
    buffer.fill(0)  # memory of its own: unwritten pages of zeros are all the same one
    repeats, rounds = [1] * len(cases), []
    start = perf_counter()
    while True:
        elapsed = np.zeros(len(cases) + 1)
        for index in generator.permutation(len(cases)):
            case = cases[index]
            elapsed[index] = _turn(group, case.operation, buffer[: case.nbytes // ITEMSIZE], repeats[index])
        elapsed[-1] = perf_counter() - start
        group.allreduce(elapsed, "max")  # so that all ranks agree when to stop
        rounds.append(elapsed[:-1])
        if len(rounds) == 1:
            repeats = [_repeats(case, time) for case, time in zip(cases, elapsed.tolist(), strict=False)]
        if len(rounds) > LEAST_ROUNDS and elapsed[-1] >= seconds:
            # The first round opened connections and touched memory.
            result: NDArray[np.float64] = np.median(rounds[1:], axis=0)
            return result


def _repeats(case: Case, seconds: float) -> int:
    # A root could begin its next broadcast before the others have ended the last.
    return 1 if case.operation == "broadcast" else min(MOST_REPEATS, ceil(BATCH_SECONDS / seconds))


def _turn(group: Group, operation: str, array: Array, repeats: int) -> float:
    action = ACTIONS[operation]
    group.barrier()
    start = perf_counter()
    for _ in range(repeats):
        action(group, array)
    elapsed = (perf_counter() - start) / repeats
    return elapsed / 2 if operation == "send" else elapsed


def _there_and_back(group: Group, array: Array) -> None:
    """Send a message to the other rank and have it sent back."""
    if group.rank == 0:
        group.isend(array, 1, TAG).wait()
        group.ireceive(array, 1, TAG).wait()
    else:
        group.ireceive(array, 0, TAG).wait()
        group.isend(array, 0, TAG).wait()


def _reduce_in_flight(group: Group, array: Array) -> None:
    """All-reduce in the pieces, and as many of them at a time, in which gradients travel during a backward pass."""
    requests: deque[Request] = deque()
    for piece in pieces(array, PIECE_BYTES):
        if len(requests) == IN_FLIGHT:
            requests.popleft().wait()
        requests.append(group.iallreduce(piece))
    while requests:
        requests.popleft().wait()


ACTIONS: Mapping[str, Callable[[Group, Array], Any]] = MappingProxyType(
    {
        "send": _there_and_back,
        "allreduce": Group.allreduce,
        "iallreduce": _reduce_in_flight,
        "allgather": Group.allgather_rows,
        "broadcast": Group.broadcast,
        "barrier": lambda group, array: group.barrier(),
    }
)


def _nodes_of_ranks(grid: ProcessGrid) -> list[int]:
    """Node of every rank of the grid: the position of the node's first rank."""
    first = np.array([grid.rank], np.int64)
    grid.node_group.broadcast(first)
    nodes = np.zeros(grid.size, np.int64)
    nodes[grid.rank] = first[0]
    grid.world.allgather_rows(nodes)
    return nodes.tolist()
