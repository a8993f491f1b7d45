"""Training cases: run by hybridnn on a process grid and by the serial reference, and compared."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

import hybridnn
from hybridnn.nn.optimizers import Optimizer
from reference import network as net
from reference import serial
from reference.network import Array, Network, Weights

TOLERANCE = 1e-10
"""Relative to the largest element of an array, in float64."""

OPTIMIZERS: dict[str, tuple[Optimizer, serial.Rule]] = {
    "plain": (hybridnn.SGD(lr=0.005, momentum=0.0), serial.SGD(lr=0.005)),
    "decay": (hybridnn.SGD(lr=0.005, momentum=0.0, weight_decay=0.05), serial.SGD(lr=0.005, weight_decay=0.05)),
    "momentum": (hybridnn.SGD(lr=0.002, momentum=0.9), serial.SGD(lr=0.002, momentum=0.9)),
    "dampened": (
        hybridnn.SGD(lr=0.003, momentum=0.8, dampening=0.3, weight_decay=0.01),
        serial.SGD(lr=0.003, momentum=0.8, dampening=0.3, weight_decay=0.01),
    ),
    "dampened-alone": (
        hybridnn.SGD(lr=0.003, momentum=0.8, dampening=0.3),
        serial.SGD(lr=0.003, momentum=0.8, dampening=0.3),
    ),
    "nesterov": (
        hybridnn.SGD(lr=0.002, momentum=0.7, nesterov=True, weight_decay=0.02),
        serial.SGD(lr=0.002, momentum=0.7, nesterov=True, weight_decay=0.02),
    ),
    "spike": (hybridnn.SpikeSGD(lr=0.002, momentum=0.8), serial.SpikeSGD(lr=0.002, momentum=0.8)),
    "adam": (
        hybridnn.Adam(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
        serial.Adam(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
    ),
    "adamw": (
        hybridnn.AdamW(lr=0.01, eps=1e-6, weight_decay=0.2),
        serial.Adam(lr=0.01, eps=1e-6, weight_decay=0.2, decoupled=True),
    ),
    "nadam": (
        hybridnn.NAdam(lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.2),
        serial.NAdam(lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.2),
    ),
    "pipemare": (
        hybridnn.PipeMareSGD(lr=0.01, momentum=0.8, annealing_updates=9, discrepancy_decay=0.3),
        serial.PipeMare(serial.SGD(lr=0.01, momentum=0.8), K=9, D=0.3),
    ),
    "pipemare-adam": (
        hybridnn.PipeMareAdam(lr=0.03, betas=(0.8, 0.95), annealing_updates=6),
        serial.PipeMare(serial.Adam(lr=0.03, betas=(0.8, 0.95)), K=6, D=0.5),
    ),
    "rmsprop": (hybridnn.RMSprop(lr=0.003, alpha=0.8, eps=1e-6), serial.RMSprop(lr=0.003, alpha=0.8, eps=1e-6)),
}

SCHEDULES: dict[str, tuple[Any, serial.Schedule]] = {
    "constant": (hybridnn.Constant(), serial.Schedule()),
    "step": (hybridnn.Step((1, 2), 0.3), serial.Schedule("step", milestones=(1, 2), factor=0.3)),
    "warmup-linear": (hybridnn.WarmupLinear(0.5), serial.Schedule("linear", warmup_epochs=0.5)),
    "cosine": (hybridnn.Cosine(1.0), serial.Schedule("cosine", warmup_epochs=1.0)),
}


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...] = (5, 13, 7, 11, 4)
    classification: bool = True
    activation: str = "tanh"
    residual: bool = False
    optimizer: str = "momentum"
    schedule: str = "constant"
    clip_norm: float | None = None
    samples: int = 37
    batch_size: int = 10
    epochs: int = 3
    seed: int = 3
    model_split: str = "columns"
    overlap: bool = True
    distribution: str = "local"
    shared_replicas: bool | str = "auto"

    @property
    def network(self) -> Network:
        loss = "cross_entropy" if self.classification else "mse"
        return Network(self.sizes, self.activation, self.residual, loss)

    def __str__(self) -> str:
        return f"Case({', '.join(f'{name}={value!r}' for name, value in changed(self))})"


def changed(settings: Any) -> list[tuple[str, Any]]:
    """Names and values of the fields that are not the default."""
    values = [(field.name, getattr(settings, field.name), field.default) for field in fields(settings)]
    return [(name, value) for name, value, usual in values if value != usual]


def data(case: Case, data_split: str = "train") -> tuple[Array, Array]:
    """Samples and targets in float64, or labels; the test split has 23 samples."""
    random = np.random.default_rng([case.samples, len(data_split)])
    samples = case.samples if data_split == "train" else 23
    x = 0.5 * random.standard_normal((samples, case.sizes[0]))
    outputs = case.sizes[-1]
    if case.classification:
        return x, random.integers(0, outputs, samples)
    return x, np.sin(x @ random.standard_normal((case.sizes[0], outputs)))


def plan_of(case: Case) -> serial.Plan:
    return serial.Plan(
        rule=OPTIMIZERS[case.optimizer][1],
        epochs=case.epochs,
        batch_size=case.batch_size,
        seed=case.seed,
        clip_norm=case.clip_norm,
        schedule=SCHEDULES[case.schedule][1],
    )


@lru_cache(maxsize=256)
def _reference(case: Case) -> serial.Outcome:
    return serial.train(case.network, plan_of(case), *data(case))


def reference(case: Case) -> serial.Outcome:
    """Training by the reference, which does not depend on the layout."""
    layout = {"model_split": "columns", "overlap": True, "distribution": "local", "shared_replicas": "auto"}
    return _reference(replace(case, **layout))


def make_trainer(case: Case, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any) -> hybridnn.Trainer:
    return hybridnn.Trainer(
        hybridnn.MLP(case.sizes, case.activation, residual=case.residual),
        OPTIMIZERS[case.optimizer][0],
        grid=grid,
        batch_size=case.batch_size,
        seed=case.seed,
        dtype=dtype,
        clip_norm=case.clip_norm,
        model_split=case.model_split,
        overlap=case.overlap,
        shared_replicas=case.shared_replicas,
        distribution=case.distribution,
        **{"schedule": SCHEDULES[case.schedule][0], "log_every": 1, "evaluate_every": case.epochs, **settings},
    )


def local_data(case: Case, grid: hybridnn.ProcessGrid, data_split: str = "train") -> tuple[Any, Any]:
    """Arguments of `fit` on this rank: None on ranks that receive their minibatches."""
    return data(case, data_split) if case.distribution == "local" or grid.rank == 0 else (None, None)


def run(case: Case, grid: hybridnn.ProcessGrid, dtype: str = "float64", **settings: Any) -> hybridnn.Trainer:
    """Train the case on `grid`."""
    trainer = make_trainer(case, grid, dtype, **settings)
    trainer.fit(*local_data(case, grid), epochs=case.epochs, validation=local_data(case, grid, "test"))
    return trainer


def assert_close(found: Any, expected: Any, what: str, tolerance: float = TOLERANCE) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    assert np.isfinite(expected).all(), f"{what}: the reference is not finite"
    error = np.max(np.abs(found - expected), initial=0.0)
    scale = np.max(np.abs(expected), initial=0.0)
    assert error <= tolerance * scale, f"{what}: error {error:.3g}, largest element {scale:.3g}"


def assert_arrays_close(
    found: dict[str, Array], expected: dict[str, Array], what: str, tolerance: float = TOLERANCE
) -> None:
    assert sorted(found) == sorted(expected), f"{what}: {sorted(found)} instead of {sorted(expected)}"
    for name in expected:
        assert_close(found[name], expected[name], f"{what}, {name}", tolerance)


def assert_arrays_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Assert bit-identical arrays."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def check_against_reference(case: Case, grid: hybridnn.ProcessGrid, **settings: Any) -> hybridnn.Trainer:
    """Train on `grid` and compare weights, optimizer state, records, predictions and metrics with the reference."""
    trainer = run(case, grid, **settings)
    check_outcome(trainer, case, reference(case), f"{case} on {grid!r}")
    return trainer


def check_outcome(
    trainer: hybridnn.Trainer, case: Case, expected: serial.Outcome, where: str, tolerance: float = TOLERANCE
) -> None:
    """Compare all that a training leaves; `tolerance` is that of weights and optimizer state."""
    assert_arrays_close(trainer.weights(), expected.weights, f"{where}: weights", tolerance)
    check_state(trainer, expected, where, tolerance)
    check_quality(trainer, case, trainer.grid, expected.weights, where)


def check_state(trainer: hybridnn.Trainer, expected: serial.Outcome, where: str, tolerance: float = TOLERANCE) -> None:
    slots = trainer.optimizer_slots()
    assert sorted(slots) == sorted(expected.slots), where
    for slot, arrays in expected.slots.items():
        assert_arrays_close(slots[slot], arrays, f"{where}: {slot}", tolerance)
    assert_arrays_close(trainer.gradients(), expected.gradients, f"{where}: gradient")
    assert_close(trainer.gradient_norm(), net.norm(expected.gradients.values()), f"{where}: gradient norm")
    history = trainer.history
    assert [record.step for record in history.steps] == list(range(1, len(expected.rates) + 1)), where
    assert_close([record.train_loss for record in history.steps], expected.step_losses, f"{where}: step losses")
    assert_close([record.learning_rate for record in history.steps], expected.rates, f"{where}: learning rates")
    assert_close([record.train_loss for record in history.epochs], expected.epoch_losses, f"{where}: epoch losses")


def check_quality(
    trainer: hybridnn.Trainer, case: Case, grid: hybridnn.ProcessGrid, weights: Weights, where: str
) -> None:
    """Compare predictions and test metrics, computed now and recorded in the last epoch, with those of `weights`."""
    x, y = data(case, "test")
    outputs, _ = net.forward(case.network, weights, x)
    assert_close(trainer.predict(x), outputs, f"{where}: predictions")
    metrics, last = trainer.evaluate(*local_data(case, grid, "test")), trainer.history.epochs[-1]
    assert metrics.samples == len(x), f"{where}: {metrics.samples} samples evaluated of {len(x)}"
    assert_close([metrics.loss, last.validation_loss], [net.loss(case.network, outputs, y)] * 2, f"{where}: test loss")
    if case.classification:
        assert metrics.accuracy == last.validation_accuracy == net.accuracy(outputs, y), where
        assert [metrics.r2, last.validation_r2] == [None, None], where
    else:
        assert_close([metrics.r2, last.validation_r2], [net.r2(outputs, y)] * 2, f"{where}: R2")
        assert [metrics.accuracy, last.validation_accuracy] == [None, None], where
