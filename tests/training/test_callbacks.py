"""Callbacks are called on every rank, and early stopping ends with the weights of the best epoch."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, EarlyStopping, LambdaLR, ProcessGrid, ReduceLROnPlateau, Trainer
from hybridnn.errors import HybridnnError, SettingError
from hybridnn.training.records import EpochRecord
from reference.callbacks import Calling, Calls
from reference.cases import assert_arrays_close, assert_arrays_same

SAMPLES = 48


def noisy(part: int) -> tuple[Any, Any]:
    """Samples whose targets are mostly noise, so that the test loss rises after some epochs."""
    random = np.random.default_rng(part)
    x = random.standard_normal((SAMPLES, 5))
    return x, np.stack([x[:, 0], x[:, 1]], axis=1) + random.standard_normal((SAMPLES, 2))


def make(grid: ProcessGrid, **settings: Any) -> Trainer:
    optimizer = SGD(lr=0.1, momentum=0.9)
    return Trainer(MLP([5, 16, 16, 2], "tanh"), optimizer, grid=grid, batch_size=12, dtype="float64", **settings)


def losses(grid: ProcessGrid, epochs: int, **settings: Any) -> list[float]:
    history = make(grid, **settings).fit(*noisy(0), epochs=epochs, validation=noisy(1))
    return [record.validation_loss or 0.0 for record in history.epochs]


def stop_by_definition(values: list[float], patience: int, min_delta: float) -> tuple[int, int]:
    """Best epoch, and the epoch after which the training ends: the values of `patience` epochs are no improvement."""
    best = 1
    for epoch, value in enumerate(values, 1):
        if value < values[best - 1] - min_delta:
            best = epoch
        elif epoch - best >= patience:
            return best, epoch
    return best, 0


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_the_order_of_calls_is_the_same_on_every_rank(comm: MPI.Intracomm) -> None:
    calls = Calls()
    trainer = make(ProcessGrid(comm, batch=comm.size), log_every=2)
    trainer.fit(*noisy(0), epochs=2, callbacks=[calls])
    of_epoch = [["epoch 1 begins", "step 2", "step 4", "epoch 1 ends"], ["epoch 2 begins", "step 6", "step 8"]]
    assert calls.names == ["train begins", *of_epoch[0], *of_epoch[1], "epoch 2 ends", "train ends"]
    assert_arrays_same(calls.weights, trainer.weights())


LAYOUTS = {
    "batch": ({"batch": 4}, {}),
    "model": ({"batch": 2, "model": 2}, {}),
    "1f1b": ({"pipeline": 2, "batch": 2}, {"method": "1f1b"}),
    "pipedream": ({"pipeline": 2, "batch": 2}, {"method": "pipedream"}),
}


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(
    ("layout", "patience", "min_delta"),
    [("batch", 1, 0.0), ("model", 3, 0.0), ("1f1b", 2, 0.05), ("pipedream", 1, 0.0), ("pipedream", 3, 0.0)],
)
def test_the_best_epoch_is_restored_on_every_grid(comm, layout, patience, min_delta) -> None:
    axes, settings = LAYOUTS[layout]
    grid = ProcessGrid(comm, **axes)
    values = losses(grid, 12, **settings)
    best, stopped = stop_by_definition(values, patience, min_delta)
    assert 1 < best < stopped < 12
    stopping = EarlyStopping(patience=patience, min_delta=min_delta)
    trainer = make(grid, **settings)
    history = trainer.fit(*noisy(0), epochs=12, validation=noisy(1), callbacks=[stopping])
    assert (stopping.best_epoch, stopping.stopped_epoch, stopping.best) == (best, stopped, values[best - 1])
    assert len(history.epochs) == stopped
    shorter = make(grid, **settings)
    shorter.fit(*noisy(0), epochs=best, validation=noisy(1))
    assert_arrays_close(trainer.weights(), shorter.weights(), "weights", 0.0 if layout != "pipedream" else 1e-12)


def test_the_best_weights_are_restored_after_all_epochs_too() -> None:
    grid = ProcessGrid()
    values = losses(grid, 6)
    stopping = EarlyStopping(patience=100)
    trainer = make(grid)
    trainer.fit(*noisy(0), epochs=6, validation=noisy(1), callbacks=[stopping])
    assert stopping.stopped_epoch == 0
    assert trainer.evaluate(*noisy(1)).loss == min(values)


def test_a_larger_accuracy_is_better_and_epochs_without_an_evaluation_do_not_count() -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 3)), random.integers(0, 2, 40)
    trainer = Trainer(MLP([3, 2]), SGD(lr=1e-9), evaluate_every=2)
    stopping = EarlyStopping("validation_accuracy", patience=2, restore_best_weights=False)
    trainer.fit(x, y, epochs=20, validation=(x, y), callbacks=[stopping])
    assert (stopping.best_epoch, stopping.stopped_epoch) == (2, 6)


@pytest.mark.in_process(ranks=[2, 3])
def test_all_ranks_stop_if_one_wants_to(comm: MPI.Intracomm) -> None:
    trainer = make(ProcessGrid(comm))

    def stop(record: EpochRecord) -> None:
        trainer.stop_training |= record.epoch == 2 and comm.rank == comm.size - 1

    for callbacks, epochs in (([Calling(on_epoch=stop)], 2), ([], 7)):  # the next fit begins anew
        assert len(trainer.fit(*noisy(0), epochs=5, callbacks=callbacks).epochs) == epochs


@pytest.mark.in_process(ranks=[2])
def test_ranks_with_other_callbacks_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(HybridnnError, match="callbacks"):
        make(ProcessGrid(comm)).fit(*noisy(0), epochs=1, callbacks=[Calls()] if comm.rank else [])


OF_CLASSES = ("accuracy", "roc_auc", "average_precision")


def test_early_stopping_without_its_value_is_refused() -> None:
    for monitor, validation in (("validation_loss", None), *((f"validation_{name}", noisy(1)) for name in OF_CLASSES)):
        with pytest.raises(SettingError, match=f"monitor = '{monitor}': the training has no such values"):
            make(ProcessGrid()).fit(*noisy(0), epochs=2, validation=validation, callbacks=[EarlyStopping(monitor)])
    trainer = make(ProcessGrid())
    with pytest.raises(SettingError, match="give fit validation samples"):
        trainer.fit(*noisy(0), epochs=2, callbacks=[EarlyStopping()])
    assert trainer.step == 0


@pytest.mark.in_process(ranks=[1, 2])
def test_the_rate_falls_on_a_plateau_and_is_a_function_of_the_step(comm: MPI.Intracomm) -> None:
    trainer = make(ProcessGrid(comm, batch=comm.size), log_every=1, schedule=LambdaLR(lambda step: 1 / (step + 1)))
    callbacks = [ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=100)]
    history = trainer.fit(*noisy(0), epochs=6, callbacks=callbacks)
    base = np.repeat([0.1, 0.1, 0.1, 0.05, 0.05, 0.025], 4)  # the first epoch is the best, and later ones gain nothing
    np.testing.assert_allclose([record.learning_rate for record in history.steps], base / np.arange(1, 25))


@pytest.mark.parametrize("function", [5, lambda step: -1])
def test_a_rate_that_is_no_function_of_the_step_is_refused(function: Any) -> None:
    with pytest.raises(SettingError, match="function"):
        make(ProcessGrid(), schedule=LambdaLR(function)).fit(*noisy(0), epochs=1)


def test_tensors_of_pytorch_are_weights() -> None:
    torch = pytest.importorskip("torch")
    trainer = make(ProcessGrid(), seed=1)
    tensors = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in trainer.weights().items()}
    other = make(ProcessGrid(), initial_weights=tensors)
    assert_arrays_same(other.weights(), trainer.weights())
    other.load_weights({name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert_arrays_close(other.weights(), trainer.weights(), "rounded", 0.01)
