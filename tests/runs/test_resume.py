"""Training that is resumed from a checkpoint equals training without interruption."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.nn.learning_rates import Cosine
from hybridnn.nn.optimizers import Optimizer
from hybridnn.training.records import StepPosition
from reference.callbacks import Calling
from reference.cases import assert_arrays_same

SIZES, SAMPLES, BATCH, EPOCHS = [5, 9, 8, 7, 3], 53, 12, 3
STEPS_PER_EPOCH = 5
ASYNCHRONOUS = ("ddg", "fr", "pipedream", "vanilla", "spectrain")


def trainer_on(axes: dict[str, int], method: str, optimizer: Optimizer) -> Trainer:
    return Trainer(
        MLP(SIZES, "tanh"),
        optimizer,
        grid=ProcessGrid(**axes),
        batch_size=BATCH,
        schedule=Cosine(),
        seed=3,
        dtype="float64",
        log_every=1,
        method=method,
    )


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((SAMPLES, SIZES[0])), generator.standard_normal((SAMPLES, SIZES[-1]))


def stopped_and_resumed(make: Callable[[], Trainer], stop_at: int, folder: Path) -> Trainer:
    """Train up to a step, and from its checkpoint on with a new trainer."""
    x, y = data()
    before, after = make(), make()
    writer = checkpoint_writer(before, folder, "noise")

    def should_stop(reached: StepPosition) -> bool:
        if reached.step < stop_at:
            return False
        writer.write(reached.progress())
        return True

    before.fit(x, y, epochs=EPOCHS, validation=(x, y), callbacks=[Calling(should_stop=should_stop)])
    checkpoint, problems = newest_valid(folder, after.grid.world)
    assert checkpoint is not None
    assert not problems
    after.restore(checkpoint.read_into, checkpoint.manifest.progress)
    assert after.step == before.step < EPOCHS * STEPS_PER_EPOCH
    after.history.epochs.extend(before.history.epochs)
    after.history.steps.extend(before.history.steps)
    after.fit(x, y, epochs=EPOCHS - after.progress.epoch + 1, validation=(x, y))
    return after


def assert_same(found: Trainer, expected: Trainer) -> None:
    """Weights, optimizer and records, to the bit."""
    assert_arrays_same(found.weights(), expected.weights())
    for slot, arrays in expected.optimizer_slots().items():
        assert_arrays_same(found.optimizer_slots()[slot], arrays)
    what = ("step", "epoch", "train_loss", "learning_rate")
    for kind, keys in (("steps", what), ("epochs", (*what, "validation_loss"))):
        rows = [
            [[getattr(record, key) for key in keys] for record in getattr(trainer.history, kind)]
            for trainer in (found, expected)
        ]
        assert rows[0] == rows[1]


ADAM, MOMENTUM = Adam(0.01), SGD(0.05, momentum=0.8)
PIPELINE = {"pipeline": 2, "batch": 1}


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize(
    ("axes", "method", "optimizer", "stop_at"),
    [
        ({"batch": 2}, "1f1b", ADAM, 7),  # within an epoch
        ({"batch": 1, "model": 2}, "1f1b", MOMENTUM, 10),  # at the end of one
        (PIPELINE, "interleaved", MOMENTUM, 1),  # after the first step
        # Requested at step 3, when the pipeline is full; it is empty at the end of the epoch.
        *((PIPELINE, method, replace(MOMENTUM, lr=0.01), 3) for method in ASYNCHRONOUS),
    ],
)
def test_a_resumed_training_has_the_bits_of_one_without_interruption(
    axes: dict[str, int], method: str, optimizer: Optimizer, stop_at: int, mpi_tmp_path: Path
) -> None:
    """`core` has checkpoints that are read on another layout."""

    def make() -> Trainer:
        return trainer_on(axes, method, optimizer)

    x, y = data()
    whole = make()
    whole.fit(x, y, epochs=EPOCHS, validation=(x, y))
    assert_same(stopped_and_resumed(make, stop_at, mpi_tmp_path), whole)
