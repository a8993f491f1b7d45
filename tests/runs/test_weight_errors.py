"""Recorded errors of stale and of predicted weights, against the weights of every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import SettingError
from hybridnn.runs.callbacks import WeightErrors
from reference.callbacks import Calling
from reference.cases import assert_arrays_same

if TYPE_CHECKING:
    from mpi4py import MPI

    from hybridnn.nn.kernels import HostArray

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((60, 5)), RANDOM.standard_normal((60, 2))


def root_mean_square(a: HostArray, b: HostArray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


@pytest.mark.in_process(ranks=[1, 2, 4])
@pytest.mark.parametrize("axis", ["batch", "model", "pipeline"])
def test_errors_follow_from_the_weights_of_every_step(comm: MPI.Intracomm, axis: str) -> None:
    """With a constant rate, s updates ahead of W is W + s (W - W before the last update)."""
    grid = ProcessGrid(comm, **{"batch": 1, axis: comm.size})
    weights: list[HostArray] = []
    trainer = Trainer(MLP([5, 7, 6, 5, 2], "tanh"), SGD(0.05), grid=grid, batch_size=10, dtype="float64", log_every=1)

    def note(record: object) -> None:
        weights.append(np.concatenate([array.ravel() for _, array in sorted(trainer.weights().items())]))

    note(None)
    history = trainer.fit(X, Y, epochs=2, callbacks=[WeightErrors(trainer, 3), Calling(on_step=note)])
    for number, record in enumerate(history.steps, 1):
        distances = range(1, min(3, number - 1) + 1)
        stale = [root_mean_square(weights[number], weights[number - s]) for s in distances]
        predicted = [
            root_mean_square(weights[number], weights[number - s] + s * (weights[number - s] - weights[number - s - 1]))
            for s in distances
        ]
        np.testing.assert_allclose(record.stale_error, stale, rtol=1e-9)
        np.testing.assert_allclose(record.predicted_error, predicted, rtol=1e-9)
    assert len(history.steps[-1].stale_error) == 3


def test_weights_are_those_of_a_training_without_the_record() -> None:
    plain, recorded = (Trainer(MLP([5, 7, 2]), Adam(), batch_size=10) for _ in range(2))
    plain.fit(X, Y, epochs=2)
    recorded.fit(X, Y, epochs=2, callbacks=[WeightErrors(recorded, 2)])
    assert_arrays_same(plain.weights(), recorded.weights())
    assert all(not record.stale_error for record in plain.history.steps)


def test_optimizers_without_prediction_are_refused() -> None:
    with pytest.raises(SettingError, match=r"training\.weight_error = 1: .* an optimizer that predicts"):
        WeightErrors(Trainer(MLP([5, 7, 2]), SGD(momentum=0.0)), 1)


@pytest.mark.in_process(ranks=[2])
def test_stale_pipelines_are_refused(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2)
    with pytest.raises(SettingError, match=r"training\.weight_error = 1: above 0 needs an exact method"):
        WeightErrors(Trainer(MLP([5, 7, 2]), grid=grid, method="pipedream"), 1)
