"""Trainings that keep no gradients, but add each weight gradient as a product where the optimizer wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import NonFiniteLossError
from hybridnn.parallel.fused_update import FusedUpdateReplica
from hybridnn.parallel.model_chunk import ModelChunk
from hybridnn.parallel.replica import PrivateReplica
from hybridnn.parallel.shared_replica import SharedReplica
from reference import network as net
from reference.cases import (
    Case,
    assert_arrays_close,
    check_against_reference,
    check_state,
    data,
    local_data,
    make_trainer,
    plan_of,
    reference,
    run,
)
from reference.network import Array, Network, Weights
from reference.ranks import on_nodes
from reference.serial import train

if TYPE_CHECKING:
    from mpi4py import MPI

LARGE = Case(sizes=(16, 256, 256, 3), epochs=2)
"""70,915 parameters; minibatches of 10, the last one of 7."""

FOR_TWO, FOR_THREE = (9, 260, 260, 260, 1), (9, 320, 320, 320, 4)
"""Above 2^17 and 3 * 2^16 parameters: for so many ranks that share the weights."""

CASES = (
    replace(LARGE, optimizer="plain", samples=31, schedule="cosine"),  # a last minibatch of one sample
    replace(LARGE, sizes=(5, 190, 190, 190, 4), residual=True, schedule="step"),
    replace(
        LARGE,
        optimizer="dampened-alone",
        classification=False,
        activation="relu",
        batch_size=3,
        samples=8,
        schedule="warmup-linear",
    ),
    # Numbers of a sample side by side, where they are many and a multiple of 16, else the samples of a number.
    replace(
        LARGE, sizes=(4, 512, 512, 2), classification=False, activation="selu", batch_size=128, samples=179, epochs=1
    ),
)

SPLITS = {2: (2, FOR_TWO), 3: (3, FOR_THREE), 4: (2, FOR_THREE)}
"""Model ranks and sizes of the network, by the ranks of the job."""


def replica_of(trainer: Trainer) -> object:
    return trainer._engine.chunks[0].replica


def takes_products(trainer: Trainer) -> bool:
    return isinstance(replica_of(trainer), FusedUpdateReplica)


def split_cases(comm: MPI.Intracomm) -> list[tuple[Case, ProcessGrid]]:
    if comm.size not in SPLITS:
        return []
    model, sizes = SPLITS[comm.size]
    case, grid = replace(LARGE, sizes=sizes, classification=False, samples=25), ProcessGrid(comm, model=model)
    splits = ("alternating",) if sizes[-1] < model else ("columns", "alternating")
    return [
        (replace(case, model_split=split, residual=residual, overlap=residual), grid)
        for split, residual in product(splits, (False, True))
    ]


def check_exactly(case: Case, grid: ProcessGrid) -> None:
    """As `check_against_reference`, the numbers of the network to the last digits."""
    trainer, expected = check_against_reference(case, grid), reference(case)
    assert takes_products(trainer), str(case)
    assert_arrays_close(trainer.weights(), expected.weights, str(case), 1e-12)
    for name, slot in trainer.optimizer_slots().items():
        assert_arrays_close(slot, expected.slots[name], f"{case}: {name}", 1e-12)


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_trains_as_the_reference(comm: MPI.Intracomm) -> None:
    for case in CASES:
        check_exactly(case, ProcessGrid(comm))


@pytest.mark.in_process(ranks=[2, 3, 4])
def test_trains_as_the_reference_where_the_layers_are_split(comm: MPI.Intracomm) -> None:
    for case, grid in split_cases(comm):
        check_exactly(case, grid)


@pytest.mark.in_process(ranks=[1, 2])
def test_trains_in_single_precision(comm: MPI.Intracomm) -> None:
    for case in CASES:
        trainer, expected = run(case, ProcessGrid(comm), "float32"), reference(case)
        assert takes_products(trainer)
        assert trainer.weights()["layers.0.weight"].dtype == np.float32
        assert_arrays_close(trainer.weights(), expected.weights, str(case), 1e-5)
        assert_arrays_close(trainer.gradients(), expected.gradients, str(case), 1e-5)
        for name, slot in trainer.optimizer_slots().items():
            assert_arrays_close(slot, expected.slots[name], f"{case}: {name}", 1e-5)


@pytest.mark.in_process(ranks=[4])
def test_batch_groups_on_one_node_and_on_two_train_together(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(on_nodes(comm, (0, 0, 0, 1)), model=2)
    case = replace(LARGE, sizes=FOR_TWO, model_split="alternating", classification=False)
    trainer = check_against_reference(case, grid)
    assert takes_products(trainer) == (grid.rank in (0, 2)), "only one of the two groups is on one node"


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize("distribution", ["scatter", "scatter-broadcast"])
def test_minibatches_may_come_from_one_rank(comm: MPI.Intracomm, distribution: str) -> None:
    assert takes_products(check_against_reference(replace(CASES[0], distribution=distribution), ProcessGrid(comm)))


@pytest.mark.in_process(ranks=[1, 2])
def test_gradients_are_kept_where_something_else_wants_them(comm: MPI.Intracomm) -> None:
    model, pays = MLP([16, 256, 256, 3]), SGD(momentum=0.9)

    def kind(optimizer: Any = pays, sizes: MLP = model, grid: dict[str, int] | None = None, **settings: Any) -> type:
        own_grid = ProcessGrid(comm, **(grid or {}))
        trainer = Trainer(sizes, optimizer, grid=own_grid, **{"batch_size": 10, **settings})
        found = type(replica_of(trainer))
        trainer.free()
        return found

    with_gradients: type = PrivateReplica if comm.size == 1 else SharedReplica
    for optimizer in (pays, SGD(momentum=0.0), SGD(momentum=0.5, dampening=0.5)):
        assert kind(optimizer) is FusedUpdateReplica
    for optimizer in (SGD(weight_decay=0.1), SGD(momentum=0.0, weight_decay=0.1), SGD(nesterov=True), Adam()):
        assert kind(optimizer) is with_gradients
    assert kind(clip_norm=1e9) is with_gradients
    assert kind(sizes=MLP([16, 240, 240, 3])) is with_gradients, "62,643 parameters"
    # Each rank's samples, twice, in arrays of 531 numbers: not more than 70,915.
    assert kind(batch_size=66 * comm.size) is FusedUpdateReplica
    assert kind(batch_size=67 * comm.size) is with_gradients
    if comm.size == 1:
        assert kind(shared_replicas=False) is FusedUpdateReplica, "there is nobody to share with"
        return
    assert kind(shared_replicas=True) is FusedUpdateReplica
    assert kind(shared_replicas=False) is PrivateReplica
    assert kind(grid={"pipeline": 2, "batch": 1}) is PrivateReplica
    assert kind(grid={"batch": 1, "model": 2}) is PrivateReplica, "half of the weights are too few"
    assert kind(sizes=MLP([16, 352, 352, 3]), grid={"batch": 1, "model": 2}) is FusedUpdateReplica, "131,299 parameters"


@pytest.mark.in_process(ranks=[2, 3])
def test_two_nodes_keep_gradients(comm: MPI.Intracomm) -> None:
    nodes = (0, 1) if comm.size == 2 else (0, 0, 1)
    trainer = make_trainer(LARGE, ProcessGrid(on_nodes(comm, nodes)))
    assert type(replica_of(trainer)) is (PrivateReplica if comm.size == 2 else SharedReplica)


@pytest.mark.mpi(ranks=[2, 3])
def test_ranks_that_come_late_read_and_write_the_same(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads weights or samples that are being written, or that are not there yet."""
    draw = Random(comm.rank)

    def late(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sleep(draw.choice((0, 0, 0.003)))
            return method(*args, **kwargs)

        return call

    for owner, name in (
        (ModelChunk, "forward"),
        (ModelChunk, "backward"),
        (SGD, "linear_update"),
        (FusedUpdateReplica, "full_gradient"),
    ):
        monkeypatch.setattr(owner, name, late(getattr(owner, name)))
    for case in CASES[:3]:
        trainer = make_trainer(case, ProcessGrid(comm))
        trainer.log_every = 10**6  # what a record tells of all ranks would bring them together
        trainer.fit(*data(case), epochs=case.epochs)
        assert_arrays_close(trainer.weights(), reference(case).weights, str(case))
        assert_arrays_close(trainer.gradients(), reference(case).gradients, str(case))


@pytest.mark.in_process(ranks=[2, 3])
def test_a_step_meets_twice_and_sends_nothing_but_the_loss(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    trainer = make_trainer(LARGE, grid)
    steps: list[Counter[tuple[str, int]]] = []
    seen = len(grid.recorder.events)

    def note(_: Any) -> None:
        nonlocal seen
        events = grid.recorder.events
        steps.append(Counter((event.name, event.nbytes) for event in events[seen:] if event.axis == "batch"))
        seen = len(events)

    trainer.fit(*data(LARGE), epochs=1, on_step=note)
    loss = 2 * (8 * (comm.size - 1) // comm.size)
    assert steps == [Counter({("allreduce", loss): 1, ("barrier", 0): 1})] * 4


def gradients_of_steps(case: Case) -> list[Weights]:
    """Of every step of the reference's training."""
    gradients: list[Weights] = []

    def noted(network: Network, weights: Weights, x: Array, y: Array) -> tuple[float, Weights]:
        loss, found = net.gradients(network, weights, x, y)
        gradients.append(found)
        return loss, found

    train(case.network, plan_of(case), *data(case), gradients_of=noted)
    return gradients


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_gradients_can_be_asked_for_at_any_time(comm: MPI.Intracomm) -> None:
    plain = (replace(LARGE, optimizer="plain", samples=31), ProcessGrid(comm))
    for case, grid in (plain, *split_cases(comm)[-1:]):
        expected, trainer = gradients_of_steps(case), make_trainer(case, grid)
        asked = 0

        def require(trainer: Trainer, gradients: Weights, what: str) -> None:
            assert_arrays_close(trainer.gradients(), gradients, what, 1e-12)
            assert trainer.gradient_norm() == pytest.approx(net.norm(gradients.values()), rel=1e-12)

        def ask(record: Any, trainer: Trainer = trainer, case: Case = case, expected: Any = expected) -> None:
            nonlocal asked
            asked += 1
            require(trainer, expected[record.step - 1], f"{case}: step {record.step}")
            if record.step % 2:
                trainer.evaluate(*local_data(case, trainer.grid, "test"))
                trainer.predict(data(case, "test")[0][:1])
                require(trainer, expected[record.step - 1], f"{case}: step {record.step}, after an evaluation")

        zeros = {name: np.zeros_like(array) for name, array in expected[0].items()}
        require(trainer, zeros, "before any step")
        trainer.evaluate(*local_data(case, grid, "test"))
        require(trainer, zeros, "before any step, after an evaluation")
        trainer.fit(*local_data(case, grid), epochs=case.epochs, on_step=ask)
        assert asked == len(expected)
        assert takes_products(trainer)
        check_state(trainer, reference(case), str(case))


@pytest.mark.in_process(ranks=[1, 2])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(comm: MPI.Intracomm) -> None:
    x, y = data(replace(LARGE, classification=False, samples=60))
    for dtype, lr in (("float32", 1e25), ("float64", 1e160)):
        for momentum in (0.0, 0.9):
            trainer = Trainer(
                MLP(LARGE.sizes),
                SGD(lr=lr, momentum=momentum),
                grid=ProcessGrid(comm),
                batch_size=10,
                dtype=dtype,
                log_every=1,
            )
            assert takes_products(trainer)
            kept: list[list[Weights]] = []

            def keep(_: Any, trainer: Trainer = trainer, kept: list[list[Weights]] = kept) -> None:
                kept.append([trainer.weights(), *trainer.optimizer_slots().values()])

            with pytest.raises(NonFiniteLossError) as caught, np.errstate(all="ignore"):
                trainer.fit(x, y, epochs=3, on_step=keep)
            assert kept, "the first step is a good one"
            assert f"step {len(kept) + 1} " in str(caught.value)
            assert trainer.step == len(kept)
            left = [trainer.weights(), *trainer.optimizer_slots().values()]
            for arrays, before in zip(left, kept[-1], strict=True):
                for name, array in arrays.items():
                    assert np.array_equal(array, before[name]), name
            assert all(np.isfinite(array).all() for array in left[0].values())
            trainer.free()
