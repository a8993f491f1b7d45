"""Training with the fused update, which stores no weight gradients, against the references."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridnn import MLP, SGD, Adam, ProcessGrid, Trainer
from hybridnn.errors import NonFiniteLossError
from hybridnn.parallel.fused_update import FusedUpdateReplica
from hybridnn.parallel.replica import PrivateReplica
from hybridnn.parallel.shared_replica import SharedReplica
from hybridnn.training.records import StepRecord
from reference import network as net
from reference.callbacks import Calling
from reference.cases import (
    Case,
    assert_arrays_close,
    check_against_reference,
    check_state,
    data,
    local_data,
    make_trainer,
    reference,
)
from reference.network import Weights
from reference.ranks import on_nodes
from reference.training_list import FOR_THREE, FOR_TWO, FUSED, LARGE
from training.stand_in_training import kernels_of, stand_in

if TYPE_CHECKING:
    from mpi4py import MPI

SPLIT = replace(
    LARGE, sizes=FOR_THREE, classification=False, samples=25, model_split="alternating", residual=True, overlap=True
)
"""For two model ranks."""


def replica_of(trainer: Trainer) -> object:
    return trainer.engine.chunks[0].replica


def has_fused_update(trainer: Trainer) -> bool:
    return isinstance(replica_of(trainer), FusedUpdateReplica)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("case", [replace(LARGE, schedule="cosine", epochs=3), FUSED[2]], ids=["momentum", "dampened"])
def test_a_gpu_adds_products_to_the_velocity(case: Case, graphs: bool) -> None:
    """Replayed steps too, whose last minibatch is smaller, and whose gradients are available after every step."""
    grid, expected = ProcessGrid(), reference(case).step_gradients
    device = stand_in(grid, graphs=graphs)
    trainer = check_against_reference(case, grid, device=device)
    assert has_fused_update(trainer)
    assert bool(kernels_of(device).replays) == graphs
    trainer, asked = make_trainer(case, grid, device=device), []

    def ask(record: StepRecord) -> None:
        asked.append(record.step)
        assert_arrays_close(trainer.gradients(), expected[record.step - 1], f"step {record.step}", 1e-12)

    trainer.fit(*data(case), epochs=case.epochs, callbacks=[Calling(on_step=ask)])
    assert len(asked) == len(expected)


@pytest.mark.mpi(ranks=[2])
def test_gpus_store_gradients_of_batch_ranks(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.stand_in_training.CHUNK_BYTES", 1 << 22)
    for axes, fused in (({"batch": 2}, False), ({"model": 2}, True)):
        grid = ProcessGrid(comm, **axes)
        case = replace(LARGE, sizes=FOR_TWO, classification=False, epochs=1)
        trainer = check_against_reference(case, grid, device=stand_in(grid))
        assert has_fused_update(trainer) == fused, f"{axes}"


@pytest.mark.parametrize("optimizer", ["plain", "nesterov", "adam"])
def test_a_gpu_stores_gradients_unless_there_is_a_velocity_that_reads_them_once(optimizer: str) -> None:
    grid = ProcessGrid()
    assert not has_fused_update(make_trainer(replace(LARGE, optimizer=optimizer), grid, device=stand_in(grid)))


@pytest.mark.in_process(ranks=[4])
def test_batch_groups_on_one_node_and_on_two_in_one_grid(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(on_nodes(comm, (0, 0, 0, 1)), model=2)
    case = replace(LARGE, sizes=FOR_TWO, model_split="alternating", classification=False)
    trainer = check_against_reference(case, grid)
    assert has_fused_update(trainer) == (grid.rank in (0, 2)), "only one of the two groups is on one node"


@pytest.mark.in_process(ranks=[1, 2])
def test_choice_of_the_fused_update(comm: MPI.Intracomm) -> None:
    model, pays = MLP([16, 256, 256, 3]), SGD(momentum=0.9)

    def kind(optimizer: Any = pays, sizes: MLP = model, grid: dict[str, int] | None = None, **settings: Any) -> type:
        own_grid = ProcessGrid(comm, **(grid or {}))
        trainer = Trainer(sizes, optimizer, grid=own_grid, **{"batch_size": 10, **settings})
        found = type(replica_of(trainer))
        trainer.free()
        return found

    stored: type = PrivateReplica if comm.size == 1 else SharedReplica
    for optimizer in (pays, SGD(momentum=0.0), SGD(momentum=0.5, dampening=0.5)):
        assert kind(optimizer) is FusedUpdateReplica
    for optimizer in (SGD(weight_decay=0.1), SGD(momentum=0.0, weight_decay=0.1), SGD(nesterov=True), Adam()):
        assert kind(optimizer) is stored
    assert kind(clip_norm=1e9) is stored
    assert kind(sizes=MLP([16, 240, 240, 3])) is stored, "62,643 parameters"
    # Two arrays of 531 elements for each sample of a rank: at most as many elements as the 70,915 parameters.
    assert kind(batch_size=66 * comm.size) is FusedUpdateReplica
    assert kind(batch_size=67 * comm.size) is stored
    if comm.size == 1:
        assert kind(shared_replicas=False) is FusedUpdateReplica, "one rank has no replica to share"
        return
    assert kind(shared_replicas=True) is FusedUpdateReplica
    assert kind(shared_replicas=False) is PrivateReplica
    assert kind(grid={"pipeline": 2, "batch": 1}) is PrivateReplica
    assert kind(grid={"batch": 1, "model": 2}) is PrivateReplica, "half of the parameters are fewer than 2^16"
    assert kind(sizes=MLP([16, 352, 352, 3]), grid={"batch": 1, "model": 2}) is FusedUpdateReplica, "131,299 parameters"


@pytest.mark.in_process(ranks=[2, 3])
def test_ranks_on_two_nodes_store_gradients(comm: MPI.Intracomm) -> None:
    nodes = (0, 1) if comm.size == 2 else (0, 0, 1)
    trainer = make_trainer(LARGE, ProcessGrid(on_nodes(comm, nodes)))
    assert type(replica_of(trainer)) is (PrivateReplica if comm.size == 2 else SharedReplica)


@pytest.mark.in_process(ranks=[1, 4])
def test_gradients_are_available_at_any_time(comm: MPI.Intracomm) -> None:
    plain = (replace(LARGE, optimizer="plain", samples=31), ProcessGrid(comm))
    for case, grid in (plain, *([(SPLIT, ProcessGrid(comm, model=2))] if comm.size == 4 else [])):
        expected, trainer = reference(case).step_gradients, make_trainer(case, grid)
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
        trainer.fit(*local_data(case, grid), epochs=case.epochs, callbacks=[Calling(on_step=ask)])
        assert asked == len(expected)
        assert has_fused_update(trainer)
        check_state(trainer, reference(case), str(case))


@pytest.mark.in_process(ranks=[1, 2])
def test_a_loss_that_is_not_finite_changes_nothing(comm: MPI.Intracomm) -> None:
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
            assert has_fused_update(trainer)
            kept: list[list[Weights]] = []

            def keep(_: Any, trainer: Trainer = trainer, kept: list[list[Weights]] = kept) -> None:
                kept.append([trainer.weights(), *trainer.optimizer_slots().values()])

            with pytest.raises(NonFiniteLossError) as caught, np.errstate(all="ignore"):
                trainer.fit(x, y, epochs=3, callbacks=[Calling(on_step=keep)])
            assert kept, "the loss of the first step is finite"
            assert f"step {len(kept) + 1} " in str(caught.value)
            assert trainer.step == len(kept)
            left = [trainer.weights(), *trainer.optimizer_slots().values()]
            for arrays, before in zip(left, kept[-1], strict=True):
                for name, array in arrays.items():
                    assert np.array_equal(array, before[name]), name
            assert all(np.isfinite(array).all() for array in left[0].values())
            trainer.free()
