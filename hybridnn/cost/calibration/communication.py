"""Measuring messages and collectives, through the methods that training calls: Python and pieces are part of it.

All sizes of a group take turns in random order, round after round, so that a disturbance hits few turns of each; the
median over the rounds counts. Ranks that are not in the group sleep.

Measuring what an all-reduce during computation costs: how much of it hides, and how it slows the computation.
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

from hybridnn.comm.group import Group
from hybridnn.comm.partition import pieces
from hybridnn.comm.request import Request
from hybridnn.cost.calibration.samples import (
    ITEMSIZE,
    CollectiveCase,
    TimedCase,
    measured_groups,
    meet_asleep,
    plan_cases,
)
from hybridnn.parallel.gradient_reduction import BUCKET_BYTES, IN_FLIGHT, PIECE_BYTES, GradientReducer
from hybridnn.parallel.grid import ProcessGrid

BATCH_SECONDS = 2e-4
"""Short operations are repeated until a turn takes about so long, against the noise of the clock and of the barrier
before it."""
MOST_REPEATS = 20
LEAST_ROUNDS = 3
TAG = 1

Array = NDArray[np.float32]


def measure_communication(
    grid: ProcessGrid, seconds: float, seed: int, report: Callable[[str], None] = lambda text: None
) -> tuple[TimedCase, ...]:
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
    samples: list[TimedCase] = []
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
            TimedCase(
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
    group: Group, cases: tuple[CollectiveCase, ...], seconds: float, generator: np.random.Generator
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


def _repeats(case: CollectiveCase, seconds: float) -> int:
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


LAYERS = 16
"""Buckets of the measured gradient, of one layer each."""
WIDTH = 128
"""Rows and columns of the matrices; their product takes about a tenth of a millisecond."""
LEAST_OVERLAP_ROUNDS = 3


def measure_overlap(group: Group, seconds: float) -> tuple[float, float]:
    """All-reduce a gradient in buckets beside matrix products that take about as long, as a backward pass does.

    Parameters
    ----------
    group : Group
        Two ranks or more; collective.
    seconds : float
        Time for it.

    Returns
    -------
    hidden_fraction : float
        Part of the time of the all-reduce alone that passes behind the products when they are computed meanwhile.
    compute_slowdown : float
        Time of the products with messages under way over their time without, at least 1. Where nothing hides and the
        messages take even longer than alone, that is counted here, so that the whole time is met.
    """
    trial = _Trial(group)
    trial.balance(*_slowest(group, trial.alone()))
    start = perf_counter()
    rounds: list[list[float]] = []
    while len(rounds) < LEAST_OVERLAP_ROUNDS or rounds[-1][-1] < seconds:
        # The clock travels along, so that all ranks agree when to stop.
        rounds.append(_slowest(group, (*trial.alone(), *trial.together(), perf_counter() - start)))
    compute, messages, compute_beside, total, _ = np.median(rounds, axis=0).tolist()
    # Of the slowest rank each: what a rank waits because another computes for longer is not the messages'.
    hidden = 1 - (total - compute_beside) / messages
    slowed = compute_beside if hidden >= 0 else total - messages
    return min(max(hidden, 0.0), 1.0), max(slowed / compute, 1.0)


def _slowest(group: Group, times: tuple[float, ...]) -> list[float]:
    slowest = np.array(times)
    group.allreduce(slowest, "max")
    return [float(time) for time in slowest]


class _Trial:
    """A gradient of several layers, and products to compute after each becomes ready."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._gradient = np.zeros(LAYERS * BUCKET_BYTES // ITEMSIZE, np.float32)
        self._ends = [(layer + 1) * BUCKET_BYTES // ITEMSIZE for layer in range(LAYERS)]
        generator = np.random.default_rng(0)
        self._left, self._right = generator.standard_normal((2, WIDTH, WIDTH), np.float32)
        self._product = np.empty_like(self._left)
        self._products = 1
        self.alone()  # opens connections and touches memory

    def balance(self, compute_seconds: float, message_seconds: float) -> None:
        """Compute so many products for each layer that all together take about as long as the messages."""
        self._products = max(1, round(self._products * message_seconds / compute_seconds))

    def alone(self) -> tuple[float, float]:
        """Seconds of the products, and of the messages, one after the other."""
        self._group.barrier()
        start = perf_counter()
        for _ in range(LAYERS):
            self._compute()
        compute = perf_counter() - start
        self._group.barrier()
        start = perf_counter()
        reducer = self._reducer()
        for layer in reversed(range(LAYERS)):
            reducer.ready(layer)
        reducer.finish()
        return compute, perf_counter() - start

    def together(self) -> tuple[float, float]:
        """Seconds in the products, and in all, with messages under way."""
        self._group.barrier()
        start = perf_counter()
        compute = 0.0
        reducer = self._reducer()
        for layer in reversed(range(LAYERS)):
            reducer.ready(layer)
            begun = perf_counter()
            self._compute()
            compute += perf_counter() - begun
        reducer.finish()
        return compute, perf_counter() - start

    def _reducer(self) -> GradientReducer:
        return GradientReducer(self._group, self._gradient, self._ends, overlap=True)

    def _compute(self) -> None:
        for _ in range(self._products):
            np.matmul(self._left, self._right, out=self._product)
