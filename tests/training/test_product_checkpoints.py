"""Trainings without gradients in memory that stop, and go on from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridnn import ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.parallel.fused_update import FusedUpdateReplica
from hybridnn.training.epoch import StepPosition
from reference.cases import Case, assert_arrays_close, assert_arrays_same, data, make_trainer, reference
from reference.ranks import on_nodes

if TYPE_CHECKING:
    from mpi4py import MPI

CASE = Case(sizes=(16, 352, 352, 3), schedule="cosine", samples=31, epochs=3, model_split="alternating")
"""131,299 parameters: enough to be split in two."""

STOPS_AT = 6
"""The second step of the second epoch of four."""


def trainer_on(grid: ProcessGrid, case: Case = CASE) -> Trainer:
    trainer = make_trainer(case, grid)
    assert isinstance(trainer._engine.chunks[0].replica, FusedUpdateReplica)
    return trainer


def first_part(grid: ProcessGrid, folder: Path, case: Case = CASE) -> None:
    """Train up to the stop, and leave a checkpoint in the folder."""
    trainer = trainer_on(grid, case)
    writer = trainer.checkpoint_writer(folder, "numbers")

    def should_stop(reached: StepPosition) -> bool:
        if reached.step == STOPS_AT:
            writer.write(reached.progress())
        return reached.step == STOPS_AT

    trainer.fit(*data(case), epochs=case.epochs, should_stop=should_stop)
    assert trainer.step == STOPS_AT
    trainer.free()


def rest(grid: ProcessGrid, folder: Path, case: Case = CASE) -> Trainer:
    """Go on from the checkpoint to the end."""
    trainer = trainer_on(grid, case)
    checkpoint, problems = newest_valid(folder, grid.world)
    assert checkpoint is not None
    assert not problems
    trainer.restore(checkpoint)
    assert trainer.step == STOPS_AT
    trainer.fit(*data(case), epochs=case.epochs - trainer.progress.epoch + 1)
    return trainer


def first_ranks(comm: MPI.Intracomm, count: int) -> MPI.Intracomm | None:
    """The first ranks of a communicator, on these."""
    part = comm.Split(0 if comm.rank < count else 1, comm.rank)
    return part if comm.rank < count else None


GRIDS: dict[int, tuple[tuple[tuple[int, int], tuple[int, int]], ...]] = {
    3: (((3, 1), (2, 1)), ((2, 1), (3, 1)), ((1, 1), (3, 1)), ((3, 1), (1, 2))),
    4: (((2, 2), (3, 1)), ((1, 2), (2, 2)), ((4, 1), (1, 1))),
}
"""Batch and model ranks before and behind a checkpoint, by the ranks of the job."""


@pytest.mark.in_process(ranks=list(GRIDS))
def test_goes_on_with_other_ranks_as_one_process_does(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    expected = reference(CASE)
    for number, (before, after) in enumerate(GRIDS[comm.size]):
        folder = mpi_tmp_path / str(number)
        for part, (batch, model) in enumerate((before, after)):
            ranks = first_ranks(comm, batch * model)
            if ranks is None:
                pass
            elif part == 0:
                first_part(ProcessGrid(ranks, batch=batch, model=model), folder)
            else:
                trainer = rest(ProcessGrid(ranks, batch=batch, model=model), folder)
                where = f"{before}, then {after}"
                assert_arrays_close(trainer.weights(), expected.weights, where, 1e-12)
                assert_arrays_close(trainer.optimizer_slots()["velocity"], expected.slots["velocity"], where, 1e-12)
                assert_arrays_close(trainer.gradients(), expected.gradients, where, 1e-12)
            comm.Barrier()


@pytest.mark.in_process(ranks=[1, 2, 3])
def test_goes_on_with_the_same_ranks_to_the_last_bit(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    for optimizer in ("momentum", "plain"):
        case, grid = replace(CASE, optimizer=optimizer), ProcessGrid(comm)
        whole = trainer_on(grid, case)
        whole.fit(*data(case), epochs=case.epochs)
        first_part(grid, mpi_tmp_path / optimizer, case)
        resumed = rest(grid, mpi_tmp_path / optimizer, case)
        assert_arrays_same(resumed.weights(), whole.weights())
        assert_arrays_same(resumed.gradients(), whole.gradients())
        for name, slot in whole.optimizer_slots().items():
            assert_arrays_same(resumed.optimizer_slots()[name], slot)
        assert [step.train_loss for step in resumed.history.steps] == [
            step.train_loss for step in whole.history.steps[STOPS_AT:]
        ]


@pytest.mark.in_process(ranks=[3])
def test_goes_on_where_gradients_are_kept(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    """A checkpoint says nothing of how the gradients were taken."""
    first_part(ProcessGrid(comm), mpi_tmp_path)
    grid = ProcessGrid(on_nodes(comm, (0, 0, 1)))
    trainer = make_trainer(CASE, grid)
    assert not isinstance(trainer._engine.chunks[0].replica, FusedUpdateReplica)
    checkpoint, _ = newest_valid(mpi_tmp_path, grid.world)
    assert checkpoint is not None
    trainer.restore(checkpoint)
    trainer.fit(*data(CASE), epochs=2)
    assert_arrays_close(trainer.weights(), reference(CASE).weights, "resumed with gradients", 1e-12)
