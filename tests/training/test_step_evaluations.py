"""Evaluations: metrics against closed forms, and between steps against trainings that stop there."""

import json
from dataclasses import asdict, replace
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hybridnn
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.in_process import run_ranks
from hybridnn.runs.run_files import read_run
from hybridnn.training.records import EvaluationRecord
from reference import network as net
from reference.callbacks import Calling
from reference.cases import assert_arrays_close, assert_arrays_same, assert_close, data
from reference.network import Array
from reference.pipeline_cases import DELAYED_CASES, MOMENTUM, expected_outcome, pipelined_trainer
from reference.sweeps import grids
from reference.trained_runs import REGRESSION, regression_file, train

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((45, 5)), RANDOM.standard_normal((45, 2))
TEST = X[:13], Y[:13] + 1


def trainer_on(comm: MPI.Intracomm, axis: str, every: int) -> Trainer:
    grid = ProcessGrid(comm, **{"batch": 1, axis: comm.size})
    model = MLP([5, 7, 6, 5, 2], "tanh")
    settings: dict[str, Any] = {"batch_size": 10, "dtype": "float64", "microbatches": 2, "grid": grid}
    return Trainer(model, SGD(0.05), evaluate_every_steps=every, log_every=2, **settings)


def stopping_after(step: int) -> Calling:
    return Calling(should_stop=lambda reached: reached.step == step)


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize("axis", ["batch", "model", "pipeline"])
def test_records_are_those_of_trainings_that_stop_there(comm: MPI.Intracomm, axis: str) -> None:
    """Five steps per epoch, evaluated every three: between steps, and after the last step of an epoch."""
    seen: list[EvaluationRecord] = []
    trainer = trainer_on(comm, axis, 3)
    history = trainer.fit(X, Y, epochs=3, validation=TEST, callbacks=[Calling(on_evaluated=seen.append)])
    assert [(record.step, record.epoch) for record in seen] == [(3, 1), (6, 2), (9, 2), (12, 3), (15, 3)]
    assert history.evaluations == seen
    for record in seen:
        stopped = trainer_on(comm, axis, 0)
        stopped.fit(X, Y, epochs=3, callbacks=[stopping_after(record.step)])
        test = stopped.evaluate(*TEST)
        assert (record.validation_loss, record.validation_r2) == (test.loss, test.r2)
        assert record.validation_accuracy is test.accuracy is None
    plain = trainer_on(comm, axis, 0)
    without = plain.fit(X, Y, epochs=3, validation=TEST)
    assert not without.evaluations
    assert [step.train_loss for step in history.steps] == [step.train_loss for step in without.steps]
    assert [step.bytes_sent for step in history.steps] == [step.bytes_sent for step in without.steps]
    assert_arrays_same(trainer.weights(), plain.weights())


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("drain_every", [1, 2, 3])
@pytest.mark.parametrize("name", DELAYED_CASES)
def test_stale_pipelines_evaluate_the_weights_of_the_step_on_every_stage(comm, name, drain_every) -> None:
    """Four steps per epoch, evaluated every three; the replay has the weights of every step."""
    it = replace(DELAYED_CASES[name], drain_every=drain_every, case=replace(MOMENTUM, epochs=3))
    stages = 4 if list(DELAYED_CASES).index(name) % 2 == drain_every % 2 else 2  # else two batch ranks per stage
    grid = ProcessGrid(comm, pipeline=stages)
    trainer, replayed = pipelined_trainer(it, grid, evaluate_every_steps=3), pipelined_trainer(it, grid)
    test = data(it.case, "test")
    history = trainer.fit(*data(it.case), epochs=3, validation=test)
    expected = expected_outcome(it, stages).step_weights
    assert [(record.step, record.epoch) for record in history.evaluations] == [(3, 1), (6, 2), (9, 3), (12, 3)]
    for record in history.evaluations:
        replayed.load_weights(expected[record.step - 1])
        assert_close(record.validation_loss, replayed.evaluate(*test).loss, f"{it}, step {record.step}")
    assert_arrays_close(trainer.weights(), expected[-1], str(it))


@pytest.mark.mpi(ranks=[4])
def test_copies_of_shared_weights_are_complete(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=2)
    case = replace(MOMENTUM, epochs=3, shared_replicas=True)
    it = replace(DELAYED_CASES["pipedream"], drain_every=3, case=case)
    trainer, replayed = pipelined_trainer(it, grid, evaluate_every_steps=1), pipelined_trainer(it, grid)
    history = trainer.fit(*data(case), epochs=3, validation=data(case, "test"))
    for record, weights in zip(history.evaluations, expected_outcome(it, 2).step_weights, strict=True):
        replayed.load_weights(weights)
        assert_close(record.validation_loss, replayed.evaluate(*data(case, "test")).loss, f"step {record.step}")


def test_runs_record_evaluations_as_moments(tmp_path: Path) -> None:
    source = {"data": {"file": str(regression_file(tmp_path / "data.npz"))}}
    training = {**REGRESSION["training"], "evaluate_every_steps": 2}
    train(tmp_path / "run", **source, model=REGRESSION["model"], training=training)
    run = read_run(tmp_path / "run")
    steps = [record.step for record in run.evaluations]
    assert steps == list(range(2, run.epochs[-1].step + 1, 2))
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == steps
    moments = run.moments
    assert [moment.epochs for moment in moments] == [
        step / run.steps_per_epoch for step in sorted({*steps, *(epoch.step for epoch in run.epochs)})
    ]
    assert [moment.seconds for moment in moments] == sorted(moment.seconds for moment in moments)
    losses = {record.step: record.validation_loss for record in (*run.evaluations, *run.epochs)}
    assert [moment.loss for moment in moments] == [losses[step] for step in sorted(losses)]


def test_a_record_of_a_run_that_stops_is_kept_once() -> None:
    one, two = (Trainer(MLP([5, 7, 2]), batch_size=10, evaluate_every_steps=2) for _ in range(2))
    whole = one.fit(X, Y, epochs=2, validation=TEST)
    for step in (4, 99):
        two.fit(X, Y, epochs=3 - two.progress.epoch, validation=TEST, callbacks=[stopping_after(step)])
    assert [asdict(record) for record in two.history.evaluations] == [asdict(record) for record in whole.evaluations]


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


@pytest.mark.in_process(ranks=[1, 3])
@pytest.mark.parametrize("offset", [1e6, -1e6, 1e9])
def test_r2_of_targets_far_from_zero_does_not_cancel(comm: MPI.Intracomm, offset: float) -> None:
    random = np.random.default_rng(1)
    noise = random.standard_normal((200, 1))
    targets = noise + offset
    predictions = targets + 0.3 * random.standard_normal((200, 1))
    found = hands_on(1, hybridnn.ProcessGrid(comm)).evaluate(predictions, targets).r2
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
    labels = np.where(np.arange(23) % 3, predictions.argmax(axis=1), random.integers(0, 6, 23))
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
