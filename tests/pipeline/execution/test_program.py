"""Programs of a rank, whose repeating part is any number of minibatches, and the messages between stages."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hybridnn.comm.blocks import block_slice
from hybridnn.nn.kernels import NUMPY
from hybridnn.parallel.grid import ProcessGrid
from hybridnn.pipeline.execution.point_to_point import Receiver, Sender, StagePosition, pieces_received, pieces_sent
from hybridnn.pipeline.schedules.instructions import Instruction, SendActivations, Update
from hybridnn.pipeline.schedules.methods import METHODS, forward_only, make_schedule
from hybridnn.pipeline.schedules.program import StageProgram, make_program
from hybridnn.pipeline.schedules.schedule import Schedule

LONG = 101


@cache
def makers(stages: int) -> dict[str, Callable[[int], Schedule]]:
    """Schedules of many minibatches, from their number."""
    found: dict[str, Callable[[int], Schedule]] = {}
    for name, method in METHODS.items():
        if not method.exact:
            least = 1 + stages * method.microbatches_per_stage
            for microbatches in [least, 2 * stages][: 1 + method.cuts_minibatches]:
                size = {"stages": stages, "microbatches": microbatches}
                called = name + ", more microbatches" * (microbatches > least)
                found[called] = lambda count, name=name, size=size: make_schedule(name, minibatches=count, **size)  # type: ignore[misc]
    found["evaluation"] = partial(forward_only, stages)
    found["evaluation with chunks"] = lambda count: forward_only(stages, count, 2)
    return {name: cache(make) for name, make in found.items()}


def walked(program: StageProgram, minibatches: int) -> list[Instruction]:
    items = ((program.order[place], shift) for place, shift in program.walk(minibatches))
    return [item.of_minibatch(item.minibatch + shift) for item, shift in items]


@pytest.mark.parametrize("name", makers(2))
def test_program_of_any_number_of_minibatches_is_their_schedule(name: str) -> None:
    """Its length does not grow with their number."""
    for stages in (2, 3, 5):
        make = makers(stages)[name]
        longest = max(map(len, make(8 * stages).orders))
        numbers = (1, stages + 1, 6 * stages, 6 * stages + 1, 7 * stages - 1, 8 * stages, LONG)
        for minibatches, stage in product(numbers, range(stages)):
            program = make_program(make, stage, stages, minibatches)
            assert walked(program, minibatches) == list(make(minibatches).orders[stage])
            assert len(program.order) <= longest


@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_repetitions_use_the_buffers_and_versions_of_the_whole_list(name: str) -> None:
    """Every read of an older version finds it among those kept, and no buffer is overwritten before its last use."""
    for stages, stage in ((2, 0), (2, 1), (3, 1), *((5, stage) for stage in range(5))):
        program = make_program(makers(stages)[name], stage, stages, LONG)
        held: list[int] = []  # ages of older versions
        owner: dict[tuple[int, int], tuple[int, int]] = {}
        for place, shift in program.walk(LONG):
            item = program.order[place]
            minibatch = item.minibatch + shift, item.microbatch
            if isinstance(item, Update):
                held = [age + 1 for age in [0, *held] if age + 1 in program.kept[place]]
            elif place in program.reads:
                age, ahead = program.reads[place]
                assert ahead or age == 0 or age in held
            slot = program.memory.input_slots.get((item.minibatch, item.microbatch, item.chunk))
            if slot is not None and item.name == "forward":
                owner[item.chunk, slot] = minibatch
            elif slot is not None and item.name in ("backward", "recompute"):
                assert owner[item.chunk, slot] == minibatch


@pytest.mark.parametrize("name", [name for name in makers(2) if "evaluation" not in name])
def test_mean_staleness_is_that_of_all_minibatches_counted_one_by_one(name: str) -> None:
    """Walked through the whole list: versions read by forward passes, and those that gradients are applied to."""
    for stages, minibatches in product((2, 5), (1, 2, 5, 31, LONG)):
        make = makers(stages)[name]
        full = make(minibatches)
        for stage in range(stages):
            read, staleness, updates = {}, [], 0
            for item in full.orders[stage]:
                if item.name == "forward":
                    version = full.weights_read(stage, item)
                    read[item.minibatch] = version.version
                elif item.name == "update":
                    staleness.append(updates - read[item.minibatch])
                    updates += 1
            assert len(staleness) == minibatches
            found = full.policy.mean_staleness(stage, stages, minibatches)
            assert found == pytest.approx(sum(staleness) / minibatches, rel=1e-14)


def test_schedule_of_a_fixed_number_of_minibatches_runs_only_those() -> None:
    program = StageProgram(make_schedule("1f1b", stages=2, minibatches=1, microbatches=2), 0)
    with pytest.raises(ValueError, match="1 minibatches cannot run 2"):
        list(program.walk(2))


FEATURES, CAPACITY = 5, 12
SIZES = [12, 7, 1, 0, 12, 3, 11]


def content(number: int, samples: int) -> np.ndarray:
    """A message's numbers: feature, sample and message can be read off each."""
    feature, sample = np.meshgrid(np.arange(FEATURES), np.arange(samples), indexing="ij")
    return 10000.0 * number + 100.0 * feature + sample


def exchange(grid: ProcessGrid, in_depth: int, out_depth: int, limit_sizes: list[int]) -> None:
    """Stage 0 sends messages of all sizes to stage 1, which checks its columns of each."""
    here = StagePosition(grid.pipeline_rank, grid.batch_rank, grid.model_rank)
    messages = [(SendActivations(number), samples) for number, samples in enumerate(limit_sizes)]
    if grid.pipeline_rank == 0:
        routes = partial(pieces_sent, grid.stages, here, 1)
        sender = Sender(grid, NUMPY, "float64", 4, routes, FEATURES, CAPACITY, out_depth)
        for number, (instruction, samples) in enumerate(messages):
            mine = np.ascontiguousarray(content(number, samples)[:, block_slice(samples, grid.batch, grid.batch_rank)])
            sender.pack(mine, samples)
            mine[...] = -1  # the sender owns a copy
            sender.send(instruction)
        sender.finish()
        return
    routes = partial(pieces_received, grid.stages, here, 0)
    receiver = Receiver(grid, NUMPY, "float64", 4, routes, FEATURES, CAPACITY, in_depth)
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
            for in_depth, out_depth in ((1, 1), (2, 2), (3, 1)):
                exchange(grid, in_depth, out_depth, SIZES)


@pytest.mark.in_process(ranks=[2])
def test_a_run_can_be_repeated_with_other_sizes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2, batch=1)
    for sizes in ([3, 3], [12], [1, 2, 3, 4, 5, 6]):
        exchange(grid, 2, 2, sizes)


WIDTHS = st.tuples(st.integers(1, 5), st.integers(1, 4))


def block_of(samples: int, parts: int, part: int) -> list[int]:
    """The samples of a part, dealt one by one: the first parts get one more."""
    sizes = [len(range(other, samples, parts)) for other in range(parts)]
    first = sum(sizes[:part])
    return list(range(first, first + sizes[part]))


def ranks_of(stage: int, width: tuple[int, int]) -> list[StagePosition]:
    return [StagePosition(stage, batch, model) for batch in range(width[0]) for model in range(width[1])]


@given(WIDTHS, WIDTHS, st.integers(0, 23))
def test_every_receiver_gets_each_of_its_samples_once_from_a_rank_that_has_it(sending, receiving, samples) -> None:
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
