"""Trace files: their content by hand and of whole runs, what is read back, and damaged files."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, pairwise, product
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid
from hybridnn.comm.recorder import Recorder
from hybridnn.errors import HybridnnError
from hybridnn.pipeline.execution.point_to_point import StagePosition
from hybridnn.pipeline.layout import Layout
from hybridnn.pipeline.schedules.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    ReceiveActivations,
    ReceiveGradients,
    Recompute,
    SendActivations,
    SendGradients,
    Update,
    WeightGradient,
)
from hybridnn.pipeline.schedules.methods import make_schedule
from hybridnn.pipeline.schedules.schedule import Schedule
from hybridnn.runs.trace_breakdown import break_down
from hybridnn.runs.trace_file import Epoch, RankTrace, Trace, read_trace, write_trace
from reference.cases import data
from reference.pipeline_cases import PipelineCase, pipelined_trainer
from reference.ranks import on_nodes, this_rank

ONE_RANK = Layout(((1, 1),), (1,))


def refuse(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def layout_on(grid: ProcessGrid) -> Layout:
    return Layout.uniform(grid.stages, len(grid.stages))


def entries(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(content["traceEvents"], list)
    return content["traceEvents"]


@pytest.mark.in_process(ranks=[3])
def test_ranks_are_named_and_described(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    path = mpi_tmp_path / "trace.json"
    grid = ProcessGrid(comm, stages=[(1, 2), (1, 1)])
    grid.world.barrier()
    write_trace(path if grid.rank == 0 else None, grid, layout_on(grid))
    grid.world.barrier()
    names = {entry["tid"]: entry["args"]["name"] for entry in entries(path) if entry["name"] == "thread_name"}
    assert names == {
        0: "rank 0: stage 0, batch 0, model 0",
        1: "rank 1: stage 0, batch 0, model 1",
        2: "rank 2: stage 1, batch 0, model 0",
    }
    about = json.loads(path.read_text())["otherData"]
    assert (about["layout"]["stages"], about["ranks"], about["nodes"]) == ([[1, 2], [1, 1]], 3, 1)
    # The writing itself is not in the trace.
    assert [entry["name"] for entry in entries(path) if entry["ph"] == "X"] == ["barrier"] * 3


@pytest.mark.in_process(ranks=[2])
def test_clocks_of_nodes_are_put_together(comm, mpi_tmp_path, monkeypatch) -> None:
    # The second rank's clock is 1000 s fast, and it often comes late from a barrier.
    late = cycle((0, 50, 0, 0, 80))
    for module in ("comm.group", "comm.recorder"):
        monkeypatch.setattr(f"hybridnn.{module}.perf_counter", lambda: perf_counter() + 1000 * this_rank())
    monkeypatch.setattr(
        "hybridnn.runs.trace_file.perf_counter", lambda: perf_counter() + (1000 + next(late)) * this_rank()
    )
    path = mpi_tmp_path / "trace.json"
    for nodes in (1, 2):
        grid = ProcessGrid(on_nodes(comm, range(nodes) if nodes == 2 else (0, 0)))
        grid.world.barrier()
        write_trace(path if grid.rank == 0 else None, grid, layout_on(grid))
        grid.world.barrier()
        one, other = (lane.events[0].start for lane in read_trace(path).ranks)
        assert other - one == pytest.approx(1000 if nodes == 1 else 0, abs=5)


@pytest.mark.in_process(ranks=[2])
def test_a_file_that_cannot_be_written_is_every_ranks_error(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    grid = ProcessGrid(comm)
    if grid.rank == 0:
        (mpi_tmp_path / "file").touch()
    with pytest.raises(HybridnnError, match=r"file/trace\.json cannot be written: File exists"):
        write_trace(mpi_tmp_path / "file" / "trace.json" if grid.rank == 0 else None, grid, layout_on(grid))


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder()
    start = 5.0
    recorder.end_compute("forward", start, Forward(3, 1, 2))
    recorder.end_communication("send", "world", start, 80, about=SendActivations(3, 1, 2))
    recorder.end_communication("allreduce", "batch", start, 16)
    recorder.end_compute("weight gradient", start, WeightGradient(3, -1))
    recorder.end_phase("training", start, 7)
    write_trace(tmp_path / "trace.json", ProcessGrid(recorder=recorder), ONE_RANK)
    trace = read_trace(tmp_path)
    assert (trace.layout, trace.complete_since) == (ONE_RANK, 0)
    (lane,) = trace.ranks
    assert lane.position == StagePosition(0, 0, 0)
    # All begin together, and the longest is the outermost.
    for found, expected in zip(lane.events, recorder.events[::-1], strict=True):
        assert found._replace(start=0, stop=0) == expected._replace(start=0, stop=0)
        assert (found.start, found.stop) == (0, pytest.approx(expected.stop - start, abs=0.6e-9))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_of_events_of_one_span_the_outer_one_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridnn.comm.recorder.perf_counter", lambda: 6.0)
    recorder = Recorder()
    write_trace(tmp_path / "trace.json", ProcessGrid(recorder=recorder), ONE_RANK)
    assert read_trace(tmp_path) == Trace(ONE_RANK, (RankTrace(StagePosition(0, 0, 0), ()),))  # nothing recorded
    recorder.end_communication("broadcast", "world", 5.0, 8)
    recorder.end_compute("update", 5.0, Update(0))
    write_trace(tmp_path / "trace.json", ProcessGrid(recorder=recorder), ONE_RANK)
    assert [event.name for event in read_trace(tmp_path).ranks[0].events] == ["update", "broadcast"]


def test_every_instruction_has_its_own_name() -> None:
    # The reader finds the instruction of an event by its name.
    names = [kind.name for kind in Instruction.__subclasses__() if kind.__module__ == Instruction.__module__]
    assert len(set(names)) == len(names) == 13


MINIBATCHES = 4
"""Of an epoch of `MOMENTUM`."""

COMPUTED = (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)
SENT = (SendActivations, SendGradients)
RECEIVED = (ReceiveActivations, ReceiveGradients)


def traced(it: PipelineCase, grid: ProcessGrid, path: Path) -> Trace:
    """What two epochs, each with an evaluation, leave in the file."""
    trainer = pipelined_trainer(it, grid)
    for _ in range(2):
        trainer.fit(*data(it.case), epochs=1, validation=data(it.case, "test"))
    write_trace(path if grid.rank == 0 else None, grid, trainer.layout)
    grid.world.barrier()
    return read_trace(path)


def big_grid(comm: MPI.Intracomm, **axes: int) -> ProcessGrid:
    return ProcessGrid(comm, recorder=Recorder(100_000), **axes)


def check_instructions(epoch: Epoch, schedule: Schedule) -> None:
    """Every instruction of the schedule once on every rank, in its order; receives where their content is used.

    Minibatches are numbered through the epochs.
    """
    first = MINIBATCHES * (epoch.number - 1)
    for lane in epoch.ranks:
        order = [item.of_minibatch(first + item.minibatch) for item in schedule.orders[lane.position.stage]]
        events = [event for event in lane.events if isinstance(event.about, Instruction) and event.name != "loss"]
        done = [event.about for event in events if event.kind == "compute" or event.name == "send"]
        assert done == [item for item in order if isinstance(item, COMPUTED + SENT)]
        assert all(event.name == event.about.name for event in events if event.kind == "compute")
        for name, kinds in (("send.wait", SENT), ("receive", RECEIVED), ("receive.wait", RECEIVED)):
            for kind, chunk in product(kinds, range(schedule.chunks)):
                about = [event.about for event in events if event.name == name]
                assert of_channel(about, kind, chunk) == of_channel(order, kind, chunk), name


def of_channel(items: Iterable[object], kind: type[Instruction], chunk: int) -> list[Instruction]:
    """Messages of one kind of one chunk: those of different channels may overtake each other."""
    return [item for item in items if isinstance(item, kind) and item.chunk == chunk]


def check_lanes(path: Path, ranks: int) -> None:
    """Complete events that begin one after the other and nest, as the format asks for."""
    complete = [entry for entry in json.loads(path.read_text())["traceEvents"] if entry["ph"] == "X"]
    assert min(entry["ts"] for entry in complete) == 0
    for rank in range(ranks):
        lane = [entry for entry in complete if entry["tid"] == rank]
        spans = [(round(entry["ts"] * 1000), round((entry["ts"] + entry["dur"]) * 1000)) for entry in lane]
        assert len(spans) > 20
        assert all(one[0] <= other[0] for one, other in pairwise(spans))
        around: list[int] = []
        for start, stop in spans:
            while around and around[-1] <= start:
                around.pop()
            assert start <= stop
            assert not around or stop <= around[-1]
            around.append(stop)


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("method", ["pipedream", "fr"])
def test_an_epoch_of_a_pipeline_without_flush_is_traced(comm: MPI.Intracomm, mpi_tmp_path: Path, method: str) -> None:
    for axes in ({"pipeline": comm.size}, {"pipeline": 2, "batch": comm.size // 2}):
        grid = big_grid(comm, **axes)
        trace = traced(PipelineCase(method), grid, mpi_tmp_path / "trace.json")
        assert trace.epochs == (1, 2)
        assert (trace.layout.method, trace.layout.stages) == (method, grid.stages)
        schedule = make_schedule(method, stages=grid.pipeline, minibatches=MINIBATCHES)
        for number in trace.epochs:
            epoch = trace.epoch(number)
            assert epoch.is_complete
            assert epoch.minibatches == range(MINIBATCHES * (number - 1), MINIBATCHES * number)
            check_instructions(epoch, schedule)
        check_lanes(mpi_tmp_path / "trace.json", comm.size)


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize(
    ("it", "options"),
    [
        (PipelineCase("gpipe", microbatches=2), {"weight_grad": "merged"}),
        (PipelineCase("interleaved", microbatches=4, chunks=2, weight_grad="per-microbatch"), {}),
        (PipelineCase("zb-h1", microbatches=3), {}),
        (PipelineCase("sequential"), {"weight_grad": "merged"}),
    ],
    ids=lambda it: it.method if isinstance(it, PipelineCase) else "",
)
def test_an_epoch_of_an_exact_method_is_traced(comm, mpi_tmp_path, it, options) -> None:
    trace = traced(it, big_grid(comm, pipeline=2), mpi_tmp_path / "trace.json")
    counts = {"stages": 2, "microbatches": it.microbatches or 1, "chunks": it.chunks}
    one = make_schedule(it.method, minibatches=1, **counts, **options)
    # Every minibatch runs the schedule of one.
    orders = tuple(
        tuple(replace(item, minibatch=number) for number in range(MINIBATCHES) for item in order)
        for order in one.orders
    )
    assert trace.epochs == (1, 2)
    for number in trace.epochs:
        check_instructions(trace.epoch(number), replace(one, orders=orders))
    check_lanes(mpi_tmp_path / "trace.json", 2)


@pytest.mark.in_process(ranks=[2])
def test_an_epoch_whose_beginning_was_dropped(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    it, path = PipelineCase("1f1b", microbatches=2), mpi_tmp_path / "trace.json"
    whole = traced(it, big_grid(comm, pipeline=2), path)
    comm.Barrier()  # before the file is written anew
    events = [len(lane.events) for lane in whole.epoch(2).ranks]
    # The evaluation after the epoch takes room too.
    later = sum(event.start > whole.epoch(2).start for event in whole.ranks[comm.rank].events)
    room = later - events[comm.rank] // 2 + 40 * comm.rank
    part = traced(it, ProcessGrid(comm, pipeline=2, recorder=Recorder(room)), path)
    assert part.epochs == (2,)
    epoch = part.epoch(2)
    assert not epoch.is_complete
    assert 0 < sum(len(lane.events) for lane in epoch.ranks) < sum(events)
    updates = [
        [event.about.minibatch for event in lane.events if isinstance(event.about, Update)] for lane in epoch.ranks
    ]
    assert max(updates[0]) == max(updates[1])  # ranks that dropped different numbers of minibatches count alike
    assert [item.span for item in break_down(epoch)] == pytest.approx([epoch.stop - epoch.start] * 2)
