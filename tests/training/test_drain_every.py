"""Pipelines that stay full over several epochs (`drain_every`): evaluations, callbacks, stops, and real messages."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from mpi4py import MPI

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.errors import NonFiniteLossError
from hybridnn.training.callbacks import EarlyStopping
from hybridnn.training.records import EpochRecord, StepPosition
from hybridnn.training.trained_network import Callback, TrainedNetwork
from reference.callbacks import Calling, Calls
from reference.cases import TOLERANCE, assert_arrays_close, assert_arrays_same, assert_close, data
from reference.pipeline_cases import DEEP, DELAYED_CASES, MOMENTUM, check_pipelined, expected_outcome, pipelined_trainer
from reference.ranks import allgather_objects
from reference.training_list import THREE

ONE_DRAIN = {name: replace(it, drain_every=3) for name, it in DELAYED_CASES.items()}
FIVE = replace(MOMENTUM, epochs=5)


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize("name", ONE_DRAIN)
def test_an_epoch_is_evaluated_with_the_weights_after_its_last_update(comm: MPI.Intracomm, name: str) -> None:
    it = replace(ONE_DRAIN[name], case=FIVE)
    trainer, expected = pipelined_trainer(it, ProcessGrid(comm, pipeline=4), evaluate_every=2), expected_outcome(it, 4)
    x, y = data(it.case)
    weights: list[dict[str, np.ndarray]] = []

    def check(record: EpochRecord) -> None:
        where = f"{it}, epoch {record.epoch}"
        weights.append(trainer.weights())
        assert_arrays_close(weights[-1], expected.epoch_weights[record.epoch - 1], where)
        assert_close(record.train_loss, expected.epoch_losses[record.epoch - 1], where)
        assert record.learning_rate == expected.rates[record.step - 1]
        if record.epoch in (2, 4, 5):
            assert record.validation_loss == trainer.evaluate(*data(it.case, "test")).loss
        else:
            assert record.validation_loss is None
        assert record.step == record.epoch * 4
        assert (trainer.progress.epoch, trainer.progress.step) == (record.epoch + 1, record.step)
        assert trainer.step == record.step

    history = trainer.fit(x, y, epochs=5, validation=data(it.case, "test"), callbacks=[Calling(on_epoch=check)])
    assert (
        [record.epoch for record in history.epochs] == [record.epoch for record in history.measured] == [*range(1, 6)]
    )
    assert_arrays_same(trainer.weights(), weights[-1])
    assert [record.epoch for record in history.steps] == [1 + step // 4 for step in range(20)]
    for record, loss in zip(history.steps, expected.step_losses, strict=True):
        assert_close(record.train_loss, loss, f"{it}, step {record.step}")


@pytest.mark.in_process(ranks=[4])
@pytest.mark.parametrize(
    ("name", "samples"), [*zip(ONE_DRAIN, (31, 5) * 4, strict=False), ("pipedream", 5), ("ddg", 5)]
)
def test_a_training_stops_at_a_drain_and_goes_on_as_without_the_stop(comm, name, samples) -> None:
    case = replace(THREE, samples=samples, epochs=5, batch_size=4)
    it = replace(ONE_DRAIN[name], case=case, drain_every=2)
    trainer, reached = pipelined_trainer(it, ProcessGrid(comm, pipeline=4)), list[int]()
    x, y = data(case)

    def stop(position: StepPosition) -> bool:
        reached.append(trainer.progress.epoch)
        return True

    for left in (5, 3, 1):
        trainer.fit(x, y, epochs=left, callbacks=[Calling(should_stop=stop)])
    assert reached == [3, 5, 6]
    assert_arrays_close(trainer.weights(), expected_outcome(it, 4).weights, str(it))


@pytest.mark.in_process(ranks=[3])
def test_a_callback_that_ends_the_training_does_so_at_the_drain(comm: MPI.Intracomm) -> None:
    it = replace(ONE_DRAIN["pipedream"], case=FIVE)
    trainer, calls = pipelined_trainer(it, ProcessGrid(comm, pipeline=3), log_every=2), Calls()

    def stop_after_one(record: EpochRecord) -> None:
        trainer.stop_training |= record.epoch == 1

    history = trainer.fit(*data(it.case), epochs=5, callbacks=[calls, Calling(on_epoch=stop_after_one)])
    per_epoch = [(f"epoch {n} begins", f"step {4 * n - 2}", f"step {4 * n}", f"epoch {n} ends") for n in (1, 2, 3)]
    assert calls.names == ["train begins", *(call for epoch in per_epoch for call in epoch), "train ends"]
    assert [record.epoch for record in history.epochs] == [1, 2, 3]
    assert trainer.progress.epoch == 4


@pytest.mark.in_process(ranks=[3])
def test_early_stopping_restores_the_best_epoch_between_drains(comm: MPI.Intracomm) -> None:
    it = replace(ONE_DRAIN["vanilla"], case=FIVE)
    trainer = pipelined_trainer(it, ProcessGrid(comm, pipeline=3))
    stopping = EarlyStopping("train_loss", patience=1, min_delta=1e9)  # no epoch is better than the first
    trainer.fit(*data(it.case), epochs=5, callbacks=[stopping])
    assert (stopping.best_epoch, stopping.stopped_epoch, trainer.progress.epoch) == (1, 3, 4)
    assert_arrays_close(trainer.weights(), expected_outcome(it, 3).epoch_weights[0], str(it))


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize(("losses", "ended"), [((1, 2, 3, 4, 5), 3), ((1, 2, 0, 4, 5), 5), ((1, 2, 0, 0, 0), 5)])
def test_the_patience_at_the_drain_counts(comm: MPI.Intracomm, losses: tuple[float, ...], ended: int) -> None:
    """An epoch that is better than all before, trained before the pipeline has drained, lets the training go on."""
    it = replace(ONE_DRAIN["pipedream"], case=FIVE)
    trainer, stopping = pipelined_trainer(it, ProcessGrid(comm, pipeline=2)), EarlyStopping("train_loss", patience=1)
    told = Told(stopping, losses)
    history = trainer.fit(*data(it.case), epochs=5, callbacks=[told])
    assert [record.epoch for record in history.epochs] == [*range(1, ended + 1)]
    assert stopping.best == min(losses[:ended])
    assert stopping.stopped_epoch == (ended if losses[ended - 1] > min(losses[:ended]) or ended == 5 else 0)


class Told(Callback):
    """Gives another callback other losses."""

    def __init__(self, other: Callback, losses: tuple[float, ...]) -> None:
        self._other, self._losses = other, losses

    def on_epoch_end(self, trainer: TrainedNetwork, record: EpochRecord) -> None:
        self._other.on_epoch_end(trainer, replace(record, train_loss=self._losses[record.epoch - 1]))


@pytest.mark.in_process(ranks=[3])
def test_a_loss_that_is_not_finite_ends_the_training_after_the_drain(comm: MPI.Intracomm) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((40, 5)), random.standard_normal((40, 3))
    grid, optimizer = ProcessGrid(comm, pipeline=3), SGD(lr=1e12)
    for it in (ONE_DRAIN[name] for name in ("ddg", "fr", "spectrain")):
        trainer = Trainer(MLP(DEEP), optimizer, grid=grid, batch_size=10, **it.settings)
        initial = trainer.weights()
        with pytest.raises(NonFiniteLossError) as caught:
            trainer.fit(x, y, epochs=100)
        assert len(set(allgather_objects(comm, str(caught.value)))) == 1, str(it)
        trainer.load_weights(initial)
        assert np.isfinite(trainer.evaluate(x, y).loss)
        with pytest.raises(NonFiniteLossError):  # no message of the first training is left over
            trainer.fit(x, y, epochs=100)


@pytest.mark.in_process(ranks=[2])
def test_epochs_before_a_loss_that_is_not_finite_are_recorded(comm: MPI.Intracomm) -> None:
    it = replace(ONE_DRAIN["vanilla"], case=THREE)
    trainer, x, y = pipelined_trainer(it, ProcessGrid(comm, pipeline=2), schedule=Rising()), *data(THREE)
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.fit(x, y, epochs=3)
    assert [record.epoch for record in trainer.history.epochs] == [1]
    assert [record.step for record in trainer.history.steps] == [*range(1, caught.value.step)]
    # All updates, after the drain.
    assert (trainer.progress.epoch, trainer.progress.minibatches, trainer.step) == (3, 4, 12)


class Rising:
    """Learning rates that diverge from the second epoch on."""

    def multiplier(self, step: int, steps_per_epoch: int, steps: int) -> float:
        return 1.0 if step < steps_per_epoch else np.inf


def test_one_drain_differs_from_a_drain_in_every_epoch() -> None:
    """Else a comparison with the wrong replay could pass."""
    for it in DELAYED_CASES.values():
        outcomes = [expected_outcome(replace(it, case=THREE, drain_every=every), 4) for every in (1, 2, 3)]
        for one, other in combinations(outcomes, 2):
            apart = [np.abs(other.weights[name] - weight).max() for name, weight in one.weights.items()]
            assert max(apart) > 1e4 * TOLERANCE
        assert len({outcome.epoch_losses[0] for outcome in outcomes}) == 1 or it.method == "spectrain"


@pytest.mark.mpi(ranks=[4])
def test_real_messages_and_windows(comm: MPI.Intracomm) -> None:
    """With shared replicas, a rank that goes on after an epoch must wait for those that copy the weights."""
    for stages, names in ((2, ("fr", "pipedream", "vanilla")), (4, ("ddg", "pipedream-2bw", "spectrain"))):
        grid = ProcessGrid(comm, pipeline=stages)
        for name in names:
            check_pipelined(replace(ONE_DRAIN[name], case=THREE), grid)
        two = replace(ONE_DRAIN["fr"], case=THREE, drain_every=2)
        trainer = pipelined_trainer(two, grid)
        trainer.fit(*data(THREE), epochs=3, callbacks=[Calling(should_stop=lambda reached: reached.step == 8)])
        assert_arrays_close(trainer.weights(), expected_outcome(two, stages).epoch_weights[1], f"stopped on {grid!r}")
