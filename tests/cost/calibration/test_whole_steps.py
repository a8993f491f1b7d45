"""Corrections by steps of all ranks: what is timed, and fits to steps whose costs are known."""

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import ProcessGrid
from hybridnn.cost.calibration.computation import StepCase, StepSample, StepTime
from hybridnn.cost.calibration.whole_steps import correct, measure_whole_steps, slower
from hybridnn.cost.machine import Machine
from hybridnn.cost.prediction.predict import epoch_seconds, predict
from hybridnn.runs.step_timer import TrainingTimer
from reference.machines import make_machine

STEPS = 20
COST = {"ranks": 2, "segments": [{"alpha_seconds": 7e-6, "beta_seconds_per_byte": 4e-10}]}
COLLECTIVES = [{"operation": name, "algorithm": "ring", **COST} for name in ("allreduce", "allgather")]
APART = make_machine(alpha=5e-6, beta=3e-10, multiply_add=2e-11, call=3e-6, collectives=COLLECTIVES)


def with_compute(machine: Machine, **changed: object) -> Machine:
    (compute,) = machine.compute
    return machine.model_copy(update={"compute": (compute.model_copy(update=changed),)})


def steps_on(machine: Machine, comm: MPI.Intracomm) -> list[StepSample]:
    """Steps of random networks that take as long as they are predicted to take on that machine."""

    def time(case: StepCase) -> StepTime:
        seconds = epoch_seconds(replace(case.workload, samples=STEPS * case.batch_size), case.layout, machine)
        kinds = predict(case.workload, case.layout, machine).instructions
        return StepTime(seconds / STEPS, kinds, 1, STEPS)

    return measure_whole_steps(ProcessGrid(comm), 0.2, 0, time)


@pytest.mark.in_process(ranks=[2])
def test_known_corrections_are_found(comm: MPI.Intracomm) -> None:
    machine = with_compute(APART, busy_ranks=2)
    # In steps, passes take 1.2 times as long, messages 1.8 times, and collectives 1.3 times.
    (compute,) = machine.compute
    passes = {
        name: getattr(compute, name).model_copy(update={"call_seconds": 3.6e-6, "multiply_add_seconds": 2.4e-11})
        for name in ("forward", "input_gradient", "weight_gradient")
    }
    true = slower(with_compute(machine, **passes), 1.8, 1.3)
    samples = steps_on(true, comm)
    found = correct(machine, samples)
    assert found.inside_node.seconds(10**5) == pytest.approx(true.inside_node.seconds(10**5), rel=0.02)
    for cost, expected in zip(found.collectives, true.collectives, strict=True):
        assert cost.seconds(10**5, 2) == pytest.approx(expected.seconds(10**5, 2), rel=0.02)
    for name, cost in passes.items():
        assert getattr(found.compute[0], name).seconds(200, 300, 40, cached=True) == pytest.approx(
            cost.seconds(200, 300, 40, cached=True), rel=0.02
        )
    assert found.about["in_steps"].startswith("messages x 1.8")
    errors = [
        epoch_seconds(replace(case.workload, samples=STEPS * case.batch_size), case.layout, found)
        / STEPS
        / time.seconds
        - 1
        for case, time in samples
    ]
    assert np.abs(errors).max() < 0.02


@pytest.mark.in_process(ranks=[2])
def test_one_busy_rank_keeps_its_costs(comm: MPI.Intracomm) -> None:
    found = correct(APART, steps_on(slower(APART, 1.5, 1.0), comm))
    assert found.compute == APART.compute
    assert found.inside_node.segments[0].alpha_seconds == pytest.approx(1.5 * 5e-6, rel=0.02)


def test_links_between_nodes_keep_what_was_measured() -> None:
    spanning = [{**COLLECTIVES[0], "spans_nodes": spans} for spans in (False, True)]
    machine = make_machine(alpha=5e-6, nodes=2, collectives=spanning)
    found = slower(machine, 1.5, 2.0)
    assert found.between_nodes == machine.between_nodes
    assert found.inside_node.seconds(0) == pytest.approx(7.5e-6)
    assert [cost.seconds(0, 2) / machine.collectives[0].seconds(0, 2) for cost in found.collectives] == [2.0, 1.0]


@pytest.mark.mpi(ranks=[2])
def test_steps_of_all_ranks_are_timed(comm: MPI.Intracomm) -> None:
    samples = measure_whole_steps(ProcessGrid(comm), 0.1, 0, TrainingTimer())
    grids = {case.layout.stages for case, _ in samples}
    assert grids >= {((2, 1),), ((1, 2),), ((1, 1), (1, 1))}
    assert any(case.layout.shared_replicas for case, _ in samples)
    for _, time in samples:
        assert {"forward", "update", "loss"} <= set(time.computing)
        assert 0 < sum(time.computing.values()) < time.seconds
    assert comm.allgather([time.seconds for _, time in samples]) == [[time.seconds for _, time in samples]] * 2
