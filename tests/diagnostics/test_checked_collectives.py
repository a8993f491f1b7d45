"""`check_collectives`: a mismatch raises the same error on all ranks, and correct programs compute the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.comm.group import Group
from hybridnn.diagnostics.checked_group import CollectiveMismatchError

if TYPE_CHECKING:
    from mpi4py import MPI

Call = Callable[[Group], Any]


def of(size: int, dtype: str = "float64") -> NDArray[Any]:
    return np.zeros(size, dtype)


CALLS: dict[str, Call] = {
    "allreduce (sum) of 48 bytes float64": lambda g: g.allreduce(of(6)),
    "allreduce (sum) of 56 bytes float64": lambda g: g.allreduce(of(7)),
    "allreduce (sum) of 48 bytes int64": lambda g: g.allreduce(of(6, "int64")),
    "allreduce (max) of 48 bytes float64": lambda g: g.allreduce(of(6), "max"),
    "non-blocking allreduce (sum) of 48 bytes float64": lambda g: g.iallreduce(of(6)).wait(),
    "barrier": lambda g: g.barrier(),
    "broadcast of 48 bytes float64 with root 0": lambda g: g.broadcast(of(6), 0),
    "broadcast of 48 bytes float64 with root 1": lambda g: g.broadcast(of(6), 1),
    "non-blocking broadcast of 48 bytes float64 with root 0": lambda g: g.ibroadcast(of(6)).wait(),
    "allgather of 48 bytes float64": lambda g: g.allgather_rows(of(6)),
    "non-blocking allgather of 48 bytes float64": lambda g: g.iallgather_rows(of(6)).wait(),
    "gather of {sum} bytes float64 with root 0": (
        lambda g: g.gather_rows(of(1), of(g.size) if g.rank == 0 else None, [1] * g.size)
    ),
    "non-blocking scatter of {sum} bytes float64 with root 0": (lambda g: g.scatter_rows(None, of(1), [1] * g.size)),
}
"""Calls by their description."""

NAMES = [*CALLS]
MISMATCHES = [*((0, other) for other in range(1, 6)), (6, 7), (6, 9), (8, 10), (11, 12)]
"""Pairs of them, by position, which mostly differ in one thing."""


@pytest.mark.mpi(ranks=[2, 3])
def test_a_mismatch_raises_on_every_rank_with_calls_and_lines(comm: MPI.Intracomm) -> None:
    last = comm.size - 1
    usual = f"rank{'s' * (last > 1)} {', '.join(map(str, range(last)))}"
    for usual_text, other_text in ((NAMES[one], NAMES[other]) for one, other in MISMATCHES):
        group = ProcessGrid(comm, check_collectives=True).world
        group.allreduce(of(3))
        with pytest.raises(CollectiveMismatchError) as raised:
            CALLS[other_text if group.rank == last else usual_text](group)
        text = str(raised.value)
        assert text.startswith(f"collective 2 of group world (ranks {'0, 1' if last == 1 else '0-2'}) is not the same ")
        assert f"{usual} called {usual_text.format(sum=8 * comm.size)};" in text
        assert f"rank {last} called {other_text.format(sum=8 * comm.size)};" in text
        assert "rank 0 at test_checked_collectives.py:" in text
        assert f"rank {last} at test_checked_collectives.py:" in text
        assert comm.allgather(text) == [text] * comm.size


@pytest.mark.mpi(ranks=[3])
def test_a_mismatch_raises_in_a_test_too(comm: MPI.Intracomm) -> None:
    group = ProcessGrid(comm, check_collectives=True).world

    def sum_up() -> None:
        request = group.iallreduce(of(5 + (comm.rank == 1)))
        while not request.test():
            pass

    with pytest.raises(CollectiveMismatchError, match="rank 1 called non-blocking allreduce"):
        sum_up()


@pytest.mark.mpi(ranks=[2, 3])
def test_correct_programs_get_the_same_results(comm: MPI.Intracomm) -> None:
    numbers = np.arange(12.0).reshape(6, 2) * (comm.rank + 1)
    results: list[list[NDArray[Any]]] = []
    for checked in (False, True):
        grid = ProcessGrid(comm, check_collectives=checked, message_limit=40)
        group = grid.world.split(0, "all of them")
        assert type(group) is type(grid.world) is (Group if not checked else type(group))
        made = [numbers.copy() for _ in range(5)]
        group.barrier()
        first, second = group.iallreduce(made[0]), group.iallreduce(made[1], "max")
        group.allreduce(made[2])  # while two others are in flight
        second.wait()
        while not first.test():
            pass
        assert first.test()
        group.allgather_rows(made[3])
        group.broadcast(made[4], comm.size - 1)
        results.append(made)
    for plain, checked_numbers in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, checked_numbers)
    np.testing.assert_array_equal(results[1][0], np.arange(12.0).reshape(6, 2) * sum(range(1, comm.size + 1)))


@pytest.mark.mpi(ranks=[2])
def test_a_non_blocking_collective_does_not_wait_for_other_ranks(comm: MPI.Intracomm) -> None:
    """Rank 0 begins it long before rank 1, which first needs a message that rank 0 sends later: MPI allows that."""
    group = ProcessGrid(comm, check_collectives=True).world
    numbers, word = np.full(1000, 1.0 + comm.rank), np.zeros(1)
    if comm.rank == 0:
        request = group.iallreduce(numbers)
        assert not request.test()
        group.isend(np.ones(1), 1, tag=4).wait()
    else:
        group.ireceive(word, 0, tag=4).wait()
        request = group.iallreduce(numbers)
    request.wait()
    np.testing.assert_array_equal(numbers, 3.0)


@pytest.mark.mpi(ranks=[2])
def test_training_is_the_same_to_the_last_bit(comm: MPI.Intracomm) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 3
    weights = []
    for checked in (False, True):
        grid = ProcessGrid(comm, model=2, check_collectives=checked)
        trainer = Trainer(MLP([6, 300, 3]), SGD(0.1), grid=grid, batch_size=16)
        trainer.fit(x, y, epochs=2)
        weights.append(trainer.weights())
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array)


@pytest.mark.mpi(ranks=[2])
def test_without_it_nothing_is_compared(comm: MPI.Intracomm) -> None:
    grid = ProcessGrid(comm)
    groups = (grid.world, grid.batch_group, grid.model_group, grid.pipeline_group, grid.node_group)
    assert {type(group) for group in groups} == {Group}
