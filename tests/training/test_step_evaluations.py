"""Evaluations between steps, against trainings that stop there and against the serial replay of stale pipelines."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.runs.run_files import read_run
from hybridnn.training.records import EvaluationRecord
from reference.callbacks import Calling
from reference.cases import assert_arrays_close, assert_close, data
from reference.pipeline_cases import DELAYED_CASES, MOMENTUM, expected_outcome, pipelined_trainer
from reference.trained_runs import REGRESSION, regression_file, train

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.standard_normal((45, 5)), RANDOM.standard_normal((45, 2))
TEST = X[:13], Y[:13] + 1


def trainer_on(comm: MPI.Intracomm, axis: str, every: int) -> Trainer:
    grid = ProcessGrid(comm, **{"batch": 1, axis: comm.size})
    model = MLP([5, 7, 6, 5, 2], "tanh")
    settings: dict[str, Any] = {"batch_size": 10, "dtype": "float64", "microbatches": 2, "grid": grid}
    return Trainer(model, SGD(0.05), evaluate_every_steps=every, log_every=2, **settings)


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
        stopped.fit(
            X, Y, epochs=3, callbacks=[Calling(should_stop=lambda reached, step=record.step: reached.step == step)]
        )
        test = stopped.evaluate(*TEST)
        assert (record.validation_loss, record.validation_accuracy, record.validation_r2) == (
            test.loss,
            test.accuracy,
            test.r2,
        )
    plain = trainer_on(comm, axis, 0)
    without = plain.fit(X, Y, epochs=3, validation=TEST)
    assert not without.evaluations
    assert [step.train_loss for step in history.steps] == [step.train_loss for step in without.steps]
    assert [step.bytes_sent for step in history.steps] == [step.bytes_sent for step in without.steps]
    assert_same_weights(trainer, plain)


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    found, expected = one.weights(), other.weights()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("drain_every", [1, 2, 3])
@pytest.mark.parametrize("name", DELAYED_CASES)
def test_stale_pipelines_evaluate_the_weights_of_the_step_on_every_stage(
    comm: MPI.Intracomm, name: str, drain_every: int
) -> None:
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
        two.fit(
            X,
            Y,
            epochs=3 - two.progress.epoch,
            validation=TEST,
            callbacks=[Calling(should_stop=lambda at, step=step: at.step == step)],
        )
    assert [asdict(record) for record in two.history.evaluations] == [asdict(record) for record in whole.evaluations]
