"""The promises of docs/design.md, one test for each, by name and number.

Further tests are in ``tests/training``: ``test_cases.py`` for promises 1 to 5 and 7, ``test_gradients.py`` for 1,
``test_step_evaluations.py`` for 6, ``test_trainer.py`` for 9 and 10.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import HybridnnError, NonFiniteLossError
from hybridnn.training.records import StepRecord
from mpi_runner.launch import JobResult
from mpi_runner.slowness import deadline
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_same
from reference.network import Weights
from reference.pipeline_cases import DELAYED_CASES, UNEVEN
from reference.ranks import allgather_objects
from reference.sweeps import DISTRIBUTIONS, SPLITS, grids, sizes_for
from reference.training_cases import Grid, TrainingCase, run_training_case

SIZES = (5, 13, 7, 11, 6)
MANY_LAYERS = (7, 7, 9, 9, 9, 12, 12, 12, 12, 5)
"""They alternate between the buffers, and minibatches of several sizes change the views of them."""

LAYOUTS = [*zip(((1, 1), (4, 2), (4, 4), (4, 1)), (*SPLITS, *SPLITS), (*DISTRIBUTIONS, "local"), strict=True)]


def promised() -> Iterator[tuple[str, TrainingCase]]:
    """Trainings that show the first seven promises, with the promise of each."""
    for samples, batch_size in ((11, 5), (7, 3), (3, 8), (1, 1)):
        case = Case(SIZES, samples > 5, samples=samples, batch_size=batch_size, epochs=1)
        yield "1, one gradient", TrainingCase(4, Grid(model=2), case, every_gradient=True)
    for (ranks, model), split, distribution in LAYOUTS:
        case = Case(SIZES, optimizer="adam", schedule="cosine", model_split=split, distribution=distribution)
        yield "2, the layout does not change the training", TrainingCase(ranks, Grid(model=model), case)
        single = replace(case, clip_norm=0.5)
        yield "4, float32 stays float32", TrainingCase(ranks, Grid(model=model), single, "float32", 1e-3)
    for it in DELAYED_CASES.values():
        yield "3, the staleness is the documented one", TrainingCase(3, Grid(3), replace(it, partition=UNEVEN[3]))
    for split, residual, overlap in product(SPLITS, (True, False), (True, False)):
        case = Case(MANY_LAYERS, residual=residual, model_split=split, epochs=2, samples=23, overlap=overlap)
        yield "5, no array is overwritten", TrainingCase(4, Grid(model=2), case, every_gradient=True)
    for batch_size, classification in product((1, 5, 22, 23, 40), (True, False)):
        case = Case(SIZES, classification, batch_size=batch_size, epochs=1)
        yield "6, evaluation counts every sample once", TrainingCase(4, Grid(model=2), case)
    for model, split in product((1, 2, 4), SPLITS):
        sizes = sizes_for(model, split, True, True)
        case = Case(sizes, residual=True, model_split=split, optimizer="plain", clip_norm=0.01, samples=10, epochs=1)
        yield "7, a norm counts every parameter once", TrainingCase(4, Grid(model=model), case)


PROMISED = list(promised())


@pytest.mark.parametrize("promise", dict.fromkeys(promise for promise, _ in PROMISED))
def test_promises_1_to_7(promise: str) -> None:
    for it in (it for shown, it in PROMISED if shown == promise):
        run_training_case(it)


RAISE_ON_ONE_RANK = """
import time
import numpy as np
from hybridnn import MLP, Callback, ProcessGrid, Trainer
grid = ProcessGrid(model=2)

class Raises(Callback):
    def on_train_batch_end(self, trainer, record):
        if record.step == 3 and grid.rank == 2:
            raise RuntimeError("an error of rank 2")

x = np.random.default_rng(0).standard_normal((400, 6))
trainer = Trainer(MLP([6, 16, 4]), grid=grid, batch_size=10, log_every=1)
trainer.fit(x, np.arange(400) % 4, epochs=1000, callbacks=[Raises()])
"""


def test_promise_8_a_rank_that_raises_ends_the_job_with_its_traceback(run_mpi: Callable[..., JobResult]) -> None:
    result = run_mpi(4, RAISE_ON_ONE_RANK, timeout=60)
    assert not result.timed_out
    assert result.returncode != 0
    assert result.seconds < deadline(10)
    assert "rank 2 of 4 failed" in result.stderr
    assert "RuntimeError: an error of rank 2" in result.stderr
    assert result.stderr.count("Traceback") == 1
    before_the_traceback = result.stderr[: result.stderr.index("Traceback")]
    assert "MPI_ABORT" not in before_the_traceback


@pytest.mark.in_process(ranks=[1, 4])
def test_promise_9_a_loss_that_is_not_finite_stops_every_rank_before_the_step(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 5)), random.standard_normal((40, 4))
    for grid in grids(comm):
        trainer = Trainer(MLP([5, 8, 4]), SGD(lr=1e12), grid=grid, batch_size=10, log_every=1)
        weights: list[Weights] = []

        def store(record: StepRecord, trainer: Trainer = trainer, weights: list[Weights] = weights) -> None:
            weights.append(trainer.weights())

        with pytest.raises(NonFiniteLossError) as caught:
            trainer.fit(x, y, epochs=100, callbacks=[Calling(on_step=store)])
        assert trainer.step == len(weights) > 0
        assert f"step {len(weights) + 1} " in str(caught.value)
        assert_arrays_same(trainer.weights(), weights[-1])
        assert all(np.isfinite(array).all() for array in weights[-1].values())
        messages = allgather_objects(comm, str(caught.value))
        assert len(set(messages)) == 1


@pytest.mark.in_process(ranks=[1, 3])
def test_promise_10_wrong_input_on_one_rank_is_refused_on_all_before_the_first_step(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((20, 5)), random.integers(0, 4, 20)
    broken = x.copy()
    broken[7, 2] = np.nan
    last = comm.rank == comm.size - 1
    wrong: list[tuple[Any, Any, str]] = [
        (broken if last else x, y, "nan"),
        (x, y + 1 if last else y, "label 4"),
        (x[:, :3] if last else x, y, "3 features"),
        (x, y[:15] if last else y, "15"),
    ]
    for samples, targets, fragment in wrong:
        trainer = Trainer(MLP([5, 8, 4]), grid=ProcessGrid(comm))
        before = trainer.weights()
        with pytest.raises(HybridnnError, match=fragment) as caught:
            trainer.fit(samples, targets, epochs=1)
        assert "\n" not in str(caught.value)
        assert len(set(allgather_objects(comm, str(caught.value)))) == 1
        assert trainer.step == 0
        assert_arrays_same(trainer.weights(), before)
