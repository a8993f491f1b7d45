"""Trainings whose gradients are rounded between nodes, against a serial replay that rounds the same sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.checkpoints.reading import newest_valid
from hybridnn.errors import NonFiniteLossError, SettingError
from hybridnn.parallel.gradient_reduction import STAGED_BUCKETS, BucketConfig
from hybridnn.parallel.shared_replica import SharedReplica
from hybridnn.runs.report import describe_wire_dtype
from hybridnn.training.config import Pipelining
from reference.cases import (
    assert_arrays_close,
    assert_arrays_same,
    assert_close,
    data,
    local_data,
    make_trainer,
    reference,
    run,
)
from reference.ranks import on_nodes
from reference.rounded_trainings import CASES, WORDS, alone, check_rounded, replay
from training.stand_in_training import stand_in

if TYPE_CHECKING:
    from mpi4py import MPI


@pytest.mark.in_process(ranks=[3])
def test_own_replicas_on_several_nodes(comm: MPI.Intracomm) -> None:
    for nodes in ((0, 0, 1), (0, 1, 2)):
        grid = ProcessGrid(on_nodes(comm, nodes))
        for case in CASES:
            for overlap, words in ((True, "bfloat16"), (False, "float16")):
                own = replace(case, shared_replicas=False, overlap=overlap)
                check_rounded(own, words, grid, alone(comm.size))


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("transport", ["staging", "nccl"])
def test_gradients_of_a_device_are_rounded_by_the_host(
    comm: MPI.Intracomm, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, and in small ones of which several are under way."""
    small = BucketConfig(400, 200, 3, single_blocks=False)
    for case, overlap, words, pace in (
        (CASES[0], True, "bfloat16", STAGED_BUCKETS),
        (CASES[1], False, "float16", STAGED_BUCKETS),
        (CASES[2], True, "bfloat16", small),
    ):
        monkeypatch.setattr("hybridnn.parallel.gradient_reduction.STAGED_BUCKETS", pace)
        grid = ProcessGrid(on_nodes(comm, range(comm.size)))
        device = stand_in(grid, transport, comm)
        own = replace(case, shared_replicas=False, overlap=overlap)
        trainer = check_rounded(own, words, grid, alone(comm.size), device=device)
        assert trainer.rounds_gradients()


@pytest.mark.in_process(ranks=[4])
def test_shared_replicas_on_several_nodes(comm: MPI.Intracomm) -> None:
    """What a node's ranks add up in its memory is not rounded, but their sum is."""
    for places, sharers in (((0, 0, 1, 1), [[0, 1], [2, 3]]), ((0, 0, 0, 1), [[0, 1, 2], [3]])):
        grid = ProcessGrid(on_nodes(comm, places))
        for case in CASES:
            words = WORDS[CASES.index(case) % 2]
            trainer = check_rounded(replace(case, shared_replicas=True), words, grid, sharers)
            assert isinstance(trainer._engine.chunks[0].replica, SharedReplica)


@pytest.mark.in_process(ranks=[4])
def test_model_ranks_and_pipelines(comm: MPI.Intracomm) -> None:
    apart = on_nodes(comm, (0, 1, 2, 3))
    for split in ("columns", "alternating"):
        check_rounded(replace(CASES[0], model_split=split), "bfloat16", ProcessGrid(apart, model=2), alone(2))
    for method in ("gpipe", "interleaved"):
        grid = ProcessGrid(apart, pipeline=2, batch=2)
        check_rounded(
            replace(CASES[1], samples=32), "float16", grid, alone(2), pipelining=Pipelining(method, microbatches=2)
        )


@pytest.mark.in_process(ranks=[2])
def test_float32_and_compared_collectives(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(on_nodes(comm, (0, 1)), check_collectives=True)
    for words in WORDS:
        trainer = run(CASES[0], grid, "float32", wire_dtype=words)
        # Where float32 rounds a gradient to another side of two words, a weight is off by an update's 2^-8.
        assert_arrays_close(trainer.weights(), replay(CASES[0], words, 2, alone(2)).weights, words, 1e-3)
        again = run(CASES[0], grid, "float32", wire_dtype=words)
        assert_arrays_same(trainer.weights(), again.weights())


@pytest.mark.in_process(ranks=[1, 2])
def test_on_one_node_nothing_changes(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    for shared in ("auto", False):
        case = replace(CASES[0], shared_replicas=shared)
        usual, same = run(case, grid), run(case, grid, wire_dtype="bfloat16")
        assert_arrays_same(usual.weights(), same.weights())
        assert same.memory_bytes == usual.memory_bytes
        assert not same.rounds_gradients()


@pytest.mark.in_process(ranks=[2])
def test_a_checkpoint_goes_on_to_the_last_bit_and_with_another_rounding(
    comm: MPI.Intracomm, mpi_tmp_path: Path
) -> None:
    grid, case = ProcessGrid(on_nodes(comm, (0, 1))), CASES[0]
    first, second, other = (make_trainer(case, grid, wire_dtype=words) for words in ("bfloat16", "bfloat16", "same"))
    first.fit(*local_data(case, grid), epochs=1)
    first.checkpoint_writer(mpi_tmp_path, "numbers").write(first.progress)
    found, _ = newest_valid(mpi_tmp_path, grid.world)
    assert found is not None
    for trainer in (first, second, other):
        if trainer is not first:
            trainer.restore(found)
        trainer.fit(*local_data(case, grid), epochs=1)
    assert_arrays_same(second.weights(), first.weights())
    assert_arrays_close(other.weights(), first.weights(), "rounded or not", 0.05)
    assert any((other.weights()[name] != weights).any() for name, weights in first.weights().items())


@pytest.mark.in_process(ranks=[2])
def test_losses_are_not_rounded_and_what_diverges_is_found(comm: MPI.Intracomm) -> None:
    grid, case = ProcessGrid(on_nodes(comm, (0, 1))), CASES[0]
    for words in WORDS:
        first = run(case, grid, wire_dtype=words).history.steps[0].train_loss
        assert_close(first, reference(case).step_losses[0], "loss before any update", 1e-13)
        trainer = Trainer(MLP(case.sizes), SGD(lr=1e30), grid=grid, batch_size=10, wire_dtype=words)
        with pytest.raises(NonFiniteLossError):
            trainer.fit(*data(case), epochs=3)


@pytest.mark.in_process(ranks=[1])
def test_what_is_allowed_and_what_is_said(comm: MPI.Intracomm) -> None:
    allowed = "must be 'same', 'bfloat16' or 'float16'"
    with pytest.raises(SettingError, match=f"^parallel.wire_dtype = 'float8': {allowed}$"):
        Trainer(MLP([3, 2]), grid=ProcessGrid(comm), wire_dtype="float8")
    assert describe_wire_dtype("same", rounds=True) is None
    assert describe_wire_dtype("float16", rounds=True) == "gradients travel between nodes as float16"
    nothing = "no gradients travel between nodes: parallel.wire_dtype = 'bfloat16' changes nothing"
    assert describe_wire_dtype("bfloat16", rounds=False) == nothing
