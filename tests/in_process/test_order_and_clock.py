"""The order in which ranks of one process run, and their virtual clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridnn.cost.collectives import ALGORITHMS, counts
from hybridnn.in_process import run_ranks


def test_the_order_of_ranks_is_drawn_from_the_seed() -> None:
    def program(comm: Any) -> None:
        order.append(comm.rank)
        comm.Barrier()
        order.append(comm.rank)

    orders = []
    for seed in (*range(20), *range(20)):
        order: list[int] = []
        run_ranks(4, program, order=seed)
        orders.append(tuple(order))
    assert orders[:20] == orders[20:]
    assert len(set(orders[:20])) > 5
    assert {order[0] for order in orders} == {0, 1, 2, 3}


def ring_allreduce(comm: Any, array: Any) -> None:
    """Reduce-scatter, then all-gather around the ring, from sends and receives."""
    blocks = np.split(array, comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * (comm.size - 1)):
        out, into = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        got = np.empty_like(blocks[into])
        comm.Sendrecv(blocks[out], right, recvbuf=got, source=left)
        blocks[into][...] = blocks[into] + got if step < comm.size - 1 else got


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_a_ring_of_sends_takes_the_time_of_the_formula(ranks: int) -> None:
    alpha, beta = 3e-6, 7e-10

    def program(comm: Any) -> Any:
        array = np.arange(120.0) * (comm.rank + 1)
        ring_allreduce(comm, array)
        return array

    run = run_ranks(ranks, program, alpha=alpha, beta=beta)
    for array in run.results:
        np.testing.assert_array_equal(array, np.arange(120.0) * ranks * (ranks + 1) / 2)
    expected = counts("allreduce", "ring", 960, ranks).seconds(alpha, beta)
    assert run.clock == pytest.approx([expected] * ranks, rel=1e-12)
    assert sum(message.name == "send" for message in run.messages) == ranks * 2 * (ranks - 1)


def test_collectives_take_the_time_of_the_formulas() -> None:
    alpha, beta = 1e-6, 1e-9

    def program(comm: Any, name: str) -> None:
        block, array = np.ones(100), np.ones(400)
        if name == "gather":
            comm.Gather(block, array if comm.rank == 2 else None, root=2)
        elif name == "scatter":
            comm.Scatter(array if comm.rank == 2 else None, block, root=2)
        elif name == "allgather":
            comm.Allgather(block, array)
        else:
            comm.Alltoall(array, np.empty(400))

    for name in ("gather", "scatter", "allgather"):
        times = {counts(name, algorithm, 3200, 4).seconds(alpha, beta) for algorithm in ALGORITHMS[name]}
        assert max(run_ranks(4, program, name, alpha=alpha, beta=beta).clock) == pytest.approx(min(times), rel=1e-12)
    clock = run_ranks(4, program, "alltoall", alpha=alpha, beta=beta).clock
    assert clock == pytest.approx([3 * (alpha + 800 * beta)] * 4, rel=1e-12)


def test_a_port_sends_one_message_at_a_time() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            for send in [comm.Isend(np.ones(1), peer) for peer in (1, 2, 3)]:
                send.Wait()
        else:
            comm.Recv(np.ones(1), 0)

    assert run_ranks(4, program, alpha=1.0).clock == (3.0, 1.0, 2.0, 3.0)
