"""Training with the fused update, which stores no weight gradients, against the references."""

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
from hybridnn.training.records import StepRecord
from reference import network as net
from reference.bfloat16_steps import assert_rounded_alike, rounding
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
from training.stand_in_training import kernels_of, stand_in

if TYPE_CHECKING:
    from mpi4py import MPI

LARGE = Case(sizes=(16, 256, 256, 3), epochs=2)
"""70,915 parameters; minibatches of 10, the last one of 7."""

FOR_TWO, FOR_THREE = (9, 260, 260, 260, 1), (9, 320, 320, 320, 4)
"""More than 2^17 and 3 * 2^16 parameters: enough for a fused update when 2 or 3 ranks divide the weights."""

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
    # Wide layers of a multiple of 16, whose activations are stored sample by sample.
    replace(
        LARGE, sizes=(4, 512, 512, 2), classification=False, activation="selu", batch_size=128, samples=179, epochs=1
    ),
)

SPLITS = {2: (2, FOR_TWO), 3: (3, FOR_THREE), 4: (2, FOR_THREE)}
"""Model ranks and layer sizes of the network, by the number of ranks."""


def replica_of(trainer: Trainer) -> object:
    return trainer._engine.chunks[0].replica


def has_fused_update(trainer: Trainer) -> bool:
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
    """As `check_against_reference`, but weights and slots agree to 1e-12."""
    trainer, expected = check_against_reference(case, grid), reference(case)
    assert has_fused_update(trainer), str(case)
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
        assert has_fused_update(trainer)
        assert trainer.weights()["layers.0.weight"].dtype == np.float32
        assert_arrays_close(trainer.weights(), expected.weights, str(case), 1e-5)
        assert_arrays_close(trainer.gradients(), expected.gradients, str(case), 1e-5)
        for name, slot in trainer.optimizer_slots().items():
            assert_arrays_close(slot, expected.slots[name], f"{case}: {name}", 1e-5)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("case", [replace(LARGE, schedule="cosine", epochs=3), CASES[2]], ids=["momentum", "dampened"])
def test_a_gpu_adds_products_to_the_velocity(case: Case, graphs: bool) -> None:
    """Replayed steps too, whose last minibatch is smaller, and whose gradients are available after every step."""
    grid, expected = ProcessGrid(), gradients_of_steps(case)
    device = stand_in(grid, graphs=graphs)
    trainer = check_against_reference(case, grid, device=device)
    assert has_fused_update(trainer)
    assert bool(kernels_of(device).replays) == graphs
    trainer, asked = make_trainer(case, grid, device=device), []

    def ask(record: StepRecord) -> None:
        asked.append(record.step)
        assert_arrays_close(trainer.gradients(), expected[record.step - 1], f"step {record.step}", 1e-12)

    trainer.fit(*data(case), epochs=case.epochs, on_step=ask)
    assert len(asked) == len(expected)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_gpu_adds_products_of_rounded_factors_to_the_velocity(graphs: bool) -> None:
    case, grid = replace(LARGE, epochs=3), ProcessGrid()
    replay = train(rounding(case.network), plan_of(case), *data(case))
    found = run(case, grid, "bfloat16", device=stand_in(grid, graphs=graphs))
    assert has_fused_update(found)
    assert_rounded_alike(found.weights(), replay.weights, run(case, grid, "float32", device="cpu").weights())


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


@pytest.mark.in_process(ranks=[2])
@pytest.mark.parametrize("distribution", ["scatter", "scatter-broadcast"])
def test_minibatches_that_rank_0_distributes(comm: MPI.Intracomm, distribution: str) -> None:
    assert has_fused_update(check_against_reference(replace(CASES[0], distribution=distribution), ProcessGrid(comm)))


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


@pytest.mark.mpi(ranks=[2, 3])
def test_delayed_ranks_compute_the_same(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank reads weights or activations before or while another rank writes them."""
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
        trainer.log_every = 10**6  # a record is a collective, which would synchronize the ranks
        trainer.fit(*data(case), epochs=case.epochs)
        assert_arrays_close(trainer.weights(), reference(case).weights, str(case))
        assert_arrays_close(trainer.gradients(), reference(case).gradients, str(case))


@pytest.mark.in_process(ranks=[2, 3])
def test_a_step_synchronizes_twice_and_sends_only_the_loss(comm: MPI.Intracomm) -> None:
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
    """Gradients of every step of the reference."""
    gradients: list[Weights] = []

    def noted(network: Network, weights: Weights, x: Array, y: Array) -> tuple[float, Weights]:
        loss, found = net.gradients(network, weights, x, y)
        gradients.append(found)
        return loss, found

    train(case.network, plan_of(case), *data(case), gradients_of=noted)
    return gradients


@pytest.mark.in_process(ranks=[1, 2, 3, 4])
def test_gradients_are_available_at_any_time(comm: MPI.Intracomm) -> None:
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
                trainer.fit(x, y, epochs=3, on_step=keep)
            assert kept, "the loss of the first step is finite"
            assert f"step {len(kept) + 1} " in str(caught.value)
            assert trainer.step == len(kept)
            left = [trainer.weights(), *trainer.optimizer_slots().values()]
            for arrays, before in zip(left, kept[-1], strict=True):
                for name, array in arrays.items():
                    assert np.array_equal(array, before[name]), name
            assert all(np.isfinite(array).all() for array in left[0].values())
            trainer.free()
