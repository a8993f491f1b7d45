"""Every process grid trains the weights of the reference, to 1e-10 in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from hybridnn import ProcessGrid
from hybridnn.parallel import gradient_reduction
from hybridnn.parallel.gradient_reduction import HOST_BUCKETS
from reference.cases import (
    Case,
    assert_arrays_close,
    assert_arrays_same,
    check_against_reference,
    local_data,
    make_trainer,
    reference,
    run,
)
from reference.messages import check_float32, float32_case, record_messages
from reference.sweeps import DISTRIBUTIONS, SPLITS, grid_shapes, grids, layouts, sizes_for, trainings

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = [2, 3, 4, 6, 8]


@pytest.mark.in_process(ranks=RANKS)
def test_every_layout_trains_as_the_reference(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for case in layouts((grid.batch, grid.model)):
            check_against_reference(case, grid)


@pytest.mark.in_process(ranks=RANKS)
def test_every_optimizer_and_task_trains_as_the_reference(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for case in trainings((grid.batch, grid.model)):
            check_against_reference(case, grid)


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("bucket_bytes", [1, 700])
def test_gradients_sent_in_many_buckets_train_as_the_reference(
    comm: MPI.Intracomm, bucket_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These networks are far smaller than a bucket is otherwise.
    monkeypatch.setattr(gradient_reduction, "HOST_BUCKETS", replace(HOST_BUCKETS, bucket_bytes=bucket_bytes))
    for grid in grids(comm):
        for case in trainings((grid.batch, grid.model)):
            check_against_reference(replace(case, shared_replicas=False), grid)


@pytest.mark.in_process(ranks=[2, 4])
def test_messages_in_pieces_train_as_the_reference(comm: MPI.Intracomm) -> None:
    for batch, model in grid_shapes(comm.size):
        grid = ProcessGrid(comm, batch=batch, model=model, message_limit=200)
        for split, distribution in product(SPLITS, DISTRIBUTIONS):
            for overlap in (True, False):
                case = Case(
                    (5, 13, 7, 11, 6),
                    model_split=split,
                    distribution=distribution,
                    overlap=overlap,
                    shared_replicas=False,
                )
                check_against_reference(case, grid)


@pytest.mark.in_process(ranks=[2, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_training_goes_on_where_it_stopped(comm: MPI.Intracomm, shuffle: bool) -> None:
    grid = ProcessGrid(comm, model=comm.size if comm.size < 4 else 2)
    case = Case(sizes=(5, 13, 9, 11, 8), optimizer="adam")
    once, twice = (make_trainer(case, grid, shuffle=shuffle) for _ in range(2))
    once.fit(*local_data(case, grid), epochs=3)
    twice.fit(*local_data(case, grid), epochs=1)
    twice.fit(*local_data(case, grid), epochs=2)
    assert_arrays_same(once.weights(), twice.weights())
    assert [record.epoch for record in twice.history.epochs] == [1, 2, 3]


@pytest.mark.in_process(ranks=[2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_same_layout_twice_is_bit_identical(comm: MPI.Intracomm, overlap: bool) -> None:
    for grid in grids(comm):
        for split in SPLITS:
            case = Case(
                sizes_for(grid.model, split, True, True),
                residual=True,
                optimizer="adamw",
                model_split=split,
                overlap=overlap,
                shared_replicas=False if overlap else "auto",
            )
            first, second = run(case, grid, "float32"), run(case, grid, "float32")
            assert_arrays_same(first.weights(), second.weights())
            for slot, arrays in first.optimizer_slots().items():
                assert_arrays_same(arrays, second.optimizer_slots()[slot])
            assert [r.train_loss for r in first.history.steps] == [r.train_loss for r in second.history.steps]


@pytest.mark.in_process(ranks=[1, 2, 4])
def test_float32_stays_float32_in_memory_and_in_messages(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record_messages(monkeypatch)
    for grid in grids(comm):
        for split, distribution, classification in product(SPLITS, DISTRIBUTIONS, (True, False)):
            check_float32(grid, float32_case(grid, split, distribution, classification), seen)


@pytest.mark.in_process(ranks=[2, 3, 4])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_layers_with_fewer_outputs_than_model_ranks_train_as_the_reference(comm: MPI.Intracomm, optimizer: str) -> None:
    """Some model ranks have no rows of layers of width 1, 2 and 3."""
    for grid in grids(comm):
        for split, shared, overlap in product(SPLITS, (False, "auto"), (False, True)):
            case = Case(
                (5, 13, 2, 3, 1),
                classification=False,
                optimizer=optimizer,
                model_split=split,
                shared_replicas=shared,
                overlap=overlap,
                clip_norm=0.1 if overlap else None,
            )
            check_against_reference(case, grid)
    for sizes, split in product(((5, 3, 3, 3, 2), (5, 1, 1, 1, 2)), SPLITS):
        case = Case(sizes, residual=True, optimizer=optimizer, model_split=split)
        check_against_reference(case, ProcessGrid(comm, model=comm.size))


@pytest.mark.in_process(ranks=[2, 3, 4])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:])
def test_sent_minibatches_need_data_on_rank_0_alone(comm: MPI.Intracomm, distribution: str) -> None:
    for grid in grids(comm):
        case = Case(sizes=(5, 13, 7, 11, 4), distribution=distribution)
        x, y = local_data(case, grid)
        assert (x is None) == (grid.rank != 0)
        trainer = make_trainer(case, grid)
        trainer.fit(x, y, epochs=case.epochs, validation=(x, y))
        assert_arrays_close(trainer.weights(), reference(case).weights, f"{case} on {grid!r}")
        assert trainer.evaluate(x, y).samples == case.samples


@pytest.mark.in_process(ranks=[2, 4])
def test_weights_handed_in_are_split_and_come_back_whole(comm: MPI.Intracomm) -> None:
    for grid in grids(comm):
        for split in SPLITS:
            case = Case(sizes_for(grid.model, split, False, True), model_split=split, seed=3)
            other = reference(Case(case.sizes, seed=8)).weights
            trainer = make_trainer(case, grid, initial_weights=other)
            assert_arrays_same(trainer.weights(), other)
            trainer.load_weights(reference(case).weights)
            assert_arrays_same(trainer.weights(), reference(case).weights)
