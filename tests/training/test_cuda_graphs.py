"""CUDA graphs of training steps, on a stand-in device: replayed steps against the references."""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid, Trainer
from hybridnn.comm.recorder import Call
from hybridnn.gpu.device import Device
from hybridnn.gpu.engine import StepCapture
from hybridnn.gpu.setup import TransportFactory
from hybridnn.gpu.staging import DEVICE_BUCKETS, Staging
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import TrainingDevice, resolve_device
from hybridnn.training.records import StepRecord
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, check_against_reference, data, make_trainer, run
from reference.stand_in_device import StandInCupy
from training.stand_in_training import CASES, CLIPPED, EXACTLY, check, cupy_with_a_gpu, kernels_of, stand_in

GRAPHS = {
    **CASES,
    "rmsprop": Case(optimizer="rmsprop", schedule="cosine"),
    "adamw": Case(optimizer="adamw", schedule="warmup-linear", clip_norm=0.05),
    "pipemare": Case(optimizer="pipemare-adam", schedule="cosine"),
    "dampened": Case(optimizer="dampened", schedule="step"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_replayed_steps_compute_what_the_reference_computes(name: str) -> None:
    """Rates, samples and Adam's corrections change from step to step, and the last minibatch is smaller."""
    grid = ProcessGrid()
    device = stand_in(grid, graphs=True)
    check_against_reference(GRAPHS[name], grid, device=device)
    # 4 minibatches in 3 epochs; the first minibatch of each of the two sizes is computed without a graph.
    assert kernels_of(device).replays == [8, 2]
    steps = [event.about for event in grid.recorder.events if event.name == "step"]
    assert steps == [Update(number) for number in range(12)]


@pytest.mark.parametrize("name", ["clipped", "adamw"])
def test_a_replayed_step_is_one_launch(name: str) -> None:
    """Samples, rates and losses of an epoch are on the device, which counts the steps."""
    grid = ProcessGrid()
    assert launches_of_steps(grid, stand_in(grid, graphs=True), name) == [1] * 5


def launches_of_steps(grid: ProcessGrid, device: TrainingDevice, name: str) -> list[int]:
    """Pieces of work that the host enqueues in steps 3 to 7, which are replayed."""
    case, stream = replace(GRAPHS[name], samples=80), kernels_of(device)._cupy.current
    trainer, given = make_trainer(case, grid, "float32", device=device, log_every=100), []
    trainer.fit(*data(case), epochs=1, callbacks=[Calling(should_stop=lambda position: given.append(stream.given))])
    return np.diff(given)[1:6].tolist()


@pytest.mark.mpi(ranks=[2])
def test_a_replayed_step_of_batch_ranks_is_one_launch(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, batch=2)
    assert launches_of_steps(grid, stand_in(grid, "nccl", comm, graphs=True), "clipped") == [1] * 5


def test_graphs_are_kept_for_later_fits_with_samples_in_the_same_memory() -> None:
    case, grid = Case(), ProcessGrid()
    device = stand_in(grid, graphs=True)
    (x, y), found, expected = data(case), *(make_trainer(case, grid, device=on) for on in (device, "cpu"))
    for trainer in (found, expected):
        trainer.fit(x, y, epochs=2)
        trainer.fit(x, y, epochs=1)
        trainer.fit(x[::-1], y[::-1], epochs=2)
    assert_arrays_close(found.weights(), expected.weights(), "other samples", EXACTLY)
    assert kernels_of(device).replays == [14, 4]  # of 15 steps of ten samples, and 5 of the rest
    for trainer in (found, expected):
        trainer.fit(x[:-3], y[:-3], epochs=2)
    assert_arrays_close(found.weights(), expected.weights(), "fewer samples", EXACTLY)
    assert kernels_of(device).replays[:2] == [14, 4]
    assert sum(kernels_of(device).replays[2:]) > 0


def test_more_samples_in_a_minibatch_than_before_make_new_graphs() -> None:
    case, grid = Case(batch_size=10**9), ProcessGrid()
    device = stand_in(grid, graphs=True)
    (x, y), found, expected = data(case), *(make_trainer(case, grid, device=on) for on in (device, "cpu"))
    for trainer in (found, expected):
        for samples in (20, 20, 30, 20):
            trainer.fit(x[:samples], y[:samples], epochs=4)
    assert_arrays_close(found.weights(), expected.weights(), "growing minibatches", EXACTLY)
    assert sum(kernels_of(device).replays) > 8


def test_a_step_that_cuda_cannot_capture_is_launched_kernel_by_kernel_unless_graphs_are_required() -> None:
    def refused(work: Callable[[], None]) -> Callable[[], None]:
        """What a failed capture leaves behind: calls were made, but nothing is computed."""
        kernels.record(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    case, grid = GRAPHS["adamw"], ProcessGrid()
    device = stand_in(grid, graphs="auto")
    kernels = kernels_of(device)
    with pytest.warns(RuntimeWarning, match="CUDA cannot capture a step .*not permitted") as warned:
        check_against_reference(case, grid, device=replace(device, capture=StepCapture(refused, required=False)))
    assert len(warned) == 1
    assert sum(kernels.replays) == 0
    trainer = make_trainer(case, grid, device=replace(device, capture=StepCapture(refused)))
    with pytest.raises(RuntimeError, match="not permitted"):
        trainer.fit(*data(case), epochs=1)


@pytest.mark.mpi(ranks=[2])
def test_batch_ranks_replay_steps(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 21 samples the last minibatch has one, and some ranks none; small buckets overlap the computation."""
    uneven = Case(samples=21, optimizer="adamw", schedule="warmup-linear")
    for bucket_bytes in (DEVICE_BUCKETS.bucket_bytes, 8):
        monkeypatch.setattr(Staging, "buckets", replace(DEVICE_BUCKETS, bucket_bytes=bucket_bytes))
        for case in (CLIPPED, uneven, replace(CASES["adam"], overlap=False)):
            grid = ProcessGrid(comm, batch=comm.size)
            device = stand_in(grid, "nccl", comm, graphs=True)
            check(case, grid, device)
            assert kernels_of(device).replays == ([5, 2] if case is uneven else [8, 2])


@pytest.mark.mpi(ranks=[2])
def test_replays_count_as_steps(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staging, "buckets", replace(DEVICE_BUCKETS, bucket_bytes=1000))
    case, told = Case(epochs=2), []
    for graphs in (False, True):
        grid, figures = ProcessGrid(comm, batch=2), []
        recorder = grid.recorder
        trainer = make_trainer(case, grid, device=stand_in(grid, "nccl", comm, graphs=graphs))
        entered = grid.batch_group._channel.entered
        bytes_before, messages_before = recorder.bytes_sent, recorder.messages

        def at_step(record: StepRecord, grid: ProcessGrid = grid, figures: list[Any] = figures) -> None:
            totals, channel = grid.recorder, grid.batch_group._channel
            calls = [Call._make(call) for call in list(channel.recent)[-3:]]
            figures.append((totals.bytes_sent, totals.messages, channel.entered))
            figures.append([(call.number - channel.entered, call.signature) for call in calls])
            assert grid.recorder.current_call is None

        trainer.fit(*data(case), epochs=2, callbacks=[Calling(on_step=at_step)])
        told.append([recorder.bytes_sent - bytes_before, recorder.messages - messages_before, *figures])
        assert grid.batch_group._channel.entered > entered + 8
        summed = [event for event in recorder.events if (event.name, event.axis) == ("allreduce", "batch")]
        named = [(event.about, event.stop) for event in summed if event.about is not None]
        steps = {event.about: (event.start, event.stop) for event in recorder.events if event.name == "step"}
        # Of minibatches 0 to 7, 0 and 3 are the first of their size, and 1 and 7 are captured.
        assert {about for about, _ in named} == ({Update(number) for number in (2, 4, 5, 6)} if graphs else set())
        assert all(steps[about][0] <= stop <= steps[about][1] for about, stop in named)
    assert told[0] == told[1]


def recorded(comm: MPI.Intracomm) -> tuple[Trainer, StandInCupy]:
    """A trainer of two ranks with graphs of both sizes of minibatch."""
    grid = ProcessGrid(comm, batch=2)
    device = stand_in(grid, "nccl", comm, graphs=True)
    cupy = kernels_of(device)._cupy
    trainer = run(Case(epochs=2), grid, device=device)
    assert cupy.ended == []
    return trainer, cupy


@pytest.mark.mpi(ranks=[2])
def test_graphs_are_destroyed_before_their_connection(comm: MPI.Intracomm) -> None:
    """NCCL would wait for them for ever: here a grid is connected again while its trainer exists."""
    trainer, cupy = recorded(comm)
    trainer.grid.attach_device(TransportFactory("nccl", Device(cupy)))
    assert cupy.ended == ["graph", "graph", "connection"]
    trainer.fit(*data(Case()), epochs=1)
    assert cupy.launches[2:] == [3, 1]
    assert_arrays_close(trainer.weights(), run(Case(), trainer.grid, device="cpu").weights(), "anew", EXACTLY)
    trainer.free()
    assert cupy.ended == ["graph", "graph", "connection", "graph", "graph"]
    trainer.grid.disconnect()
    assert cupy.ended[5:] == ["connection"]


@pytest.mark.mpi(ranks=[2])
def test_no_graphs_without_a_connection(comm: MPI.Intracomm) -> None:
    trainer, cupy = recorded(comm)
    trainer.grid.disconnect()
    assert cupy.ended == ["graph", "graph", "connection"]
    trainer.fit(*data(Case()), epochs=1)
    assert_arrays_close(trainer.weights(), run(Case(), trainer.grid, device="cpu").weights(), "staged", EXACTLY)
    assert len(cupy.launches) == 2


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("way", ["at once", "in a cycle"])
def test_graphs_are_destroyed_first_without_an_explicit_end(comm: MPI.Intracomm, way: str) -> None:
    trainer, cupy = recorded(comm)
    if way == "in a cycle":
        trainer._itself = trainer
    del trainer
    gc.collect()
    assert cupy.ended == ["graph", "graph", "aborted connection"]


@pytest.mark.mpi(ranks=[2])
def test_no_graphs_on_any_rank_if_the_samples_of_one_do_not_fit(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, batch=2)
    device = stand_in(grid, "nccl", comm, free=0 if comm.rank else 1 << 40, graphs=True)
    check(Case(epochs=2), grid, device)
    assert kernels_of(device).replays == []


@pytest.mark.mpi(ranks=[2])
def test_batch_ranks_capture_graphs_with_nccl(comm: MPI.Intracomm) -> None:
    def make(*, tf32: bool, progress: Any) -> Any:
        return kernels_of(stand_in(ProcessGrid(comm)))

    one_by_one = "Imaginary, GPU 0 of 1, kernels launched one by one: "
    for transport, gpu_of, how, why in (
        (
            "auto",
            str,
            {"batch": 2},
            "Imaginary, GPU 0 of 1, steps replayed as CUDA graphs if samples are in GPU memory",
        ),
        ("staging", str, {"batch": 2}, one_by_one + "graphs of several ranks need NCCL"),
        ("auto", lambda rank: "the same", {"batch": 2}, one_by_one + "graphs of several ranks need NCCL"),
        ("nccl", str, {"model": 2}, one_by_one + "graphs need a single rank, or batch ranks only"),
        ("nccl", str, {"pipeline": 2}, one_by_one + "graphs need a single rank, or batch ranks only"),
    ):
        grid, cupy = ProcessGrid(comm, **how), cupy_with_a_gpu(comm, gpu_of(comm.rank))
        device = resolve_device(DeviceOptions("gpu", transport, graphs=True), grid, lambda cupy=cupy: cupy, make)
        assert device.why == why
        assert (device.capture is None) == ("one by one" in why)
