"""Training on an emulated device, whose arrays the host cannot read, against the references and the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.cli.train_view import TrainView
from hybridnn.comm.agreement import broadcast_text
from hybridnn.config.settings import settings_from
from hybridnn.data import ArrayRows
from hybridnn.data.dataset import PixelRows
from hybridnn.errors import NonFiniteLossError, SettingError
from hybridnn.gpu.device import MIN_PINNED_BYTES
from hybridnn.pipeline.schedules.instructions import Update
from hybridnn.runs.run import run_training
from hybridnn.runs.run_files import read_run
from hybridnn.runs.trained_run import find_weights
from hybridnn.training.config import DeviceOptions
from hybridnn.training.device import TrainingDevice
from hybridnn.training.records import StepPosition
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, data, make_trainer, run
from reference.pipeline_cases import ADAM, DELAYED_CASES, MOMENTUM, PipelineCase, check_pipelined, exact_cases
from training.emulated_training import CASES, CLIPPED, EXACTLY, SPLIT, check, cupy_of, emulated


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("graphs", [False, True])
def test_one_rank(name: str, graphs: bool) -> None:
    """Rates, samples and Adam's corrections change from step to step, and the last minibatch is smaller."""
    grid = ProcessGrid()
    device = emulated(grid, graphs=graphs)
    check(CASES[name], grid, device)
    # Of 4 or 5 minibatches in 3 epochs, the first of each of the two sizes is computed without a graph.
    more = 3 * (name == "one output")
    assert cupy_of(device).replays == ([8 + more, 2] if graphs else [])
    steps = [event.about for event in grid.recorder.events if event.name == "step"]
    assert not graphs or steps == [Update(number) for number in range(12 + more)]


@pytest.mark.parametrize("part", ["in one part", "minibatch by minibatch"])
def test_samples_are_copied_to_the_device_once_if_they_fit(part: str) -> None:
    grid, case = ProcessGrid(), Case(epochs=2)
    device = emulated(grid, free=1 << 40 if part == "in one part" else 0)
    check(case, grid, device)
    before = len(cupy_of(device).brought)
    trainer = make_trainer(case, grid, device=device)
    x, y = data(case)
    start = len(cupy_of(device).brought)
    assert start > before
    trainer.fit(x, y, epochs=2)
    brought, layers = cupy_of(device).brought[start:], len(trainer.model.layers)
    if part == "in one part":
        # The samples and their labels; in the first step the indices 0 to n-1; the order of each epoch, and at its end
        # where layers end, for the check of the weights.
        assert sorted(brought) == sorted([x.size, y.size, 10, *2 * [len(x), layers]])
    else:
        assert sum(brought) == 2 * (x.size + y.size + layers) + 10


def test_the_host_reads_at_most_two_minibatches_ahead() -> None:
    grid, case = ProcessGrid(), Case(epochs=1, samples=300)
    device = emulated(grid, free=0)
    cupy = cupy_of(device)
    trainer = make_trainer(case, grid, device=device, log_every=1000)
    x, y = data(case)
    taken, left = [], []

    class Rows(ArrayRows):
        def take(self, indices: Any, x: Any, y: Any) -> None:
            taken.append(cupy.is_pinned(x) and cupy.is_pinned(y))
            left.append(cupy.current.given - cupy.current.done)
            super().take(indices, x, y)

    trainer.fit(Rows(x, y), epochs=1)
    on_cpu = run(case, grid, device="cpu")
    assert_arrays_close(trainer.weights(), on_cpu.weights(), "ahead", EXACTLY)
    assert len(taken) == 30
    assert all(taken)
    assert min(left[5:]) > 0  # of the device's work: nobody has waited for all of it
    assert max(left[15:]) <= max(left[:15])
    assert cupy.pinned_bytes <= 6 * MIN_PINNED_BYTES


@pytest.mark.parametrize("case", [Case(), CLIPPED], ids=["plain", "clipped"])
def test_only_logged_steps_wait_for_the_device(case: Case) -> None:
    grid = ProcessGrid()
    device = emulated(grid)
    trainer = make_trainer(case, grid, device=device, log_every=3)
    fetched = cupy_of(device).fetched
    start = len(fetched)
    trainer.fit(*data(case), epochs=1)
    # Losses of steps 1 to 3, and of the fourth, which ends the epoch; then whether the weights are finite.
    assert fetched[start : start + 2] == [3, 1]
    assert fetched[start + 2 :] == [len(trainer.model.layers)]


def test_an_evaluation_waits_once_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = ProcessGrid()
    device = emulated(grid)
    on_device, on_cpu = (make_trainer(Case(), grid, device=on) for on in (device, "cpu"))
    fetched = cupy_of(device).fetched
    x, y = data(Case())
    fetched.clear()
    found = on_device.evaluate(x, y)
    assert fetched == [2]  # loss and number of correct samples of one large block
    expected = on_cpu.evaluate(x, y)
    assert (found.accuracy, found.samples) == (expected.accuracy, expected.samples)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    monkeypatch.setattr("hybridnn.gpu.engine.EVALUATED_SAMPLES", 15)  # more than a minibatch of 10
    device = emulated(grid)
    in_blocks = make_trainer(Case(), grid, device=device)
    fetched = cupy_of(device).fetched
    fetched.clear()
    assert in_blocks.evaluate(x, y).loss == pytest.approx(expected.loss, rel=1e-12)
    assert fetched == [2 * 3]
    assert_arrays_close({"y": in_blocks.predict(x)}, {"y": on_cpu.predict(x)}, "predictions", EXACTLY)
    assert found.accuracy == np.mean(on_cpu.predict(x).argmax(axis=1) == y)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("transport", ["staging", "mpi", "nccl"])
def test_batch_and_model_ranks(comm: MPI.Intracomm, transport: str) -> None:
    for axes, cases in (
        ({"batch": 2}, [Case(), CLIPPED, replace(CASES["selu"], overlap=False), replace(Case(), epochs=1, samples=21)]),
        ({"model": 2}, [Case(), CLIPPED, CASES["selu"], CASES["residual"], SPLIT]),
    ):
        for case in cases if transport == "nccl" else cases[1:3]:
            grid = ProcessGrid(comm, **axes)
            check(case, grid, emulated(grid, transport, comm))


@pytest.mark.sweep
@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("first", range(3))
def test_every_case_with_batch_and_model_ranks(comm: MPI.Intracomm, first: int) -> None:
    for case in list(CASES.values())[first::3]:
        for axes in ({"batch": 2}, {"model": 2}):
            grid = ProcessGrid(comm, **axes)
            check(case, grid, emulated(grid))


@pytest.mark.mpi(ranks=[2])
def test_minibatches_that_rank_0_distributes(comm: MPI.Intracomm) -> None:
    for axes in ({"batch": 2}, {"model": 2}):
        for distribution in ("scatter", "scatter-broadcast"):
            grid = ProcessGrid(comm, **axes)
            check(Case(epochs=2, distribution=distribution), grid, emulated(grid))


@pytest.mark.mpi(ranks=[2])
def test_every_pipeline_method(comm: MPI.Intracomm) -> None:
    short = replace(MOMENTUM, epochs=1)
    clipped = replace(short, clip_norm=0.05)
    cases = [replace(it, case=short) for it in (*exact_cases(2).values(), *DELAYED_CASES.values())]
    cases += [PipelineCase("interleaved", clipped, microbatches=2, chunks=2), PipelineCase("1f1b", clipped)]
    for case in (*cases, PipelineCase("spectrain", ADAM)):
        grid = ProcessGrid(comm, pipeline=2)
        check_pipelined(case, grid, device=emulated(grid))
    for case in (PipelineCase("1f1b", short), PipelineCase("pipedream", short)):
        grid = ProcessGrid(comm, pipeline=2)
        check_pipelined(case, grid, device=emulated(grid, "mpi"))


@pytest.mark.mpi(ranks=[4])
def test_two_axes_at_once(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, batch=2, model=2)
    check(CLIPPED, grid, emulated(grid))
    for axes in ({"batch": 2}, {"model": 2}):
        grid = ProcessGrid(comm, pipeline=2, **axes)
        case = PipelineCase("1f1b", replace(MOMENTUM, clip_norm=0.05), microbatches=3)
        check_pipelined(case, grid, device=emulated(grid))


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize(
    ("where", "beside"),
    [(("gpu", "gpu"), False), (("gpu", "gpu"), True), (("cpu", "gpu"), False), (("gpu", "cpu"), True)],
)
def test_training_resumes_from_a_checkpoint(
    comm: MPI.Intracomm, where: tuple[str, str], beside: bool, tmp_path: Path
) -> None:
    """From the device to the CPU and back too, and with losses of the epoch that were not logged."""
    case = Case(optimizer="adam")
    x, y = data(case)
    for number, axes in enumerate(({"batch": 2}, {"model": 2}, {"pipeline": 2})):
        folder = Path(broadcast_text(ProcessGrid(comm).world, str(tmp_path / str(number)), 0))

        def trainer_on(kind: str, axes: dict[str, int] = axes) -> Trainer:
            grid = ProcessGrid(comm, **axes)
            return make_trainer(case, grid, device=emulated(grid) if kind == "gpu" else "cpu", log_every=100)

        first = trainer_on(where[0])
        writer = checkpoint_writer(first, folder, "noise")

        def should_stop(reached: StepPosition, writer: Any = writer) -> bool:
            if reached.step == 6 and beside:
                writer.begin(reached.progress())
            elif reached.step == 6:
                writer.write(reached.progress())
            elif reached.step == 7 and beside:
                writer.finish()
            return reached.step == 7

        first.fit(x, y, epochs=3, callbacks=[Calling(should_stop=should_stop)])
        second = trainer_on(where[1])
        checkpoint, problems = newest_valid(folder, second.grid.world)
        assert not problems
        second.restore(checkpoint.read_into, checkpoint.manifest.progress)
        assert second.step == 6
        second.fit(x, y, epochs=2)
        whole = trainer_on("cpu")
        whole.fit(x, y, epochs=3)
        assert_arrays_close(second.weights(), whole.weights(), f"{where} {axes}", EXACTLY)
        for slot, arrays in whole.optimizer_slots().items():
            assert_arrays_close(second.optimizer_slots()[slot], arrays, slot, EXACTLY)
        losses = [[record.train_loss for record in one.history.epochs] for one in (second, whole)]
        np.testing.assert_allclose(losses[0], losses[1][1:], rtol=EXACTLY)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("axes", [{"batch": 2}, {"model": 2}, {"pipeline": 2}])
def test_a_checkpoint_copies_each_element_to_the_host_once_and_is_read_without_copies(
    comm: MPI.Intracomm, axes: dict[str, int], mpi_tmp_path: Path
) -> None:
    case, grid = Case(optimizer="adam"), ProcessGrid(comm, **axes)
    device = emulated(grid)
    trainer, fetched = make_trainer(case, grid, device=device), cupy_of(device).fetched
    trainer.fit(*data(case), epochs=1)
    numbers = 3 * trainer.model.parameters  # the weights and two moments
    fetched.clear()
    writer = checkpoint_writer(trainer, mpi_tmp_path, "noise")
    assert fetched == []
    writer.write(trainer.progress)
    assert sum(comm.allgather(sum(fetched))) == numbers
    fetched.clear()
    writer.begin(trainer.progress)
    writer.finish()
    assert sum(comm.allgather(sum(fetched))) == numbers
    checkpoint, _ = newest_valid(mpi_tmp_path, grid.world)
    fetched.clear()
    trainer.restore(checkpoint.read_into, checkpoint.manifest.progress)
    assert fetched == []


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("axes", [{"batch": 2}, {"model": 2}, {"pipeline": 2}])
def test_a_loss_that_is_not_finite_stops_all_ranks_at_the_next_check(comm: MPI.Intracomm, axes: dict[str, int]) -> None:
    grid = ProcessGrid(comm, **axes)
    trainer = Trainer(MLP([3, 8, 2]), SGD(1e200), grid=grid, batch_size=4, dtype="float64", device=emulated(grid))
    x = np.random.default_rng(0).standard_normal((40, 3))
    with pytest.raises(NonFiniteLossError, match=r"the loss became (nan|inf) in step [23] "):
        trainer.fit(x, x[:, :2], epochs=1)
    assert trainer.step == 10


def test_shared_replicas_need_the_cpu() -> None:
    grid = ProcessGrid()
    with pytest.raises(SettingError, match=r"shared_replicas.*GPU"):
        Trainer(MLP([3, 2]), grid=grid, device=emulated(grid), shared_replicas=True)


def test_records_of_a_run_name_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[DeviceOptions] = []

    def choose(options: DeviceOptions, grid: ProcessGrid, **_: Any) -> TrainingDevice:
        asked.append(options)
        return emulated(grid, graphs=options.graphs)

    monkeypatch.setattr("hybridnn.runs.run.resolve_device", choose)
    settings = settings_from(
        {
            "data": {"name": "digits", "rows": 200},
            "model": {"hidden": [8]},
            "training": {"epochs": 2, "checkpoint_every": 3},
            "device": {"graphs": True},
            "output": {"folder": str(tmp_path / "run")},
        }
    )
    run_training(settings, TrainView(quiet=True))
    assert asked == [DeviceOptions(graphs=True)]
    record = read_run(tmp_path / "run")
    assert (record.header.device, record.header.device_why) == ("gpu", "emulated")
    assert (record.header.transport, record.header.transport_why) == ("staging", "requested")
    assert (record.settings.device.name, record.settings.device.graphs) == ("gpu", True)
    weights = find_weights(tmp_path / "run").read()
    monkeypatch.undo()
    ran = settings.model_copy(update={"output": settings.output.model_copy(update={"folder": str(tmp_path / "cpu")})})
    run_training(ran.model_copy(update={"device": DeviceOptions("cpu")}), TrainView(quiet=True))
    for name, array in find_weights(tmp_path / "cpu").read().items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-6)


ONE_EPOCH = Case(epochs=1)


def trainers(grid: ProcessGrid) -> tuple[Trainer, Trainer, list[int]]:
    """Trainers on the emulated device and on the CPU, and the number of elements of each copy to the device."""
    device = emulated(grid)
    on_device, on_cpu = (make_trainer(ONE_EPOCH, grid, device=on) for on in (device, "cpu"))
    return on_device, on_cpu, cupy_of(device).brought


def copies(brought: list[int], size: int) -> int:
    """Number of copies of arrays of `size` elements since the last call."""
    found = brought.count(size)
    brought.clear()
    return found


def test_samples_are_copied_once_and_again_after_a_change() -> None:
    on_device, on_cpu, brought = trainers(ProcessGrid())
    x, y = data(ONE_EPOCH)
    x = x.copy()
    expected = []
    for change, times in ((None, 1), (None, 0), (0.5, 1), (None, 0)):
        if change is not None:
            x += change  # in the same memory
        for trainer in (on_device, on_cpu):
            trainer.fit(x, y, epochs=1)
        expected.append(times)
        assert copies(brought, x.size) == times
    on_device.fit(x.copy(), y.copy(), epochs=1)
    on_cpu.fit(x, y, epochs=1)
    assert copies(brought, x.size) == 0
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "fits", EXACTLY)


def test_exchanged_training_and_test_samples() -> None:
    on_device, on_cpu, brought = trainers(ProcessGrid())
    parts = [tuple(array[first::3] for array in data(Case(samples=90))) for first in range(3)]
    histories = []
    for trainer in (on_device, on_cpu):
        brought.clear()
        for train, test in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 0)):
            trainer.fit(*parts[train], epochs=1, validation=parts[test])
        histories.append([record.validation_loss for record in trainer.history.epochs])
        if trainer is on_device:
            # Two, and then one each time: what was trained on makes room for what was tested on.
            assert copies(brought, parts[0][0].size) == 6
    np.testing.assert_allclose(*histories, rtol=EXACTLY)
    on_device.evaluate(*parts[0])
    assert copies(brought, parts[0][0].size) == 0
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "places", EXACTLY)
    on_device.evaluate(*parts[2])
    on_device.evaluate(*parts[2])
    assert copies(brought, parts[2][0].size) == 2  # nothing is kept of what is evaluated by the way


def test_rows_of_a_data_set_are_identified_by_their_object() -> None:
    on_device, _, brought = trainers(ProcessGrid())
    x, y = data(ONE_EPOCH)
    pixels = PixelRows(np.clip(x * 99 + 99, 0, 255).astype(np.uint8), y, 255)
    reads: list[Any] = []

    class Rows(ArrayRows):
        def take(self, *arguments: Any) -> None:
            reads.append(arguments)
            super().take(*arguments)

    for rows in (pixels, Rows(x, y)):
        for times in (1, 0):
            on_device.fit(rows, epochs=1)
            assert copies(brought, x.size) == times
    assert len(reads) == 1


def test_freed_trainers_keep_no_samples() -> None:
    on_device, _, _ = trainers(ProcessGrid())
    on_device.fit(*data(ONE_EPOCH), epochs=1)
    kept = on_device.engine.samples._entries
    assert len(kept) == 1
    on_device.free()
    assert not kept


@pytest.mark.mpi(ranks=[2])
def test_all_batch_ranks_copy_if_the_samples_of_one_have_changed(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the samples differed between the rows that are compared.
    monkeypatch.setattr("hybridnn.training.rank_comparison.require_same_data", lambda *how: None)
    on_device, on_cpu, brought = trainers(ProcessGrid(comm, batch=2))
    x, y = data(ONE_EPOCH)
    shifted = x + comm.rank
    for samples, times in ((x, 1), (x, 0), (shifted, 1), (shifted, 0)):
        for trainer in (on_device, on_cpu):
            trainer.fit(samples, y, epochs=1)
        assert copies(brought, x.size) == times
    assert_arrays_close(on_device.weights(), on_cpu.weights(), "shifted on one rank", EXACTLY)
