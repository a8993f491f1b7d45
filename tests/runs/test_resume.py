"""Training that is resumed from a checkpoint equals training without interruption."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.comm.agreement import broadcast_text
from hybridnn.comm.mpi import import_mpi
from hybridnn.nn.learning_rates import Cosine
from hybridnn.nn.optimizers import Optimizer
from hybridnn.training.records import StepPosition
from reference.callbacks import Calling

SIZES, SAMPLES, BATCH, EPOCHS = [5, 9, 8, 7, 3], 53, 12, 3
STEPS_PER_EPOCH = 5


@dataclass(frozen=True)
class Layout:
    """A grid, and how its pipeline and its layers run."""

    axes: dict[str, int]
    method: str = "1f1b"
    settings: dict[str, Any] = field(default_factory=dict)


def trainer_on(layout: Layout, optimizer: Optimizer, alone: bool = False) -> Trainer:
    mpi = import_mpi()
    return Trainer(
        MLP(SIZES, "tanh"),
        optimizer,
        grid=ProcessGrid(mpi.COMM_SELF if alone else mpi.COMM_WORLD, **layout.axes),
        batch_size=BATCH,
        schedule=Cosine(),
        seed=3,
        dtype="float64",
        log_every=1,
        method=layout.method,
        **layout.settings,
    )


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((SAMPLES, SIZES[0])), generator.standard_normal((SAMPLES, SIZES[-1]))


def stopped_and_resumed(first: Layout, second: Layout, optimizer: Optimizer, stop_at: int, folder: Path) -> Trainer:
    """Train on one layout up to a step, and from there on another one."""
    x, y = data()
    before = trainer_on(first, optimizer)
    writer = checkpoint_writer(before, folder, "noise")

    def should_stop(reached: StepPosition) -> bool:
        if reached.step < stop_at:
            return False
        writer.write(reached.progress())
        return True

    before.fit(x, y, epochs=EPOCHS, validation=(x, y), callbacks=[Calling(should_stop=should_stop)])
    after = trainer_on(second, optimizer)
    checkpoint, problems = newest_valid(folder, after.grid.world)
    assert checkpoint is not None
    assert not problems
    after.restore(checkpoint.read_into, checkpoint.manifest.progress)
    assert after.step == before.step < EPOCHS * STEPS_PER_EPOCH
    after.history.epochs.extend(before.history.epochs)
    after.history.steps.extend(before.history.steps)
    after.fit(x, y, epochs=EPOCHS - after.progress.epoch + 1, validation=(x, y))
    return after


def uninterrupted(layout: Layout, optimizer: Optimizer, alone: bool = False) -> Trainer:
    x, y = data()
    trainer = trainer_on(layout, optimizer, alone)
    trainer.fit(x, y, epochs=EPOCHS, validation=(x, y))
    return trainer


def assert_same(found: Trainer, expected: Trainer, tolerance: float) -> None:
    """Weights, optimizer and records; a tolerance of 0 stands for the same bits."""
    pairs = [(found.weights(), expected.weights())]
    slots, expected_slots = found.optimizer_slots(), expected.optimizer_slots()
    pairs += [(slots[name], expected_slots[name]) for name in expected_slots]
    for arrays, expected_arrays in pairs:
        for name, array in expected_arrays.items():
            np.testing.assert_allclose(arrays[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
    what = ("step", "epoch", "train_loss", "learning_rate")
    for kind in ("steps", "epochs"):
        numbers, expected_numbers = (
            [[getattr(record, key) for key in what] for record in getattr(trainer.history, kind)]
            for trainer in (found, expected)
        )
        assert [row[:2] for row in numbers] == [row[:2] for row in expected_numbers]
        np.testing.assert_allclose(numbers, expected_numbers, rtol=tolerance)
    losses = [record.validation_loss for record in found.history.epochs]
    np.testing.assert_allclose(losses, [record.validation_loss for record in expected.history.epochs], rtol=tolerance)


def shared_folder(tmp_path: Path) -> Path:
    return Path(broadcast_text(ProcessGrid().world, str(tmp_path), 0))


ADAM = Adam(0.01)
MOMENTUM = SGD(0.05, momentum=0.8)
EXACT = {
    1: [Layout({})],
    2: [
        Layout({"batch": 2}),
        Layout({"batch": 1, "model": 2}, settings={"model_split": "alternating"}),
        Layout({"pipeline": 2, "batch": 1}, "interleaved"),
    ],
    4: [
        Layout({"batch": 2, "model": 2}),
        Layout({"pipeline": 2, "batch": 2}, "zb-h1"),
        Layout({"pipeline": 2, "batch": 1, "model": 2}, "gpipe", {"model_split": "alternating"}),
    ],
}


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_exact_layouts_resume_on_any_layout_with_the_same_result(tmp_path: Path) -> None:
    """On another layout with the weights of one process, on the same layout with the same bits."""
    folder = shared_folder(tmp_path)
    layouts = EXACT[ProcessGrid().size]
    alone = [uninterrupted(Layout({}), optimizer, alone=True) for optimizer in (ADAM, MOMENTUM)]
    for number, (first, second) in enumerate(zip(layouts, layouts[1:] + layouts[:1], strict=True)):
        stop_at = (7, 10, 1)[number]  # within an epoch, at the end of one, after the first step
        here, there = (ADAM, MOMENTUM) if number % 2 else (MOMENTUM, ADAM)
        other = stopped_and_resumed(first, second, there, stop_at, folder / f"{number}-other")
        assert_same(other, alone[there is MOMENTUM], 1e-10)
        same = stopped_and_resumed(first, first, here, stop_at, folder / f"{number}-same")
        assert_same(same, uninterrupted(first, here), 0)


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize("method", ["ddg", "fr", "pipedream", "vanilla", "spectrain"])
def test_asynchronous_methods_resume_from_the_end_of_an_epoch(method: str, tmp_path: Path) -> None:
    layout = Layout({"pipeline": 2, "batch": 1}, method)
    optimizer = replace(MOMENTUM, lr=0.01)
    # Requested at step 3, when the pipeline is full; it is empty at the end of the epoch.
    found = stopped_and_resumed(layout, layout, optimizer, 3, shared_folder(tmp_path))
    assert_same(found, uninterrupted(layout, optimizer), 0)
