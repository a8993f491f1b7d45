"""CUDA graphs of training steps, on an emulated device: replayed steps against the references."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gpu.step_table import count
from hybridnn import MLP, SGD, ProcessGrid, RMSprop, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.comm.recorder import Call
from hybridnn.gpu.device import Device
from hybridnn.gpu.setup import TransportFactory
from hybridnn.gpu.staging import DEVICE_BUCKETS, Staging
from hybridnn.nn.kernels import Array
from hybridnn.nn.optimizers import OptimizerState, new_state
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import TrainingDevice, resolve_device
from hybridnn.training.records import StepRecord
from reference.callbacks import Calling
from reference.cases import (
    OPTIMIZERS,
    TOLERANCE,
    Case,
    assert_arrays_close,
    data,
    make_trainer,
    run,
)
from reference.emulated_device import EmulatedCupy
from training.emulated_training import CASES, CLIPPED, EXACTLY, check, cupy_of, emulated


class Allocating(RMSprop):
    """An input of a ufunc overlaps its output."""

    def update(self, weights: Array, *given: Any) -> None:  # type: ignore[override]
        super().update(weights, *given)
        np.multiply(weights[:3], 1.0, out=weights[:3])


def with_optimizer(kind: type[RMSprop], grid: ProcessGrid, dtype: str, device: Any) -> Trainer:
    trainer = Trainer(MLP(Case().sizes), kind(alpha=0.8), grid=grid, batch_size=10, dtype=dtype, device=device)
    trainer.fit(*data(Case()), epochs=3)
    return trainer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ufuncs_of_a_user_are_captured_and_compute_in_the_dtype_of_the_weights(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OptimizerState, "fused", lambda *_: False)
    grid = ProcessGrid()
    device = emulated(grid, graphs=True)
    found = with_optimizer(RMSprop, grid, dtype, device).weights()
    assert sum(cupy_of(device).replays) == 10
    tolerance = {"float32": 1e-5, "float64": EXACTLY}[dtype]
    assert_arrays_close(found, with_optimizer(RMSprop, grid, dtype, "cpu").weights(), "of a user", tolerance)


def test_a_step_that_allocates_is_launched_kernel_by_kernel_unless_graphs_are_required() -> None:
    """CuPy would give the memory to others while the graph still uses it."""
    grid = ProcessGrid()
    device = emulated(grid, graphs="auto")
    with pytest.warns(
        RuntimeWarning, match=r"cannot capture a step \(the step allocates 24 bytes .*: kernels are"
    ) as warned:
        found = with_optimizer(Allocating, grid, "float64", device).weights()
    assert len(warned) == 1
    assert sum(cupy_of(device).replays) == 0
    assert_arrays_close(found, with_optimizer(RMSprop, grid, "float64", "cpu").weights(), "allocating", EXACTLY)
    with pytest.raises(RuntimeError, match="the step allocates 24 bytes"):
        with_optimizer(Allocating, grid, "float64", emulated(grid, graphs=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_one_launch_or_a_few(name: str) -> None:
    cupy = EmulatedCupy()
    weights, gradient = (cupy.zeros((300_000,), np.float32) for _ in range(2))
    state = new_state(OPTIMIZERS[name][0], weights, cupy.kernels())
    cupy.launches.clear()
    OPTIMIZERS[name][0].update(weights, gradient, state, 0.1)
    assert len(cupy.launches) == (4 if "pipemare" in name else 1)


def test_the_table_of_launches_and_bytes_counts_a_captured_step() -> None:
    launches, products, update, every, fewest = count((7, 5, 5, 5, 3), SGD(), 8)
    # The step's begin, 2 gathers, 11 products, 4 activations, loss, 3 gradients with sums, sums, update, end.
    assert launches == 25
    elements = [5 * 7 + 7 * 8 + 5 * 8, *2 * [5 * 5 + 2 * 5 * 8], 3 * 5 + 5 * 8 + 3 * 8]
    assert products == 4 * (3 * sum(elements) - elements[0])
    assert update == 4 * (5 * 192 + 4)  # of the parameters in units of 64, and scalars
    assert every > max(products + update, fewest)


def test_several_fits_with_other_rates_and_samples_and_evaluations_between_and_a_resumed_epoch(tmp_path: Path) -> None:
    grid, case = ProcessGrid(), CASES["clipped adamw"]
    device = emulated(grid, graphs=True)
    found, expected = (make_trainer(case, grid, device=on) for on in (device, "cpu"))
    x, y = data(case)

    def fit(samples: Any, targets: Any, epochs: int, stops: int = -1) -> None:
        for trainer in (found, expected):
            stop = Calling(should_stop=lambda position: position.minibatches == stops)
            trainer.fit(samples, targets, epochs=epochs, validation=(x[:7], y[:7]), callbacks=[stop])
            trainer.predict(x[:3])
        assert found.evaluate(x, y).loss == pytest.approx(expected.evaluate(x, y).loss, rel=1e-10)
        assert_arrays_close(found.weights(), expected.weights(), f"{samples.shape} {stops}", TOLERANCE)

    fit(x, y, 2)
    for trainer in (found, expected):
        trainer.set_learning_rate(0.002)
    fit(x[::-1].copy(), y[::-1].copy(), 2)
    assert cupy_of(device).replays == [11, 3]  # of 12 steps of ten samples, and 4 of the rest
    fit(x[:33], y[:33], 3)
    fit(np.concatenate([x, x]), np.concatenate([y, y]), 3)
    fit(x, y, 2, stops=2)
    fit(x, y, 2, stops=3)
    checkpoint_writer(found, tmp_path, "noise").write(found.progress)
    found = make_trainer(case, grid, device=emulated(grid, graphs=True))
    checkpoint, _ = newest_valid(tmp_path, grid.world)
    found.restore(checkpoint.read_into, checkpoint.manifest.progress)
    found.set_learning_rate(0.002)
    fit(x, y, 3)
    assert cupy_of(found.device).replays == [5, 1]


@pytest.mark.parametrize("name", ["clipped", "clipped adamw"])
def test_a_replayed_step_is_one_launch(name: str) -> None:
    """Samples, rates and losses of an epoch are on the device, which counts the steps."""
    grid = ProcessGrid()
    assert launches_of_steps(grid, emulated(grid, graphs=True), name) == [1] * 5


def launches_of_steps(grid: ProcessGrid, device: TrainingDevice, name: str) -> list[int]:
    """Launches by the host in steps 3 to 7, which are replayed."""
    case, launches = replace(CASES[name], samples=80), cupy_of(device).launches
    trainer, given = make_trainer(case, grid, "float32", device=device, log_every=100), []
    trainer.fit(*data(case), epochs=1, callbacks=[Calling(should_stop=lambda position: given.append(len(launches)))])
    return np.diff(given)[1:6].tolist()


@pytest.mark.mpi(ranks=[2])
def test_a_replayed_step_of_batch_ranks_is_one_launch(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, batch=2)
    assert launches_of_steps(grid, emulated(grid, "nccl", comm, graphs=True), "clipped") == [1] * 5


def test_more_samples_in_a_minibatch_than_before_make_new_graphs() -> None:
    case, grid = Case(batch_size=10**9), ProcessGrid()
    device = emulated(grid, graphs=True)
    (x, y), found, expected = data(case), *(make_trainer(case, grid, device=on) for on in (device, "cpu"))
    for trainer in (found, expected):
        for samples in (20, 20, 30, 20):
            trainer.fit(x[:samples], y[:samples], epochs=4)
    assert_arrays_close(found.weights(), expected.weights(), "growing minibatches", EXACTLY)
    assert sum(cupy_of(device).replays) > 8


@pytest.mark.mpi(ranks=[2])
def test_batch_ranks_replay_steps(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 21 samples the last minibatch has one, and some ranks none; small buckets overlap the computation."""
    uneven = Case(samples=21, optimizer="adamw", schedule="warmup-linear")
    for bucket_bytes in (DEVICE_BUCKETS.bucket_bytes, 8):
        monkeypatch.setattr(Staging, "buckets", replace(DEVICE_BUCKETS, bucket_bytes=bucket_bytes))
        for case in (CLIPPED, uneven, replace(CASES["selu"], overlap=False)):
            grid = ProcessGrid(comm, batch=comm.size)
            device = emulated(grid, "nccl", comm, graphs=True)
            check(case, grid, device)
            assert cupy_of(device).replays == ([5, 2] if case is uneven else [8, 2])


@pytest.mark.mpi(ranks=[2])
def test_replays_count_as_steps(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staging, "buckets", replace(DEVICE_BUCKETS, bucket_bytes=1000))
    case, told = Case(epochs=2), []
    for graphs in (False, True):
        grid, figures = ProcessGrid(comm, batch=2), []
        recorder = grid.recorder
        trainer = make_trainer(case, grid, device=emulated(grid, "nccl", comm, graphs=graphs))
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


def recorded(comm: MPI.Intracomm) -> tuple[Trainer, EmulatedCupy]:
    """A trainer of two ranks with graphs of both sizes of minibatch."""
    grid = ProcessGrid(comm, batch=2)
    device = emulated(grid, "nccl", comm, graphs=True)
    cupy = cupy_of(device)
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
    assert cupy.replays[2:] == [3, 1]
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
    assert len(cupy.replays) == 2


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
    device = emulated(grid, "nccl", comm, free=0 if comm.rank else 1 << 40, graphs=True)
    check(Case(epochs=2), grid, device)
    assert cupy_of(device).replays == []


@pytest.mark.mpi(ranks=[2])
def test_batch_ranks_capture_graphs_with_nccl(comm: MPI.Intracomm) -> None:
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
        grid, cupy = ProcessGrid(comm, **how), EmulatedCupy(comm, place=gpu_of(comm.rank))
        device = resolve_device(
            DeviceOptions("gpu", transport, graphs=True), grid, lambda cupy=cupy: cupy, cupy.kernels
        )
        assert device.why == why
        assert (device.capture is None) == ("one by one" in why)
