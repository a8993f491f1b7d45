"""Training on a GPU, which ranks share if there are fewer GPUs, against the same training on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import Adam, NAdam, ProcessGrid, RMSprop, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.comm.agreement import broadcast_text
from hybridnn.errors import EnvironmentProblem
from hybridnn.gpu.setup import cuda_support
from hybridnn.gpu.staging import DEVICE_BUCKETS, Staging
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import TrainingDevice, resolve_device
from reference.cases import Case, assert_arrays_close, assert_close, data, make_trainer, run
from reference.pipeline_cases import ADAM, DELAYED_CASES, MOMENTUM, PipelineCase, exact_cases, run_pipelined

if TYPE_CHECKING:
    from mpi4py import MPI

TOLERANCES = {"float32": 1e-5, "float64": 1e-12}
"""Relative to the largest element of an array: the bounds of single kernels, which entire trainings satisfy too.
After 8 to 15 steps, different roundings of float32 differ by a tenth of it."""

WIDE = Case((33, 130, 70, 130, 10), samples=300, batch_size=64)
CASES = {
    "momentum": WIDE,
    "clipped": replace(WIDE, clip_norm=0.05),
    "regression": replace(WIDE, classification=False, optimizer="nesterov", activation="selu"),
    "residual": Case((6, 64, 64, 64, 4), residual=True, optimizer="dampened", activation="relu"),
    "wide": replace(WIDE, sizes=(33, 260, 260, 10)),
    "sigmoid": replace(WIDE, optimizer="plain", activation="sigmoid", schedule="cosine"),
    "spike": replace(WIDE, optimizer="spike", schedule="cosine"),
    "pipemare": replace(WIDE, optimizer="pipemare", schedule="cosine"),
}
ADAPTIVE = {name: replace(WIDE, optimizer=name) for name in ("adam", "adamw", "rmsprop", "nadam", "pipemare-adam")}
FEW = 0.005
"""Fraction of elements that may differ more after Adam, which divides gradients by their magnitude: if a gradient is of
the size of rounding errors, so is the direction of its step. They may differ by two learning rates per step, all others
by the bound of a kernel per step."""


def on_gpu(grid: ProcessGrid, transport: str = "auto", *, graphs: bool = False) -> TrainingDevice:
    if transport == "mpi" and not cuda_support():
        pytest.skip("this MPI library does not say that it supports CUDA")
    try:
        return resolve_device(DeviceOptions("gpu", transport, graphs=graphs), grid)
    except EnvironmentProblem as problem:
        if transport == "auto":
            raise  # there is no GPU
        pytest.skip(str(problem))


def assert_same(found: Trainer, expected: Trainer, what: str, dtype: str) -> None:
    """Compare weights, optimizer slots, outputs and recorded losses."""
    tolerance = TOLERANCES[dtype]
    if dtype == "float32" and isinstance(expected.optimizer, Adam | NAdam | RMSprop):
        assert_mostly_close(found, expected, what)
    else:
        assert_arrays_close(found.weights(), expected.weights(), what, tolerance)
        for slot, arrays in expected.optimizer_slots().items():
            assert_arrays_close(found.optimizer_slots()[slot], arrays, f"{what}: {slot}", 10 * tolerance)
    x = np.random.default_rng(1).standard_normal((17, expected.model.sizes[0]))
    assert_close(found.predict(x), expected.predict(x), f"{what}: predictions", 10 * tolerance)
    for records, others in (
        (found.history.steps, expected.history.steps),
        (found.history.epochs, expected.history.epochs),
    ):
        losses = [[record.train_loss for record in items] for items in (records, others)]
        assert_close(losses[0], losses[1], f"{what}: losses", tolerance)
    last, other = found.history.epochs[-1], expected.history.epochs[-1]
    assert_close(last.validation_loss, other.validation_loss, f"{what}: test loss", 10 * tolerance)
    assert last.validation_accuracy == other.validation_accuracy


def assert_mostly_close(found: Trainer, expected: Trainer, what: str) -> None:
    """Compare weights and optimizer slots of Adam in float32: see `FEW`."""
    everything = [(found.weights(), expected.weights())]
    everything += [(found.optimizer_slots()[slot], arrays) for slot, arrays in expected.optimizer_slots().items()]
    for number, (arrays, expected_arrays) in enumerate(everything):
        errors = [np.abs(arrays[name] - array).ravel() for name, array in expected_arrays.items()]
        relative = [error / np.abs(array).max() for error, array in zip(errors, expected_arrays.values(), strict=True)]
        share = np.mean(np.concatenate(relative) > expected.step * TOLERANCES["float32"])
        assert share < FEW, f"{what}: {share:%} of the elements differ"
        if number == 0:
            assert max(map(np.max, errors)) <= 2 * expected.step * expected.optimizer.lr, what


def check(case: Case, grid: ProcessGrid, device: TrainingDevice, dtype: str) -> None:
    on_cpu = run(replace(case, shared_replicas=False), grid, dtype, device="cpu")
    assert_same(run(case, grid, dtype, device=device), on_cpu, f"{case} on {grid!r}", dtype)


def check_pipelined(case: PipelineCase, grid: ProcessGrid, device: TrainingDevice, dtype: str) -> None:
    alone = replace(case, case=replace(case.case, shared_replicas=False))
    on_cpu = run_pipelined(alone, grid, dtype, device="cpu")
    assert_same(run_pipelined(case, grid, dtype, device=device), on_cpu, f"{case} on {grid!r}", dtype)


def record_and_free(kernels: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Capture a step, and give free memory back, which the graph must not use."""
    replay: Callable[[], None] = kernels.record(work)
    kernels._cupy.get_default_memory_pool().free_all_blocks()
    return replay


@pytest.mark.parametrize("name", [*CASES, *ADAPTIVE])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("graphs", [False, True])
def test_one_rank(name: str, dtype: str, graphs: bool) -> None:
    grid = ProcessGrid()
    device = resolve_device(DeviceOptions("gpu", graphs=graphs), grid)
    if graphs:
        device = replace(device, capture=device.capture._replace(record=partial(record_and_free, device.kernels)))
    check((CASES | ADAPTIVE)[name], grid, device, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_method_of_a_pipeline_on_one_rank(dtype: str) -> None:
    grid = ProcessGrid()
    check_pipelined(PipelineCase("pipedream"), grid, on_gpu(grid), dtype)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_one_fit_after_the_other(graphs: bool, dtype: str) -> None:
    """Samples that stay on the GPU, other samples in the same memory, and samples in new memory."""
    grid = ProcessGrid()
    device = resolve_device(DeviceOptions("gpu", graphs=graphs), grid)
    found, expected = (make_trainer(WIDE, grid, dtype, device=on) for on in (device, "cpu"))
    x, y = data(WIDE)
    for trainer in (found, expected):
        for samples, targets in ((x, y), (x, y), (x[::-1], y[::-1]), (x[:200], y[:200])):
            trainer.fit(samples, targets, epochs=1, validation=data(WIDE, "test"))
    assert_same(found, expected, "fits", dtype)
    found.free()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("transport", ["staging", "mpi", "nccl"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_batch_and_model_ranks(comm: MPI.Intracomm, transport: str, dtype: str) -> None:
    split = replace(CASES["residual"], model_split="alternating")
    for axes, cases in (
        ({"batch": 2}, [WIDE, CASES["clipped"], replace(WIDE, overlap=False), replace(WIDE, distribution="scatter")]),
        (
            {"model": 2},
            [WIDE, CASES["clipped"], CASES["residual"], split, replace(WIDE, distribution="scatter-broadcast")],
        ),
    ):
        grid = ProcessGrid(comm, **axes)
        device = on_gpu(grid, transport)
        for case in cases:
            check(case, grid, device, dtype)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("transport", ["staging", "mpi", "nccl"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_method_of_a_pipeline(comm: MPI.Intracomm, dtype: str, transport: str) -> None:
    grid = ProcessGrid(comm, pipeline=2)
    device = on_gpu(grid, transport)
    clipped = PipelineCase("1f1b", replace(MOMENTUM, clip_norm=0.05), microbatches=3)
    for case in (*exact_cases(2).values(), *DELAYED_CASES.values(), PipelineCase("spectrain", ADAM), clipped):
        check_pipelined(case, grid, device, dtype)


@pytest.mark.mpi(ranks=[4])
def test_two_axes_at_once(comm: MPI.Intracomm) -> None:
    for axes in ({"batch": 2, "model": 2}, {"pipeline": 2, "batch": 2}, {"pipeline": 2, "model": 2}):
        grid = ProcessGrid(comm, **axes)
        device = on_gpu(grid)
        for dtype in TOLERANCES:
            if grid.pipeline == 1:
                check(CASES["clipped"], grid, device, dtype)
            else:
                check_pipelined(PipelineCase("1f1b", MOMENTUM, microbatches=3), grid, device, dtype)


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("bucket_bytes", [DEVICE_BUCKETS.bucket_bytes, 1 << 10])
def test_batch_ranks_replay_steps(comm: MPI.Intracomm, bucket_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs a GPU per rank. The last minibatch of 257 samples has one sample, and other ranks have none."""
    monkeypatch.setattr(Staging, "buckets", replace(DEVICE_BUCKETS, bucket_bytes=bucket_bytes))
    for dtype in TOLERANCES:
        for case in (WIDE, CASES["clipped"], CASES["residual"], replace(WIDE, samples=257), ADAPTIVE["adamw"]):
            grid = ProcessGrid(comm, batch=comm.size)
            device = on_gpu(grid, "nccl", graphs=True)
            assert device.capture is not None
            check(case, grid, device, dtype)
            grid.disconnect()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_training_resumes_from_a_checkpoint_of_the_cpu(comm: MPI.Intracomm, dtype: str, tmp_path: Path) -> None:
    case = WIDE if dtype == "float32" else ADAPTIVE["adam"]
    for number, axes in enumerate(({"batch": 2}, {"model": 2}, {"pipeline": 2})):
        folder = Path(broadcast_text(ProcessGrid(comm).world, str(tmp_path / str(number)), 0))
        grid = ProcessGrid(comm, **axes)
        device = on_gpu(grid)
        for first, second in (("cpu", device), (device, "cpu")):
            began = make_trainer(case, grid, dtype, device=first)
            began.fit(*data(case), epochs=1)
            checkpoint_writer(began, folder, "noise").write(began.progress)
            goes_on = make_trainer(case, grid, dtype, device=second)
            checkpoint, _ = newest_valid(folder, grid.world)
            assert checkpoint is not None
            goes_on.restore(checkpoint.read_into, checkpoint.manifest.progress)
            began.fit(*data(case), epochs=2)
            goes_on.fit(*data(case), epochs=2)
            assert_arrays_close(goes_on.weights(), began.weights(), f"{axes}", TOLERANCES[dtype])


def test_tf32_is_less_precise() -> None:
    grid = ProcessGrid()
    rounded = resolve_device(DeviceOptions("gpu", tf32=True), grid)
    found, expected = run(WIDE, grid, "float32", device=rounded), run(WIDE, grid, "float32", device="cpu")
    assert_arrays_close(found.weights(), expected.weights(), "TF32", 1e-2)
