"""Whole trainings in one process, which together use every split, pipeline method, optimizer, rate, loss and setting.

Each equals an independent reference: the serial training or the replay of its method in `reference`. These are compared
with PyTorch and with the slopes of the loss in `tests/training`.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import hybridnn
from hybridnn import MLP, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.data import ArrayRows, Dataset
from hybridnn.in_process import run_ranks
from hybridnn.runs.data import place_data
from hybridnn.training.records import StepPosition
from reference import network as net
from reference import serial
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, assert_close, data, plan_of
from reference.core_cases import CORE_CASES, STAGES
from reference.network import Array, Network
from reference.pipeline_cases import COSINE, PipelineCase
from reference.training_cases import Grid, TrainingCase, run_training_case, trainer_of

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", CORE_CASES)
def test_training_equals_the_reference(name: str) -> None:
    run_training_case(CORE_CASES[name])


LONG = replace(COSINE, epochs=3)
LAYOUTS = {
    "2 x 2 to a pipeline": (
        TrainingCase(4, Grid(model=2), LONG),
        TrainingCase(4, Grid(2), PipelineCase("1f1b", LONG, 3)),
    ),
    "wide stages to model ranks": (
        TrainingCase(4, Grid(stages=STAGES), PipelineCase("zb-h1", LONG, 3)),
        TrainingCase(4, Grid(model=4), replace(LONG, model_split="alternating")),
    ),
}
"""Layouts before and after a checkpoint."""


def check_going_on(before: TrainingCase, after: TrainingCase, middle: int, folder: Path) -> None:
    """Train to step `middle`, of the second of three epochs, and from its checkpoint on another layout to the end."""
    case, where = before.case, f"{before}, then {after}"
    x, y = data(case)
    expected = serial.train(case.network, plan_of(case), x, y)

    def program(comm: Any) -> None:
        first, second = (trainer_of(it, comm) for it in (before, after))
        writer = checkpoint_writer(first, folder, "data")

        def should_stop(reached: StepPosition) -> bool:
            if reached.step == middle:
                writer.write(reached.progress())
            return reached.step == middle + 1

        first.fit(x, y, epochs=3, callbacks=[Calling(should_stop=should_stop)])
        checkpoint, problems = newest_valid(folder, second.grid.world)
        assert checkpoint is not None, problems
        second.restore(checkpoint.read_into, checkpoint.manifest.progress)
        assert second.step == middle
        second.fit(x, y, epochs=2, validation=data(case, "test"))
        assert_arrays_close(second.weights(), expected.weights, where)
        for slot, arrays in expected.slots.items():
            assert_arrays_close(second.optimizer_slots()[slot], arrays, f"{where}: {slot}")
        losses = [record.train_loss for record in second.history.epochs]
        assert_close(losses, expected.epoch_losses[1:], f"{where}: losses")

    run_ranks(before.ranks, program)


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_a_training_goes_on_from_a_checkpoint_on_another_layout(layouts: str, tmp_path: Path) -> None:
    """Rates and samples are those of the whole training."""
    check_going_on(*LAYOUTS[layouts], 8, tmp_path)


@pytest.mark.parametrize("draws", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)], ids=str)
def test_layers_of_one_to_three_units_train_and_go_on_from_a_checkpoint(draws: range, tmp_path: Path) -> None:
    """Model ranks hold blocks of several rows, of one and of none; what is collective may not depend on it."""
    for draw in map(Random, draws):
        ranks = draw.randint(2, 4)
        case = Case(
            tuple(draw.choices((1, 1, 2, 3), k=draw.randint(3, 6))),
            classification=False,
            residual=draw.random() < 0.5,
            optimizer=draw.choice(("plain", "momentum", "adam")),
            model_split=draw.choice(("columns", "alternating", "alternating")),
            shared_replicas=draw.choice((False, "auto")),
            samples=12,
            batch_size=5,
        )
        models = [model for model in range(1, ranks + 1) if ranks % model == 0]
        before, after = (TrainingCase(ranks, Grid(model=model), case) for model in draw.sample(models, 2))
        check_going_on(before, after, 4, tmp_path / f"{draw.random()}")


def without(rows: Array, count: int, stream: bytes) -> tuple[Array, Array]:
    """Rows without so many that are chosen at random, and these; in order."""
    seed = np.random.SeedSequence([5, int.from_bytes(stream, "big")])
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(rows))
    return rows[np.sort(order[count:])], rows[np.sort(order[:count])]


@pytest.mark.parametrize("distribution", ["local", "scatter"])
def test_samples_are_split_and_standardized_by_the_training_split(distribution: str) -> None:
    """Means and scales are those of the training split; test and validation samples are standardized by them."""
    random = np.random.default_rng(0)
    x, y = random.normal(3, 5, (60, 4)), random.normal(-2, 3, (60, 2))
    x[:, 3] = 7.0  # a constant feature becomes 0
    rest, test = without(np.arange(60), 15, b"splt")
    train, _ = without(rest, 9, b"vali")
    scale = np.append(x[train, :3].std(axis=0), 1.0)
    inputs, targets = (x - x[train].mean(axis=0)) / scale, (y - y[train].mean(axis=0)) / y[train].std(axis=0)
    network = Network((4, 8, 2), "tanh")
    plan = serial.Plan(serial.SGD(lr=0.05, momentum=0.9), epochs=3, batch_size=10, seed=3)
    expected = serial.train(network, plan, inputs[train], targets[train])

    def program(comm: Any) -> None:
        grid = hybridnn.ProcessGrid(comm, model=2)
        placed = place_data(
            lambda: Dataset("numbers", "regression", 4, 2, ArrayRows(x, y), None),
            grid,
            generated=False,
            distribution=distribution,
            standardize=True,
            test_fraction=0.25,
            validation_fraction=0.2,
            seed=5,
            dtype="float64",
        )
        model, rule = MLP([4, 8, 2], "tanh"), hybridnn.SGD(lr=0.05, momentum=0.9)
        trainer = Trainer(model, rule, grid=grid, batch_size=10, seed=3, dtype="float64", distribution=distribution)
        trainer.fit(placed.train, epochs=3)
        metrics = trainer.evaluate(placed.test)
        assert (placed.train_samples, placed.validation_samples, metrics.samples) == (36, 9, 15)
        assert_arrays_close(trainer.weights(), expected.weights, distribution)
        outputs, _ = net.forward(network, expected.weights, inputs[test])
        assert_close(metrics.loss, net.loss(network, outputs, targets[test]), "test loss")
        assert_close(metrics.r2, net.r2(outputs, targets[test]), "R2")
        placed.memory.free()

    run_ranks(2, program)
