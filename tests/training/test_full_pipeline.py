"""Pipelines that stay full between epochs (`drain = "end"`): evaluations, stops, checkpoints, and real messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import Checkpoint, open_checkpoint
from hybridnn.errors import NonFiniteLossError
from hybridnn.training.epoch import StepPosition
from hybridnn.training.records import EpochRecord
from reference.cases import assert_arrays_close, assert_close, data
from reference.pipeline_cases import (
    DEEP,
    DELAYED_CASES,
    check_pipelined,
    expected_outcome,
    pipelined_trainer,
)
from reference.ranks import allgather_objects
from reference.training_list import THREE

if TYPE_CHECKING:
    from mpi4py import MPI

AT_END = {name: replace(it, drain="end") for name, it in DELAYED_CASES.items()}


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("name", AT_END)
def test_an_epoch_is_evaluated_with_the_weights_after_its_last_update(comm: MPI.Intracomm, name: str) -> None:
    it = replace(AT_END[name], case=THREE)
    trainer, expected = pipelined_trainer(it, ProcessGrid(comm, pipeline=4)), expected_outcome(it, 4)
    trainer.evaluate_every = 1
    x, y = data(it.case)

    def check(record: EpochRecord) -> None:
        where = f"{it}, epoch {record.epoch}"
        assert_arrays_close(trainer.weights(), expected.epoch_weights[record.epoch - 1], where)
        assert_close(record.train_loss, expected.epoch_losses[record.epoch - 1], where)
        assert record.test_loss == trainer.evaluate(*data(it.case, "test")).loss
        assert trainer.step == record.epoch * 4

    trainer.fit(x, y, epochs=3, validation=data(it.case, "test"), on_epoch=check)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(("name", "samples"), [*zip(AT_END, (31, 5) * 4, strict=False), ("pipedream", 5), ("ddg", 5)])
def test_a_training_that_stops_goes_on_from_the_end_of_the_epoch(comm: MPI.Intracomm, name: str, samples: int) -> None:
    """The minibatches in flight are trained again: as if each part were a training of its own."""
    case = replace(THREE, samples=samples, epochs=1, batch_size=4)
    it = replace(AT_END[name], case=case)
    trainer = pipelined_trainer(it, ProcessGrid(comm, pipeline=4))
    x, y = data(case)
    one = expected_outcome(replace(it, drain="epoch"), 4)
    trainer.fit(x, y, epochs=3, should_stop=lambda reached: True)
    assert (trainer.progress.epoch, trainer.progress.minibatches) == (2, 0)
    # An epoch that is followed by others predicts beyond its end, unlike one that drains.
    if name != "spectrain":
        assert_arrays_close(trainer.weights(), one.weights, f"{it}, stopped")
        trainer.fit(x, y, epochs=1)
        two = expected_outcome(replace(it, case=replace(case, epochs=2), drain="epoch"), 4)
        assert_arrays_close(trainer.weights(), two.weights, f"{it}, after the stop")


@pytest.mark.in_process(ranks=[3])
@pytest.mark.parametrize("name", ["fr", "pipedream", "pipedream-2bw"])
def test_a_checkpoint_has_the_weights_after_an_epoch_and_disturbs_nothing(
    comm: MPI.Intracomm, name: str, mpi_tmp_path: Path
) -> None:
    """Resuming fills the pipeline anew, as if the first part were a training of its own."""
    it, grid = replace(AT_END[name], case=replace(THREE, epochs=2)), ProcessGrid(comm, pipeline=3)
    x, y = data(it.case)
    trainer = pipelined_trainer(it, grid)
    writer = trainer.checkpoint_writer(mpi_tmp_path, "data")

    def write(reached: StepPosition) -> bool:
        if reached.step == 4:
            writer.write(reached.progress())
        return False

    trainer.fit(x, y, epochs=2, should_stop=write)
    assert_arrays_close(trainer.weights(), expected_outcome(it, 3).weights, f"{it}, not stopped")
    resumed = pipelined_trainer(it, grid)
    checkpoint = open_checkpoint(mpi_tmp_path / "step-00000004", grid.world)
    assert isinstance(checkpoint, Checkpoint), checkpoint
    resumed.restore(checkpoint)
    resumed.fit(x, y, epochs=1)
    two_trainings = expected_outcome(replace(it, drain="epoch"), 3).weights
    assert_arrays_close(resumed.weights(), two_trainings, f"{it}, resumed")


@pytest.mark.in_process(ranks=[3])
def test_a_loss_that_is_not_finite_ends_the_training_after_its_epoch(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 5)), random.standard_normal((40, 3))
    grid, optimizer = ProcessGrid(comm, pipeline=3), SGD(lr=1e12)
    for it in (AT_END[name] for name in ("ddg", "fr", "spectrain")):
        trainer = Trainer(MLP(DEEP), optimizer, grid=grid, batch_size=10, pipelining=it.pipelining)
        initial = trainer.weights()
        with pytest.raises(NonFiniteLossError) as caught:
            trainer.fit(x, y, epochs=100)
        assert len(set(allgather_objects(comm, str(caught.value)))) == 1, str(it)
        trainer.load_weights(initial)
        assert np.isfinite(trainer.evaluate(x, y).loss)
        with pytest.raises(NonFiniteLossError):  # no message of the first training is left over
            trainer.fit(x, y, epochs=100)


def test_one_drain_differs_from_a_drain_in_every_epoch() -> None:
    """Else a comparison with the wrong replay could pass."""
    for it in AT_END.values():
        end, epoch = (expected_outcome(replace(it, case=THREE, drain=drain), 4) for drain in ("end", "epoch"))
        assert abs(end.epoch_losses[-1] - epoch.epoch_losses[-1]) > 1e-6
        assert end.epoch_losses[0] == epoch.epoch_losses[0] or it.method == "spectrain"


@pytest.mark.mpi(ranks=[4])
def test_real_messages_and_windows(comm: MPI.Intracomm) -> None:
    """With shared replicas, a rank that goes on after an epoch must wait for those that still read the weights."""
    for stages, names in ((2, ("fr", "pipedream", "vanilla")), (4, ("ddg", "pipedream-2bw", "spectrain"))):
        grid = ProcessGrid(comm, pipeline=stages)
        for name in names:
            check_pipelined(replace(AT_END[name], case=THREE), grid)
        trainer = pipelined_trainer(replace(AT_END["fr"], case=THREE), grid)
        trainer.fit(*data(THREE), epochs=3, should_stop=lambda reached: reached.step == 8)
        two = expected_outcome(replace(AT_END["fr"], case=THREE), stages).epoch_weights[1]
        assert_arrays_close(trainer.weights(), two, f"stopped on {grid!r}")
