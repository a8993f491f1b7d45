"""Measurement of communication: messages, collectives and overlap, through the methods of training.

All sizes of a group take turns in random order, round after round, so that a disturbance affects few turns of each; the
median over the rounds counts. Ranks outside the group sleep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, exp, log
from time import perf_counter, sleep
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.blocks import pieces
from hybridnn.comm.group import Group, Request
from hybridnn.comm.transport import HOST_BUCKETS
from hybridnn.parallel.gradient_reduction import GradientReducer
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.parallel.nodes import nodes_of_ranks

Array = NDArray[np.float32]

SIZES = {"send": 42, "allreduce": 42, "allgather": 42, "iallreduce": 21, "broadcast": 21}
"""Sizes per operation; multiples of three, so that neither the smallest nor the largest is held out."""

LEAST_BYTES, MOST_BYTES = 8, 1 << 26
ITEMSIZE = 4  # bytes of an element of float32

LEAST_RANGE = 1 << 18  # the largest size is at least this

LARGEST_SHARE = 1 / 80
"""Largest size of a measurement, relative to the bytes that could be reduced one after another in its time: all sizes
and operations together take about ten times as long as the largest, and every one should have several turns."""

TURN_SECONDS = 2e-4
"""Short operations are repeated for about this long, against the noise of the clock and of the barrier before them."""
MOST_REPEATS = 20
LEAST_ROUNDS = 3
TAG = 1
POLL_SECONDS = 1e-3


def sleeping_barrier(group: Group) -> None:
    """Barrier whose waiting ranks sleep, so that they do not disturb measurements of others."""
    request = group.iallreduce(np.zeros(1))
    while not request.test():
        sleep(POLL_SECONDS)


def before(end: float, group: Group) -> bool:
    """Whether it is earlier than `end` by every rank's clock, so that all stop after the same round; also a barrier."""
    return not _slowest(group, float(perf_counter() >= end))[0]


# -- groups, operations and sizes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredGroup:
    """Positions in the grid that communicate while the others sleep; most of them on a node, if they span nodes."""

    members: tuple[int, ...]
    spans_nodes: bool
    ranks_per_node: int = 1


@dataclass(frozen=True)
class CollectiveCase:
    """One operation at one size, in bytes of the message or of the full vector.

    The operation is ``"send"`` (one way), a collective, or ``"iallreduce"``: a non-blocking all-reduce in pieces. Sizes
    that are held out of the fit measure its error.
    """

    operation: str
    nbytes: int
    held_out: bool = False


@dataclass(frozen=True)
class TimedCase:
    """A `CollectiveCase` in a group, with the median seconds of the slowest rank."""

    operation: str
    ranks: int
    spans_nodes: bool
    nbytes: int
    seconds: float
    held_out: bool
    ranks_per_node: int = 1


def measured_groups(nodes: Sequence[int]) -> tuple[MeasuredGroup, ...]:
    """Groups to measure: of 2, 3, 4, 8, 16, … ranks and of all, inside a node and across nodes.

    Inside a node they are the first ranks of the fullest node. Across nodes they have one rank on each, so that all
    messages leave their node; the last group has all ranks of the job. `nodes` has the node of every rank of the grid.
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


def _group_sizes(most: int) -> list[int]:
    powers = {2**exponent for exponent in range(1, most.bit_length())}
    return sorted(size for size in powers | {3, most} if 2 <= size <= most)


def plan_cases(ranks: int, most: int, generator: np.random.Generator) -> tuple[CollectiveCase, ...]:
    """Operations and sizes to measure in a group of `ranks`, up to `most` bytes.

    Sizes are random, one from each of equal parts of a logarithmic scale. The second of every three is held out.
    Messages are measured in groups of two. Every other all-gather has blocks of equal size.
    """
    cases = []
    for operation, count in SIZES.items():
        if operation == "send" and ranks > 2:
            continue
        positions = (np.arange(count) + generator.uniform(size=count)) / count
        elements = 0
        for index, position in enumerate(positions):
            # More than the last, so that no size is both fitted and held out.
            elements = max(round(LEAST_BYTES * exp(position * log(most / LEAST_BYTES)) / ITEMSIZE), elements + 1)
            if operation == "allgather" and index % 2:
                elements += -elements % ranks
            cases.append(CollectiveCase(operation, ITEMSIZE * elements, held_out=index % 3 == 1))
    return (*cases, CollectiveCase("barrier", 0))


# -- messages and collectives ----------------------------------------------------------------------------------------


def measure_communication(
    grid: ProcessGrid, seconds: float, seed: int, report: Callable[[str], None] = lambda text: None
) -> tuple[TimedCase, ...]:
    """Measure every group of `measured_groups` in turn, in so many seconds for all groups together.

    Collective over the grid, with the same result on every rank; with one rank, nothing is measured.
    """
    samples: list[TimedCase] = []
    groups = measured_groups(_nodes_of_ranks(grid))
    for index, measured in enumerate(groups):
        group_seconds = seconds / len(groups)
        generator = np.random.default_rng([seed, index])  # the same on every rank
        ranks, spans = len(measured.members), measured.spans_nodes
        is_member = grid.rank in measured.members
        group = grid.world.split(int(is_member), "calibration", measured.members)
        where = "on several nodes" if spans else "of a node"
        report(f"messages and collectives among {ranks} ranks {where}")
        trial = np.array([_seconds_of_trial(group) if is_member else 0.0])
        sleeping_barrier(grid.world)
        grid.world.allreduce(trial, "max")
        cases = plan_cases(ranks, largest_size(group_seconds, float(trial[0])), generator)
        medians = np.zeros(len(cases))
        if is_member:
            medians[:] = _time_cases(group, cases, group_seconds, generator)
        sleeping_barrier(grid.world)
        grid.world.allreduce(medians, "max")
        samples += [
            TimedCase(case.operation, ranks, spans, case.nbytes, median, case.held_out, measured.ranks_per_node)
            for case, median in zip(cases, medians.tolist(), strict=True)
        ]
    return tuple(samples)


def largest_size(seconds: float, trial_seconds: float) -> int:
    """Largest size to measure in so many seconds, if an all-reduce of `LEAST_RANGE` bytes takes `trial_seconds`."""
    reduced = seconds / trial_seconds * LEAST_RANGE
    return min(MOST_BYTES, max(LEAST_RANGE, int(LARGEST_SHARE * reduced)))


def _seconds_of_trial(group: Group) -> float:
    """Seconds of an all-reduce of `LEAST_RANGE` bytes, after one that opened connections."""
    array = np.zeros(LEAST_RANGE // ITEMSIZE, np.float32)
    return min(_time_turn(group, "allreduce", array, 1) for _ in range(3))


def _nodes_of_ranks(grid: ProcessGrid) -> list[int]:
    """Node of every rank of the grid, numbered by the node's first rank."""
    return nodes_of_ranks(grid.world.comm) if grid.size > 1 else [0]


def _time_cases(
    group: Group, cases: tuple[CollectiveCase, ...], seconds: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Median seconds of every case on the slowest rank, over as many rounds as fit the time."""
    buffer = np.zeros(max(case.nbytes for case in cases) // ITEMSIZE, np.float32)
    buffer.fill(0)  # touches every page: unwritten pages of zeros share memory
    repeats, end = [1] * len(cases), perf_counter() + seconds
    rounds: list[NDArray[np.float64]] = []
    while len(rounds) <= LEAST_ROUNDS or before(end, group):
        elapsed = np.zeros(len(cases))
        for index in generator.permutation(len(cases)):
            case = cases[index]
            elapsed[index] = _time_turn(group, case.operation, buffer[: case.nbytes // ITEMSIZE], repeats[index])
        group.allreduce(elapsed, "max")
        rounds.append(elapsed)
        if len(rounds) == 1:
            # A root could begin its next broadcast before the others have ended the last.
            repeats = [
                1 if case.operation == "broadcast" else min(MOST_REPEATS, ceil(TURN_SECONDS / time))
                for case, time in zip(cases, elapsed.tolist(), strict=True)
            ]
    # The first round opened connections and touched memory.
    result: NDArray[np.float64] = np.median(rounds[1:], axis=0)
    return result


def _time_turn(group: Group, operation: str, array: Array, repeats: int) -> float:
    action = ACTIONS[operation]
    group.barrier()
    start = perf_counter()
    for _ in range(repeats):
        action(group, array)
    elapsed = (perf_counter() - start) / repeats
    return elapsed / 2 if operation == "send" else elapsed


def _ping_pong(group: Group, array: Array) -> None:
    if group.rank == 0:
        group.isend(array, 1, TAG).wait()
        group.ireceive(array, 1, TAG).wait()
    else:
        group.ireceive(array, 0, TAG).wait()
        group.isend(array, 0, TAG).wait()


def _reduce_in_pieces(group: Group, array: Array) -> None:
    """Non-blocking all-reduce in the pieces of a gradient, with as many in flight as in a backward pass."""
    requests: deque[Request] = deque()
    for piece in pieces(array, HOST_BUCKETS.piece_bytes):
        if len(requests) == HOST_BUCKETS.in_flight:
            requests.popleft().wait()
        requests.append(group.iallreduce(piece))
    while requests:
        requests.popleft().wait()


ACTIONS: Mapping[str, Callable[[Group, Array], Any]] = MappingProxyType(
    {
        "send": _ping_pong,
        "allreduce": Group.allreduce,
        "iallreduce": _reduce_in_pieces,
        "allgather": Group.allgather_rows,
        "broadcast": Group.broadcast,
        "barrier": lambda group, array: group.barrier(),
    }
)


# -- overlap ---------------------------------------------------------------------------------------------------------

LAYERS = 16  # layers of the gradient for the overlap, with one bucket each
OVERHEAD_BYTES = tuple(1 << power for power in range(11, 19))  # 2 to 256 KiB, messages of pipelines
MESSAGES = 6  # in each direction, one after another
STAGE_LAYERS, STAGE_WIDTH, STAGE_SAMPLES = 8, 256, 64  # layers of a stage that computes between messages
WIDTH = 128  # rows and columns of the matrices; their product takes about a tenth of a millisecond


def measure_overlap(group: Group, seconds: float) -> tuple[float, float]:
    """All-reduce a gradient in buckets during matrix products that take about as long, as in a backward pass.

    Collective over a group of two ranks or more. The results are the fraction of the all-reduce's time that overlaps
    with the products, and the time of the products during it relative to their time alone, at least 1. If nothing
    overlaps and the all-reduce is slower than alone, the latter includes that, so that the total is right.
    """
    trial = _OverlapTrial(group)
    trial.time(computes=True, communicates=True)  # opens connections and touches memory
    (compute, _), (_, messages) = trial.time(computes=True), trial.time(communicates=True)
    compute, messages = _slowest(group, compute, messages)
    trial.products = max(1, round(messages / compute))  # which together take about as long as the all-reduce
    rounds: list[list[float]] = []
    end = perf_counter() + seconds
    while len(rounds) < LEAST_ROUNDS or before(end, group):
        (compute, _), (_, messages) = trial.time(computes=True), trial.time(communicates=True)
        rounds.append(_slowest(group, compute, messages, *trial.time(computes=True, communicates=True)))
    compute, messages, compute_overlapped, total = np.median(rounds, axis=0).tolist()
    # Each of the slowest rank: waiting for a rank that computes longer is no communication.
    hidden = 1 - (total - compute_overlapped) / messages
    slowed = compute_overlapped if hidden >= 0 else total - messages
    return min(max(hidden, 0.0), 1.0), max(slowed / compute, 1.0)


def measure_overhead(grid: ProcessGrid, seconds: float) -> list[tuple[int, float]]:
    """Send messages both ways between two nodes during matrix products that take longer than the messages.

    Collective over a grid on several nodes. The first ranks of the first two nodes measure, and the others sleep. The
    result, on every rank, has sizes in bytes, and the seconds that such a message takes from each of its ranks.
    """
    groups = measured_groups(_nodes_of_ranks(grid))
    pair = next(group for group in groups if group.spans_nodes and len(group.members) == 2)
    group = grid.world.split(int(grid.rank in pair.members), "calibration", pair.members)
    found = np.zeros(len(OVERHEAD_BYTES))
    if grid.rank in pair.members:
        found[:] = _OverheadTrial(group).measure(seconds)
    sleeping_barrier(grid.world)
    grid.world.allreduce(found, "max")
    return list(zip(OVERHEAD_BYTES, found.tolist(), strict=True))


def _slowest(group: Group, *times: float) -> list[float]:
    slowest = np.array(times)
    group.allreduce(slowest, "max")
    return [float(time) for time in slowest]


class _OverlapTrial:
    """A gradient of several layers, and matrix products to compute after each layer becomes ready."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._gradient = np.zeros(LAYERS * HOST_BUCKETS.bucket_bytes // ITEMSIZE, np.float32)
        self._ends = [(layer + 1) * HOST_BUCKETS.bucket_bytes // ITEMSIZE for layer in range(LAYERS)]
        generator = np.random.default_rng(0)
        self._left, self._right = generator.standard_normal((2, WIDTH, WIDTH), np.float32)
        self._product = np.empty_like(self._left)
        self.products = 1  # per layer

    def time(self, *, computes: bool = False, communicates: bool = False) -> tuple[float, float]:
        """Seconds of the products, and in total."""
        self._group.barrier()
        start = perf_counter()
        compute = 0.0
        reducer = GradientReducer(self._group, self._gradient, self._ends, overlap=True)
        for layer in reversed(range(LAYERS)):
            if communicates:
                reducer.ready(layer)
            if computes:
                begun = perf_counter()
                for _ in range(self.products):
                    np.matmul(self._left, self._right, out=self._product)
                compute += perf_counter() - begun
        if communicates:
            reducer.finish()
        return compute, perf_counter() - start


class _OverheadTrial:
    """Messages between the two ranks of a group, both of which compute after each, as the stages of a pipeline do."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sent, self._received = np.zeros((2, max(OVERHEAD_BYTES) // ITEMSIZE), np.float32)
        generator = np.random.default_rng(0)
        # Several layers, because between messages the passes of a stage leave little of what MPI uses in the caches.
        self._weights = cycle(generator.standard_normal((STAGE_LAYERS, STAGE_WIDTH, STAGE_WIDTH), np.float32))
        self._input = generator.standard_normal((STAGE_WIDTH, STAGE_SAMPLES), np.float32)
        self._output = np.empty_like(self._input)

    def measure(self, seconds: float) -> list[float]:
        """Seconds that a message of each size takes from a rank, the median over as many rounds as fit the time."""
        products = [self._products_during(nbytes) for nbytes in OVERHEAD_BYTES]
        rounds: list[list[list[float]]] = []
        end = perf_counter() + seconds
        while len(rounds) < LEAST_ROUNDS or before(end, self._group):
            rounds.append(
                [
                    [self._time(nbytes, count, communicates) for communicates in (True, False)]
                    for nbytes, count in zip(OVERHEAD_BYTES, products, strict=True)
                ]
            )
        with_messages, alone = np.median(rounds, axis=0).T
        # Each rank sends and receives.
        lost: list[float] = (np.maximum(with_messages - alone, 0.0) / (2 * MESSAGES)).tolist()
        return lost

    def _products_during(self, nbytes: int) -> int:
        """Number of products that take half as long again as a message."""
        array = self._sent[: nbytes // ITEMSIZE]
        message = min(_time_turn(self._group, "send", array, 1) for _ in range(LEAST_ROUNDS))
        product = min(self._time(nbytes, 1, communicates=False) for _ in range(LEAST_ROUNDS)) / MESSAGES
        return max(1, ceil(1.5 * _slowest(self._group, message)[0] / _slowest(self._group, product)[0]))

    def _time(self, nbytes: int, products: int, communicates: bool) -> float:
        group, elements = self._group, nbytes // ITEMSIZE
        requests = []
        group.barrier()
        start = perf_counter()
        for _ in range(MESSAGES):
            if communicates:
                requests.append(group.ireceive(self._received[:elements], 1 - group.rank, TAG))
                requests.append(group.isend(self._sent[:elements], 1 - group.rank, TAG))
            for _ in range(products):
                np.matmul(next(self._weights), self._input, out=self._output)
            # The last message but one, as a stage waits for a microbatch's input while the next one is on its way.
            while len(requests) > 2:
                requests.pop(0).wait()
        for request in requests:
            request.wait()
        return perf_counter() - start
