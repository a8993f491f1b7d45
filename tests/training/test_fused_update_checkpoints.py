"""Checkpoints of trainings with the fused update: resumed on any ranks, and without the fused update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridnn import ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.checkpoints.writing import checkpoint_writer
from hybridnn.parallel.fused_update import FusedUpdateReplica
from hybridnn.training.records import StepPosition
from reference.callbacks import Calling
from reference.cases import Case, assert_arrays_close, assert_arrays_same, data, make_trainer, reference
from reference.ranks import on_nodes

if TYPE_CHECKING:
    from mpi4py import MPI

CASE = Case(sizes=(16, 352, 352, 3), schedule="cosine", samples=31, epochs=3, model_split="alternating")
"""131,299 parameters: enough for a fused update on each of two model ranks."""

STOPS_AT = 6
"""The second step of the second epoch of four."""


def trainer_on(grid: ProcessGrid, case: Case = CASE) -> Trainer:
    trainer = make_trainer(case, grid)
    assert isinstance(trainer.engine.chunks[0].replica, FusedUpdateReplica)
    return trainer


def first_part(grid: ProcessGrid, folder: Path, case: Case = CASE) -> None:
    """Train until step `STOPS_AT`, and write a checkpoint there."""
    trainer = trainer_on(grid, case)
    writer = checkpoint_writer(trainer, folder, "numbers")

    def should_stop(reached: StepPosition) -> bool:
        if reached.step == STOPS_AT:
            writer.write(reached.progress())
        return reached.step == STOPS_AT

    trainer.fit(*data(case), epochs=case.epochs, callbacks=[Calling(should_stop=should_stop)])
    assert trainer.step == STOPS_AT
    trainer.free()


def rest(grid: ProcessGrid, folder: Path, case: Case = CASE) -> Trainer:
    """Resume from the checkpoint and train to the end."""
    trainer = trainer_on(grid, case)
    checkpoint, problems = newest_valid(folder, grid.world)
    assert checkpoint is not None
    assert not problems
    trainer.restore(checkpoint.read_into, checkpoint.manifest.progress)
    assert trainer.step == STOPS_AT
    trainer.fit(*data(case), epochs=case.epochs - trainer.progress.epoch + 1)
    return trainer


def first_ranks(comm: MPI.Intracomm, count: int) -> MPI.Intracomm | None:
    """Communicator of the first ranks; None on the others."""
    part = comm.Split(0 if comm.rank < count else 1, comm.rank)
    return part if comm.rank < count else None


GRIDS: dict[int, tuple[tuple[tuple[int, int], tuple[int, int]], ...]] = {
    3: (((3, 1), (2, 1)), ((2, 1), (3, 1)), ((1, 1), (3, 1)), ((3, 1), (1, 2))),
    4: (((2, 2), (3, 1)), ((1, 2), (2, 2)), ((4, 1), (1, 1))),
}
"""Batch and model ranks before and after the checkpoint, by the number of ranks."""


@pytest.mark.in_process(ranks=list(GRIDS))
def test_resumes_on_other_ranks(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
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


@pytest.mark.in_process(ranks=[2])
def test_resumes_on_the_same_ranks_bit_by_bit(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
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
def test_resumes_without_the_fused_update(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    """A checkpoint does not depend on whether the update is fused."""
    first_part(ProcessGrid(comm), mpi_tmp_path)
    grid = ProcessGrid(on_nodes(comm, (0, 0, 1)))
    trainer = make_trainer(CASE, grid)
    assert not isinstance(trainer.engine.chunks[0].replica, FusedUpdateReplica)
    checkpoint, _ = newest_valid(mpi_tmp_path, grid.world)
    assert checkpoint is not None
    trainer.restore(checkpoint.read_into, checkpoint.manifest.progress)
    trainer.fit(*data(CASE), epochs=2)
    assert_arrays_close(trainer.weights(), reference(CASE).weights, "resumed with gradients", 1e-12)
