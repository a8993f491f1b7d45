"""Messages between stages: their routes, and arrival whole and in order."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.kernels import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.point_to_point import (
    ChannelBuffers,
    Receiver,
    Sender,
    StagePosition,
    pieces_received,
    pieces_sent,
)
from hybridnn.pipeline.schedules.instructions import SendActivations

FEATURES, CAPACITY = 5, 12
SIZES = [12, 7, 1, 0, 12, 3, 11]


def content(number: int, samples: int) -> np.ndarray:
    """A message's numbers: feature, sample and message can be read off each."""
    feature, sample = np.meshgrid(np.arange(FEATURES), np.arange(samples), indexing="ij")
    return 10000.0 * number + 100.0 * feature + sample


def exchange(grid: ProcessGrid, in_depth: int, out_depth: int, synchronous: bool, limit_sizes: list[int]) -> None:
    """Stage 0 sends messages of all sizes to stage 1, which checks its columns of each."""
    here = StagePosition(grid.pipeline_rank, grid.batch_rank, grid.model_rank)
    messages = [(SendActivations(number), samples) for number, samples in enumerate(limit_sizes)]
    if grid.pipeline_rank == 0:
        routes = partial(pieces_sent, grid.stages, here, 1)
        channel = ChannelBuffers(4, routes, FEATURES, CAPACITY, out_depth)
        sender = Sender(grid, NUMPY, channel, "float64", synchronous=synchronous)
        for number, (instruction, samples) in enumerate(messages):
            mine = np.ascontiguousarray(content(number, samples)[:, block_slice(samples, grid.batch, grid.batch_rank)])
            sender.pack(mine, samples)
            mine[...] = -1  # the sender owns a copy
            sender.send(instruction)
        sender.finish()
        return
    routes = partial(pieces_received, grid.stages, here, 0)
    receiver = Receiver(grid, NUMPY, ChannelBuffers(4, routes, FEATURES, CAPACITY, in_depth), "float64")
    receiver.begin(messages)
    taken = []
    for _, samples in messages:
        part = block_slice(samples, grid.batch, grid.batch_rank)
        taken.append(np.full((FEATURES, part.stop - part.start), np.nan))
        receiver.receive(taken[-1])
    for number, (_, samples) in enumerate(messages):  # after the last: nothing was written over later
        expected = content(number, samples)[:, block_slice(samples, grid.batch, grid.batch_rank)]
        np.testing.assert_array_equal(taken[number], expected)


@pytest.mark.in_process(ranks=[2, 4])
def test_messages_arrive_whole_and_in_order(comm: MPI.Intracomm) -> None:
    splits = [[(1, 1), (comm.size - 1, 1)], [(comm.size - 1, 1), (1, 1)], [(1, 1), (1, comm.size - 1)]]
    for stages in [*splits, *([[(2, 1), (1, 2)], [(1, 2), (2, 1)]] if comm.size == 4 else [])]:
        for message_limit in (2**30, 64):
            grid = ProcessGrid(comm, stages=stages, message_limit=message_limit)
            for in_depth, out_depth, synchronous in ((1, 1, False), (2, 2, False), (3, 1, False), (2, 2, True)):
                exchange(grid, in_depth, out_depth, synchronous, SIZES)


@pytest.mark.in_process(ranks=[2])
def test_a_run_can_be_repeated_with_other_sizes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=1)
    for sizes in ([3, 3], [12], [1, 2, 3, 4, 5, 6]):
        exchange(grid, 2, 2, False, sizes)


# -- routes ------------------------------------------------------------------------------------------------------------


WIDTHS = st.tuples(st.integers(1, 5), st.integers(1, 4))


def block_of(samples: int, parts: int, part: int) -> list[int]:
    """The samples of a part, dealt one by one: the first parts get one more."""
    sizes = [len(range(other, samples, parts)) for other in range(parts)]
    first = sum(sizes[:part])
    return list(range(first, first + sizes[part]))


def ranks_of(stage: int, width: tuple[int, int]) -> list[StagePosition]:
    return [StagePosition(stage, batch, model) for batch in range(width[0]) for model in range(width[1])]


@given(WIDTHS, WIDTHS, st.integers(0, 23))
def test_every_receiver_gets_each_of_its_samples_once_from_a_rank_that_has_it(
    sending: tuple[int, int], receiving: tuple[int, int], samples: int
) -> None:
    widths = [sending, receiving]
    sent = Counter(
        (sender, piece.peer, block_of(samples, sending[0], sender.batch_rank)[column])
        for sender in ranks_of(0, sending)
        for piece in pieces_sent(widths, sender, 1, samples)
        for column in range(piece.start, piece.stop)
    )
    received = Counter(
        (piece.peer, receiver, block_of(samples, receiving[0], receiver.batch_rank)[column])
        for receiver in ranks_of(1, receiving)
        for piece in pieces_received(widths, receiver, 0, samples)
        for column in range(piece.start, piece.stop)
    )
    assert sent == received
    for receiver in ranks_of(1, receiving):
        got = sorted(sample for _, to, sample in received.elements() if to == receiver)
        assert got == block_of(samples, receiving[0], receiver.batch_rank)


@given(WIDTHS, st.integers(1, 23))
def test_stages_of_equal_width_send_whole_blocks_straight_on(width: tuple[int, int], samples: int) -> None:
    for place in ranks_of(0, width):
        pieces = pieces_sent([width, width], place, 1, samples)
        own = len(block_of(samples, width[0], place.batch_rank))
        assert [(piece.peer, piece.start, piece.stop) for piece in pieces] == (
            [(place._replace(stage=1), 0, own)] if own else []
        )
