from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn import ProcessGrid
from hybridnn.comm.recorder import Event, Recorder
from hybridnn.errors import DataError, EnvironmentProblem
from hybridnn.pipeline.breakdown import break_down
from hybridnn.pipeline.instructions import (
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
from hybridnn.pipeline.methods import make_schedule
from hybridnn.pipeline.recorded import Epoch, Lane, Trace
from hybridnn.pipeline.routes import Place
from hybridnn.training.trace_file import read_trace, write_trace
from reference.cases import data
from reference.pipeline_cases import MOMENTUM, PipelineCase, pipelined_trainer
from reference.traces import communication, compute, file_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.pipeline.schedule import Schedule

MINIBATCHES = 4
"""Of an epoch of `MOMENTUM`."""

COMPUTED = (Forward, Recompute, Backward, InputGradient, WeightGradient, Update)
SENT = (SendActivations, SendGradients)
RECEIVED = (ReceiveActivations, ReceiveGradients)


def refuse(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def entries(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(content["traceEvents"], list)
    return content["traceEvents"]


def traced(it: PipelineCase, grid: ProcessGrid, path: Path) -> Trace:
    """What two epochs, each with an evaluation, leave in the file."""
    trainer = pipelined_trainer(it, grid)
    for _ in range(2):
        trainer.fit(*data(it.case), epochs=1, validation=data(it.case, "test"))
    write_trace(path if grid.rank == 0 else None, grid, it.method)
    grid.world.barrier()
    return read_trace(path)


def big_grid(comm: MPI.Intracomm, **axes: int) -> ProcessGrid:
    return ProcessGrid(comm, recorder=Recorder(100_000), **axes)


def check_instructions(epoch: Epoch, schedule: Callable[[int], Schedule]) -> None:
    """Every instruction of the schedule once on every rank, in its order; receives where their content is used."""
    for lane in epoch.lanes:
        order = schedule(lane.place.stage).orders[lane.place.stage]
        events = [event for event in lane.events if isinstance(event.about, Instruction) and event.name != "loss"]
        done = [event.about for event in events if event.kind == "compute" or event.name == "send"]
        assert done == [item for item in order if isinstance(item, COMPUTED + SENT)]
        assert all(event.name == event.about.name for event in events if event.kind == "compute")
        for name, kinds in (("send.wait", SENT), ("receive", RECEIVED), ("receive.wait", RECEIVED)):
            for kind in kinds:
                about = [event.about for event in events if event.name == name and isinstance(event.about, kind)]
                assert about == [item for item in order if isinstance(item, kind)], name


def check_lanes(path: Path, ranks: int) -> None:
    """Complete events that begin one after the other and nest, as the format asks for."""
    for rank in range(ranks):
        lane = [entry for entry in entries(path) if entry["tid"] == rank and entry["ph"] == "X"]
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
    assert min(entry["ts"] for entry in entries(path) if entry["ph"] == "X") == 0


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("method", ["pipedream", "fr", "spectrain"])
def test_an_epoch_of_a_pipeline_without_flush_is_traced(comm: MPI.Intracomm, mpi_tmp_path: Path, method: str) -> None:
    for axes in ({"pipeline": comm.size}, {"pipeline": 2, "batch": comm.size // 2}):
        grid = big_grid(comm, **axes)
        trace = traced(PipelineCase(method), grid, mpi_tmp_path / "trace.json")
        assert trace.epochs == (1, 2)
        assert (trace.method, trace.stages) == (method, grid.stages)
        schedule = make_schedule(method, stages=grid.pipeline, minibatches=MINIBATCHES)
        for number in trace.epochs:
            epoch = trace.epoch(number)
            assert epoch.whole
            assert epoch.minibatches == range(MINIBATCHES)
            if comm.size == grid.pipeline:  # else a minibatch of few samples may leave some ranks without any
                check_instructions(epoch, lambda stage: schedule)
        check_lanes(mpi_tmp_path / "trace.json", comm.size)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize(
    ("it", "options"),
    [
        (PipelineCase("1f1b", microbatches=3, weight_grad="per-microbatch"), {}),
        (PipelineCase("gpipe", microbatches=2), {"weight_grad": "merged"}),
        (PipelineCase("interleaved", microbatches=4, chunks=2, weight_grad="per-microbatch"), {}),
        (PipelineCase("zb-h1", microbatches=3), {}),
        (PipelineCase("sequential"), {"weight_grad": "merged"}),
    ],
    ids=lambda it: it.method if isinstance(it, PipelineCase) else "",
)
def test_an_epoch_of_an_exact_method_is_traced(
    comm: MPI.Intracomm, mpi_tmp_path: Path, it: PipelineCase, options: dict[str, str]
) -> None:
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
        check_instructions(trace.epoch(number), lambda stage: replace(one, orders=orders))
    check_lanes(mpi_tmp_path / "trace.json", 2)


@pytest.mark.mpi(ranks=[4])
def test_parts_of_a_run_add_up_on_every_rank(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    for axes in ({"pipeline": 4}, {"pipeline": 2, "model": 2}, {"batch": 4}):
        trace = traced(PipelineCase("pipedream"), big_grid(comm, **axes), mpi_tmp_path / "trace.json")
        for number in trace.epochs:
            epoch = trace.epoch(number)
            found = break_down(epoch)
            assert len(found) == 4
            for item in found:
                assert item.span == pytest.approx(epoch.stop - epoch.start, rel=1e-9)
                assert min(item.parts.values()) >= 0
                assert item.computing > 0


@pytest.mark.mpi(ranks=[3])
def test_lanes_are_named_and_described(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    path = mpi_tmp_path / "trace.json"
    grid = ProcessGrid(comm, stages=[(1, 2), (1, 1)])
    grid.world.barrier()
    write_trace(path if grid.rank == 0 else None, grid)
    grid.world.barrier()
    names = {entry["tid"]: entry["args"]["name"] for entry in entries(path) if entry["name"] == "thread_name"}
    assert names == {
        0: "rank 0: stage 0, batch 0, model 0",
        1: "rank 1: stage 0, batch 0, model 1",
        2: "rank 2: stage 1, batch 0, model 0",
    }
    about = json.loads(path.read_text())["otherData"]
    assert (about["pipeline"], about["stages"], about["ranks"], about["nodes"]) == (2, [[1, 2], [1, 1]], 3, 1)
    # The writing itself is not in the trace.
    assert [entry["name"] for entry in entries(path) if entry["ph"] == "X"] == ["barrier"] * 3


@pytest.mark.mpi(ranks=[2])
def test_an_epoch_whose_beginning_was_dropped(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    it, path = PipelineCase("1f1b", microbatches=2), mpi_tmp_path / "trace.json"
    whole = traced(it, big_grid(comm, pipeline=2), path)
    comm.Barrier()  # before the file is written anew
    events = [len(lane.events) for lane in whole.epoch(2).lanes]
    # The evaluation after the epoch takes room too.
    after = [
        sum(e.start > whole.epoch(2).start for e in lane.events) - n
        for lane, n in zip(whole.lanes, events, strict=True)
    ]
    room = [n // 2 + rest + 40 * comm.rank for n, rest in zip(events, after, strict=True)][comm.rank]
    part = traced(it, ProcessGrid(comm, pipeline=2, recorder=Recorder(room)), path)
    assert part.epochs == (2,)
    epoch = part.epoch(2)
    assert not epoch.whole
    assert 0 < sum(len(lane.events) for lane in epoch.lanes) < sum(events)
    last = [
        max(event.about.minibatch for event in lane.events if isinstance(event.about, Update)) for lane in epoch.lanes
    ]
    assert last[0] == last[1]  # ranks that dropped different numbers of minibatches count alike
    assert [item.span for item in break_down(epoch)] == pytest.approx([epoch.stop - epoch.start] * 2)


@pytest.mark.mpi(ranks=[2])
def test_a_file_that_cannot_be_written_is_every_ranks_error(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    grid = ProcessGrid(comm)
    with pytest.raises((EnvironmentProblem, Exception), match=r"no/trace\.json: cannot be written: No such file"):
        write_trace(mpi_tmp_path / "no" / "trace.json" if grid.rank == 0 else None, grid)


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder()
    start = 5.0
    recorder.end_compute("forward", start, Forward(3, 1, 2))
    recorder.end_communication("send", "world", start, 80, about=SendActivations(3, 1, 2))
    recorder.end_communication("allreduce", "batch", start, 16)
    recorder.end_compute("weight gradient", start, WeightGradient(3, -1))
    recorder.end_phase("training", start, 7)
    write_trace(tmp_path / "trace.json", ProcessGrid(recorder=recorder), "ddg")
    trace = read_trace(tmp_path)
    assert (trace.method, trace.stages, trace.complete_since) == ("ddg", ((1, 1),), 0)
    (lane,) = trace.lanes
    assert lane.place == Place(0, 0, 0)
    # All begin together, and the longest is the outermost.
    assert [event._replace(start=0, stop=0) for event in lane.events] == [
        event._replace(start=0, stop=0) for event in recorder.events[::-1]
    ]
    for found, expected in zip(lane.events, recorder.events[::-1], strict=True):
        assert (found.start, found.stop) == (0, pytest.approx(expected.stop - start, abs=0.6e-9))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_reading_a_file_made_by_hand(tmp_path: Path) -> None:
    widths = [(2, 1), (1, 1)]
    lanes: list[list[Event]] = [
        [Event("phase", "training", "", 0, 9, 0, 1), compute("forward", 1, 2.5, Forward(0))],
        [],
        [communication("receive.wait", 3, 4, ReceiveActivations(1, 2, 3), nbytes=5)],
    ]
    path = tmp_path / "any name"
    path.write_text(json.dumps(file_of(widths, lanes, "fr")))
    scaled = [
        tuple(event._replace(start=event.start / 1e3, stop=event.stop / 1e3) for event in events) for events in lanes
    ]
    places = (Place(0, 0, 0), Place(0, 1, 0), Place(1, 0, 0))
    expected = tuple(Lane(place, events) for place, events in zip(places, scaled, strict=True))
    assert read_trace(path) == Trace("fr", ((2, 1), (1, 1)), expected)


def test_nothing_recorded_is_a_file_too(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", ProcessGrid())
    trace = read_trace(tmp_path)
    assert trace.lanes == (Lane(Place(0, 0, 0), ()),)
    assert trace.epochs == ()


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        write_trace(path, ProcessGrid())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("trace.json", "before")]


def damaged(**changes: Any) -> str:
    """A good file with other values in the event, or elsewhere by name."""
    content = file_of([(1, 1)], [[compute("forward", 0, 1, Forward(0))]])
    (entry,) = content["traceEvents"]
    for name, value in changes.items():
        place = content["otherData"] if name in content["otherData"] else entry
        place = entry["args"] if name in entry["args"] else place
        place[name] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        damaged()[:-20],
        "[]",
        "7",
        "{}",
        '{"traceEvents": []}',
        "[" * 100_000,
        damaged(stages=[]),
        damaged(stages=[[1]]),
        damaged(stages=[[1, 0]]),
        damaged(stages=3),
        damaged(tid=1),
        damaged(tid=-1),
        damaged(tid="0"),
        damaged(cat="else"),
        damaged(ts=-1),
        damaged(ts="now"),
        damaged(ts=1e999),
        damaged(ts=float("nan")),
        damaged(dur=-0.5),
        damaged(dur=None),
        damaged(args=None),
        damaged(args=[]),
        damaged(instruction="jump"),
        damaged(instruction=["forward"]),
        damaged(minibatch=1.5),
        damaged(minibatch=-1),
        damaged(microbatch=-2),
        damaged(chunk=True),
        damaged(complete_since_us="x"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(damaged())
    assert len(read_trace(tmp_path).lanes) == 1


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no trace.json; train with --set output.trace=true"):
        read_trace(tmp_path)
    with pytest.raises(DataError, match="there is no such run folder or trace"):
        read_trace(tmp_path / "nowhere")
    (tmp_path / "trace.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="trace.json"):
        read_trace(tmp_path)
