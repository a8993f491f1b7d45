"""Pipelines of one rank per stage train the weights of the serial replay of their method, to 1e-10 in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hybridnn import ProcessGrid
from reference.cases import OPTIMIZERS, assert_arrays_same, run
from reference.pipeline_cases import (
    ADAM,
    DELAYED_CASES,
    EXACT_NAMES,
    FEW,
    MOMENTUM,
    TRAININGS,
    UNEVEN,
    PipelineCase,
    check_pipelined,
    exact_cases,
    run_pipelined,
)

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = [2, 4]
"""On three stages, every method runs in `test_no_method_needs_sends_that_return_before_they_are_received`."""


def cases(stages: int) -> dict[str, PipelineCase]:
    """Every method."""
    return {**DELAYED_CASES, **exact_cases(stages)}


def uneven(it: PipelineCase, stages: int) -> tuple[int, ...]:
    """Layers of each part. A chunk of no layers is refused, so two on four ranks leave but one partition of eight."""
    return (1,) * (2 * stages - 1) + (9 - 2 * stages,) if it.chunks == 2 else UNEVEN[stages]


def partitions_in_turn(name: str, stages: int) -> Iterator[PipelineCase]:
    """Every training by a method, on layers split evenly or not: what it has evenly, the next method has not."""
    methods = cases(stages)
    turn = list(methods).index(name)
    for number, training in enumerate(TRAININGS.values()):
        partition = uneven(methods[name], stages) if (number + turn) % 2 else "uniform"
        yield replace(methods[name], case=training, partition=partition)


@pytest.mark.parametrize("name", EXACT_NAMES)
@pytest.mark.parametrize("training", TRAININGS)
def test_one_stage_is_serial_training_to_the_last_bit(name: str, training: str) -> None:
    it = replace(cases(1)[name], case=TRAININGS[training])
    if it.microbatches is not None:
        it = replace(it, microbatches=1)  # sums over several are rounded otherwise
    grid = ProcessGrid()
    serial, pipelined = run(it.case, grid), run_pipelined(it, grid)
    assert_arrays_same(pipelined.weights(), serial.weights())
    for slot, arrays in serial.optimizer_slots().items():
        assert_arrays_same(pipelined.optimizer_slots()[slot], arrays)
    losses, expected = ([record.train_loss for record in it.history.epochs] for it in (pipelined, serial))
    assert losses == expected


@pytest.mark.parametrize("name", EXACT_NAMES)
def test_one_stage_trains_as_the_replay(name: str) -> None:
    check_pipelined(cases(1)[name], ProcessGrid())


@pytest.mark.in_process(ranks=RANKS)
@pytest.mark.parametrize("name", DELAYED_CASES)
def test_delayed_methods_train_as_their_replays(comm: MPI.Intracomm, name: str) -> None:
    for it in partitions_in_turn(name, comm.size):
        check_pipelined(it, ProcessGrid(comm, pipeline=comm.size))


@pytest.mark.in_process(ranks=RANKS)
@pytest.mark.parametrize("name", EXACT_NAMES)
def test_exact_methods_train_as_one_process(comm: MPI.Intracomm, name: str) -> None:
    for it in partitions_in_turn(name, comm.size):
        check_pipelined(it, ProcessGrid(comm, pipeline=comm.size))


@pytest.mark.in_process(ranks=[3])
def test_every_optimizer_trains_as_its_replay(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for optimizer in OPTIMIZERS:
        for it in DELAYED_CASES.values():
            if it.method != "spectrain" or optimizer not in ("plain", "decay", "rmsprop"):  # these predict no weights
                check_pipelined(replace(it, case=replace(MOMENTUM, optimizer=optimizer)), grid)


@pytest.mark.in_process(ranks=[2, 3])
def test_minibatches_of_one_sample_train_as_any_other(comm: MPI.Intracomm) -> None:
    grid, case = ProcessGrid(comm, pipeline=comm.size), replace(MOMENTUM, batch_size=1, samples=6)
    for it in (*DELAYED_CASES.values(), PipelineCase("1f1b"), PipelineCase("gpipe", microbatches=2)):
        check_pipelined(replace(it, case=case), grid)


@pytest.mark.in_process(ranks=[2, 3, 4])
@pytest.mark.parametrize("name", DELAYED_CASES)
def test_epochs_of_many_minibatches_repeat_a_part_of_their_schedule(comm: MPI.Intracomm, name: str) -> None:
    grid, case = ProcessGrid(comm, pipeline=comm.size), replace(MOMENTUM, batch_size=2, samples=89, epochs=2)
    check_pipelined(replace(DELAYED_CASES[name], case=case), grid)


@pytest.mark.in_process(ranks=[2, 4])
def test_a_minibatch_may_have_fewer_samples_than_microbatches(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for method in ("gpipe", "1f1b", "zb-h1"):
        for microbatches, training in ((5, ADAM), (3, FEW), (20, MOMENTUM)):
            check_pipelined(PipelineCase(method, training, microbatches), grid)
    check_pipelined(PipelineCase("interleaved", ADAM, 2 * comm.size, chunks=2), grid)


@pytest.mark.in_process(ranks=RANKS)
def test_pipedream_and_ddg_train_the_same_to_the_last_bit(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for training in TRAININGS.values():
        first, second = (run_pipelined(PipelineCase(method, training), grid) for method in ("pipedream", "ddg"))
        assert_arrays_same(first.weights(), second.weights())
        losses, expected = ([record.train_loss for record in it.history.epochs] for it in (first, second))
        assert losses == expected


@pytest.mark.in_process(ranks=RANKS)
def test_the_same_pipeline_twice_is_bit_identical(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for it in cases(comm.size).values():
        first, second = run_pipelined(it, grid, "float32"), run_pipelined(it, grid, "float32")
        assert_arrays_same(first.weights(), second.weights())
        for slot, arrays in first.optimizer_slots().items():
            assert_arrays_same(arrays, second.optimizer_slots()[slot])
        assert [r.train_loss for r in first.history.epochs] == [r.train_loss for r in second.history.epochs]


@pytest.mark.in_process(ranks=[2, 3, 4])
def test_no_method_needs_sends_that_return_before_they_are_received(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm, pipeline=comm.size)
    for it in cases(comm.size).values():
        for training, partition in ((MOMENTUM, "uniform"), (FEW, uneven(it, comm.size))):
            check_pipelined(replace(it, case=training, partition=partition, synchronous_sends=True), grid)
