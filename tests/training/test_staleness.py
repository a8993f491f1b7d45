"""Diagnosis of staleness: distances and angles of every stage and step, against a serial replay with all versions."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid, StalenessDiagnosis
from hybridnn.errors import SettingError
from reference import network as net
from reference import pipelines
from reference.cases import assert_arrays_same, data, plan_of
from reference.network import Array, Weights
from reference.pipeline_cases import ADAM, DELAYED_CASES, MOMENTUM, ODD, PipelineCase, pipelined_trainer
from reference.pipelines import PARTS, Pipeline, Versions

NAMES = ("gradient_distance", "gradient_angle", "weight_distance", "used_error", "stale_error")
EXACT = {
    "gpipe": PipelineCase("gpipe", microbatches=3),
    "zb-h1": PipelineCase("zb-h1", microbatches=4),
    "interleaved": PipelineCase("interleaved", chunks=2),
}


def flat(weights: Weights, layers: range) -> Array:
    return np.concatenate([weights[f"layers.{layer}.{part}"].ravel() for layer in layers for part in PARTS])


def replayed(it: PipelineCase, stages: int) -> list[dict[str, list[float]]]:
    """The fields of every step; the newest weights are the last version of the replay, of all stages."""
    pipeline = Pipeline(it.method, pipelines.uniform(it.case.network.layers, stages), it.drain_every)
    steps, passes = list[dict[str, list[float]]](), pipelines.passes

    def noted(network: Any, method: Pipeline, versions: Versions, position: tuple[int, int], x: Array, y: Array) -> Any:
        loss, used = passes(network, method, versions, position, x, y)
        newest = versions.weights[-1]
        _, exact = net.gradients(network, newest, x, y)
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        for stage in range(stages):
            layers = method.layers_of(stage)
            g, right = flat(used, layers), flat(exact, layers)
            reads = [read(stage, *position) for read in (method.forward_read, method.backward_read)]
            forward, backward = (flat(versions.read(*read, layers), layers) for read in reads)
            chord = np.linalg.norm(g / np.linalg.norm(g) - right / np.linalg.norm(right))
            found["gradient_distance"].append(np.linalg.norm(g - right) / np.linalg.norm(right))
            found["gradient_angle"].append(2 * np.degrees(np.arcsin(chord / 2)))
            last = flat(versions.weights[max(0, position[0] - (stages - 1 - stage))], layers)
            weights = flat(newest, layers)
            distances = forward - backward, forward - weights, last - weights
            for name, distance in zip(NAMES[2:], distances, strict=True):
                found[name].append(np.linalg.norm(distance) / np.linalg.norm(weights))
        steps.append(found)
        return loss, used

    with patch.object(pipelines, "passes", noted):
        pipelines.train(it.case.network, plan_of(it.case), pipeline, *data(it.case))
    return steps


def check(it: PipelineCase, grid: ProcessGrid, expected: list[dict[str, list[float]]] | None) -> None:
    trainer, plain = (pipelined_trainer(it, grid) for _ in range(2))
    diagnosis = StalenessDiagnosis()
    histories = [
        one.fit(*data(it.case), epochs=it.case.epochs, callbacks=callbacks)
        for one, callbacks in ((trainer, [diagnosis]), (plain, []))
    ]
    assert_arrays_same(trainer.weights(), plain.weights())
    assert_arrays_same(trainer.gradients(), plain.gradients())
    losses, expected_losses = ([(step.step, step.train_loss) for step in history.steps] for history in histories)
    assert losses == expected_losses
    steps = diagnosis.steps
    assert [step.step for step in steps] == [step for step, _ in losses]
    assert len(steps) == it.case.epochs * -(-it.case.samples // it.case.batch_size)
    for number, step in enumerate(steps):
        for name in NAMES[:-1] if it.method == "pipedream-2bw" else NAMES:  # its last version depends on microbatches
            right = [0.0] * grid.pipeline if expected is None else expected[number][name]
            where = f"{it}, step {step.step}, {name}"
            np.testing.assert_allclose(getattr(step, name), right, rtol=1e-10, atol=1e-10, err_msg=where)


@pytest.mark.in_process(ranks=[2, 3, 4])
@pytest.mark.parametrize("method", DELAYED_CASES)
def test_distances_and_angles_are_those_of_the_replay(comm: MPI.Intracomm, method: str) -> None:
    for case in (MOMENTUM, ADAM):
        it = PipelineCase(method, case, comm.size if method == "pipedream-2bw" else None)
        check(it, ProcessGrid(comm, pipeline=comm.size), replayed(it, comm.size))


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("method", EXACT)
def test_exact_methods_have_no_distances(comm: MPI.Intracomm, method: str) -> None:
    it = EXACT[method]
    it = replace(it, microbatches=2 * comm.size if it.chunks == 2 else it.microbatches)
    check(it, ProcessGrid(comm, pipeline=comm.size), None)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(("axis", "shared"), [("batch", True), ("batch", False), ("model", "auto")])
def test_stages_of_several_ranks(comm: MPI.Intracomm, axis: str, shared: bool | str) -> None:
    it = PipelineCase("vanilla", replace(ODD, shared_replicas=shared), drain_every=2)
    check(it, ProcessGrid(comm, pipeline=2, **{axis: 2}), replayed(it, 2))


@pytest.mark.mpi(ranks=[2, 3])
def test_ranks_under_mpi(comm: MPI.Intracomm) -> None:
    it = PipelineCase("spectrain", MOMENTUM)
    check(it, ProcessGrid(comm, pipeline=comm.size), replayed(it, comm.size))


@pytest.mark.in_process(ranks=[2])
def test_only_logged_steps_of_the_trainings_that_are_given_it_are_measured(comm: MPI.Intracomm) -> None:
    it, diagnosis = PipelineCase("vanilla", MOMENTUM), StalenessDiagnosis()
    trainer = pipelined_trainer(it, ProcessGrid(comm, pipeline=2), log_every=3)
    trainer.fit(*data(it.case), epochs=2, callbacks=[diagnosis])
    measured = diagnosis.steps
    assert [step.step for step in measured] == [step.step for step in trainer.history.steps]
    assert measured[0].step == 3
    trainer.fit(*data(it.case), epochs=1)
    assert diagnosis.steps is measured


def test_a_training_without_stages_is_refused() -> None:
    trainer = pipelined_trainer(PipelineCase("sequential"), ProcessGrid())
    with pytest.raises(SettingError, match=r"parallel\.pipeline = 1: StalenessDiagnosis needs several stages"):
        trainer.fit(*data(MOMENTUM), epochs=1, callbacks=[StalenessDiagnosis()])
