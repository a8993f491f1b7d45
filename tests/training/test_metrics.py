"""Test metrics against closed forms, with a network that returns its inputs."""

from __future__ import annotations

from math import fsum
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hybridnn
from hybridnn.in_process import run_ranks
from reference import network as net
from reference.network import Array
from reference.sweeps import grids


def hands_on(
    outputs: int, grid: hybridnn.ProcessGrid | None = None, batch_size: int = 7, dtype: str = "float64", **settings: Any
) -> hybridnn.Trainer:
    """A linear network whose weights are the identity."""
    weights = {"layers.0.weight": np.eye(outputs), "layers.0.bias": np.zeros(outputs)}
    model = hybridnn.MLP([outputs, outputs])
    return hybridnn.Trainer(model, grid=grid, batch_size=batch_size, dtype=dtype, initial_weights=weights, **settings)


def r2(predictions: Array, targets: Array) -> float:
    """Of one output, with sums that do not round."""
    mean = fsum(targets) / len(targets)
    residual = fsum((t - p) ** 2 for t, p in zip(targets.tolist(), predictions.tolist(), strict=True))
    return 1 - residual / fsum((t - mean) ** 2 for t in targets.tolist())


@pytest.mark.parametrize("batch_size", [1, 2, 7, 50, 51])
def test_r2_is_the_mean_over_the_outputs(batch_size: int) -> None:
    random = np.random.default_rng(0)
    targets = random.standard_normal((50, 3)) * (1, 10, 0.1)
    predictions = targets + random.standard_normal((50, 3)) * (0.1, 5, 0.2)
    metrics = hands_on(3, batch_size=batch_size).evaluate(predictions, targets)
    expected = [r2(p, t) for p, t in zip(predictions.T, targets.T, strict=True)]
    assert min(expected) < 0 < max(expected)
    assert metrics.r2 == pytest.approx(np.mean(expected), rel=1e-12)
    assert metrics.loss == pytest.approx(np.mean((predictions - targets) ** 2), rel=1e-12)
    assert metrics.samples == 50


@pytest.mark.parametrize("offset", [1e6, -1e6, 1e9])
def test_r2_of_targets_far_from_zero_does_not_cancel(offset: float) -> None:
    random = np.random.default_rng(1)
    noise = random.standard_normal((200, 1))
    targets = noise + offset
    predictions = targets + 0.3 * random.standard_normal((200, 1))
    found = hands_on(1).evaluate(predictions, targets).r2
    assert found == pytest.approx(r2(predictions[:, 0], targets[:, 0]), rel=1e-6 * abs(offset) / 1e6)


def test_r2_in_float32_is_summed_in_float64() -> None:
    random = np.random.default_rng(2)
    targets = (random.standard_normal((20000, 1)) + 1000).astype(np.float32)
    predictions = targets + np.float32(0.1) * random.standard_normal((20000, 1)).astype(np.float32)
    found = hands_on(1, batch_size=500, dtype="float32").evaluate(predictions, targets).r2
    assert found == pytest.approx(r2(predictions[:, 0].astype(float), targets[:, 0].astype(float)), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 2.0, 0.1, 1e6 / 3])
@pytest.mark.parametrize("samples", [2, 3, 10, 23])
def test_r2_of_a_constant_target(value: float, samples: int) -> None:
    # Nothing varies, so nothing can be explained: 1 where it is met exactly, else 0.
    targets = np.full((samples, 1), value)
    assert hands_on(1).evaluate(targets, targets).r2 == 1.0
    assert hands_on(1).evaluate(targets + 0.5, targets).r2 == 0.0


@pytest.mark.parametrize("pipeline", [1, 2])
def test_one_sample_has_no_r2_and_steers_nothing(pipeline: int) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 8, 2))

    def on_rank(comm: MPI.Intracomm) -> None:
        trainer = hybridnn.Trainer(hybridnn.MLP([2, 3, 2]), grid=hybridnn.ProcessGrid(comm, pipeline=pipeline))
        stopping = hybridnn.EarlyStopping("validation_r2", patience=1)
        trainer.fit(x, y, epochs=4, validation=(x[:1], y[:1]), callbacks=[stopping])
        assert (stopping.best_epoch, len(trainer.history.epochs)) == (0, 4)
        assert trainer.evaluate(x[:1], y[:1]).r2 is None
        assert trainer.evaluate(x[:2], y[:2]).r2 is not None

    with pytest.warns(UserWarning, match="the validation data are a single sample, of which there is no R²") as found:
        run_ranks(2, on_rank)
    assert [warning.filename for warning in found] == [__file__]


def test_accuracy_counts_the_largest_output() -> None:
    logits = np.array([[3, 1, 2], [0, 5, 5.1], [1, 0, -1], [-3, -2, -4], [0, 0, 1e9]])
    found = hands_on(3, batch_size=2).evaluate(logits, np.array([0, 1, 0, 1, 2]))
    assert found.accuracy == 4 / 5
    assert found.r2 is None
    losses = [-net.log_softmax(row)[label] for row, label in zip(logits, [0, 1, 0, 1, 2], strict=True)]
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-13)


@pytest.mark.in_process(ranks=[1, 2, 3])
@pytest.mark.parametrize("step", [1e-9, 0.5, 2.0])
def test_ranking_of_two_classes_is_that_of_scikit_learn(comm: MPI.Intracomm, step: float) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(3)
    labels = (random.random(60) < 0.3).astype(int)
    margins = np.round((random.standard_normal(60) + labels) / step) * step  # the larger the step, the more are equal
    trainer = hands_on(2, hybridnn.ProcessGrid(comm), batch_size=7)
    found = trainer.evaluate(np.stack([0 * margins, margins], axis=1), labels)
    assert found.roc_auc == pytest.approx(metrics.roc_auc_score(labels, margins), rel=1e-13)
    assert found.average_precision == pytest.approx(metrics.average_precision_score(labels, margins), rel=1e-13)
    one_class = trainer.evaluate(np.zeros((5, 2)), np.ones(5, int))
    assert (one_class.roc_auc, one_class.average_precision) == (None, None)


@pytest.mark.in_process(ranks=[1, 3, 5])
def test_every_sample_counts_once_for_every_grid_and_minibatch(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(3)
    targets = random.standard_normal((23, 6))
    predictions = targets + random.standard_normal((23, 6))
    labels = random.integers(0, 6, 23)
    best = np.mean([r2(p, t) for p, t in zip(predictions.T, targets.T, strict=True)])
    for grid in grids(comm):
        for samples, batch_size in ((23, 1), (23, 4), (23, 10), (23, 22), (23, 23), (23, 100), (2, 4), (1, 7)):
            trainer = hands_on(6, grid, batch_size)
            found = trainer.evaluate(predictions[:samples], targets[:samples])
            assert found.samples == samples
            assert found.loss == pytest.approx(np.mean((predictions - targets)[:samples] ** 2), rel=1e-13)
            assert samples < 23 or found.r2 == pytest.approx(best, rel=1e-13)
            judged = hands_on(6, grid, batch_size).evaluate(predictions[:samples], labels[:samples])
            assert judged.accuracy == net.accuracy(predictions[:samples], labels[:samples])


@pytest.mark.in_process(ranks=[1, 3, 5])
def test_predictions_come_in_the_order_of_the_samples(comm: MPI.Intracomm) -> None:
    x = np.arange(46.0).reshape(23, 2)
    for grid in grids(comm):
        wide = np.hstack([x, -x, x + 0.5])
        for batch_size in (1, 4, 22, 23, 100):
            assert np.array_equal(hands_on(6, grid, batch_size).predict(wide), wide)
        assert hands_on(6, grid).predict(wide[:0]).shape == (0, 6)


@pytest.mark.in_process(ranks=[3])
def test_r2_far_from_zero_on_several_ranks(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(4)
    targets = random.standard_normal((100, 1)) + 1e6
    predictions = targets + 0.3 * random.standard_normal((100, 1))
    found = hands_on(1, hybridnn.ProcessGrid(comm)).evaluate(predictions, targets).r2
    assert found == pytest.approx(r2(predictions[:, 0], targets[:, 0]), rel=1e-6)
