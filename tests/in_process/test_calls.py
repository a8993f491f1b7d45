"""Calls of ranks in one process: results, order and time."""

from typing import Any

import numpy as np
import pytest

from hybridnn.comm.blocks import block_bounds, block_sizes
from hybridnn.comm.mpi import import_mpi
from hybridnn.cost.collectives import ALGORITHMS, counts
from hybridnn.in_process import run_ranks

IN_PLACE = "IN_PLACE"
RANKS = (1, 2, 3, 7)


def data_of(rank: int, size: int = 6) -> Any:
    return np.random.default_rng(rank).standard_normal(size)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_reductions(ranks: int, in_place: bool) -> None:
    def program(comm: Any) -> list[Any]:
        found = []
        for operation in ("SUM", "MAX", "MIN"):
            own = data_of(comm.rank)
            out = own.copy() if in_place else np.empty(6)
            comm.Iallreduce(IN_PLACE if in_place else own, out, operation).Wait()
            found.append(out)
        return found

    arrays = np.array([data_of(rank) for rank in range(ranks)])
    expected = [arrays.sum(0), arrays.max(0), arrays.min(0)]
    for found in run_ranks(ranks, program).results:
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives_of_blocks_of_any_size(ranks: int) -> None:
    counts = list(block_sizes(10, ranks))
    offsets = [block_bounds(10, ranks, rank)[0] for rank in range(ranks)]
    array = np.arange(10.0)
    root = ranks // 2

    def program(comm: Any) -> dict[str, Any]:
        n, at = counts[comm.rank], offsets[comm.rank]
        part, found = array[at : at + n].copy(), {}
        found["allgather"] = np.empty(10)
        comm.Iallgatherv(part, [found["allgather"], counts, offsets, None]).Wait()
        found["in place"] = np.where(np.isin(np.arange(10), np.arange(at, at + n)), array, -1.0)
        comm.Allgatherv(IN_PLACE, [found["in place"], counts, offsets, None])
        found["scatter"] = np.empty(n)
        comm.Iscatterv([array, counts, offsets, None] if comm.rank == root else None, found["scatter"], root).Wait()
        found["gather"] = np.full(10, -1.0)
        comm.Gatherv(part, [found["gather"], counts, offsets, None] if comm.rank == root else None, root)
        found["broadcast"] = array.copy() if comm.rank == root else np.empty(10)
        comm.Ibcast(found["broadcast"], root).Wait()
        found["reduce_scatter"] = np.empty(n)
        comm.Ireduce_scatter(array * (comm.rank + 1), found["reduce_scatter"], counts).Wait()
        found["alltoall"] = np.empty(ranks)
        comm.Ialltoall(np.arange(ranks) + 100.0 * comm.rank, found["alltoall"]).Wait()
        return found

    total = ranks * (ranks + 1) / 2
    for rank, found in enumerate(run_ranks(ranks, program).results):
        own = array[offsets[rank] : offsets[rank] + counts[rank]]
        for name in ("allgather", "in place", "broadcast"):
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(found["scatter"], own)
        np.testing.assert_array_equal(found["gather"], array if rank == root else np.full(10, -1.0))
        np.testing.assert_array_equal(found["reduce_scatter"], total * own)
        np.testing.assert_array_equal(found["alltoall"], rank + 100.0 * np.arange(ranks))


def test_a_split_orders_ranks_by_key_and_keeps_groups_apart() -> None:
    def program(comm: Any) -> tuple[int, float]:
        half = comm.Split(comm.rank % 2, -comm.rank)
        total = np.array([float(comm.rank)])
        half.Allreduce(IN_PLACE, total)
        return half.Get_rank(), total[0]

    assert run_ranks(5, program).results == ((2, 6.0), (1, 4.0), (1, 6.0), (0, 4.0), (0, 6.0))


def test_messages_match_by_tag_in_order() -> None:
    def program(comm: Any) -> list[float]:
        if comm.rank == 0:
            sends = [comm.Isend(np.array([float(value)]), 1, tag) for value, tag in ((1, 7), (2, 8), (3, 7))]
            for send in reversed(sends):
                send.Wait()
            return []
        found = np.empty(3)
        for index, tag in enumerate((8, 7, -1)):
            comm.Recv(found[index : index + 1], 0, tag)
        return found.tolist()

    assert run_ranks(2, program).results[1] == [2.0, 1.0, 3.0]


def test_elements_that_no_message_fills_keep_their_values() -> None:
    def program(comm: Any) -> tuple[list[float], list[float]]:
        got, gathered = np.zeros(4), np.full(5, -1.0)
        if comm.rank == 1:
            comm.Send(np.ones(2), 0)
        else:
            comm.Recv(got, 1)
        comm.Allgatherv(np.full(2, float(comm.rank)), [gathered, (2, 2), (0, 3), "d"])
        return got.tolist(), gathered.tolist()

    assert run_ranks(2, program).results[0] == ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 1.0])


def test_counts_of_a_buffer_are_those_of_mpi4py() -> None:
    def program(comm: Any) -> tuple[list[float], list[float]]:
        got, gathered = np.zeros(4), np.zeros(4)
        if comm.rank == 1:
            comm.Send([np.arange(4.0), 2, "d"], 0)
        else:
            comm.Recv([got, 3, "d"], 1)
        comm.Allgatherv(np.full(2, float(comm.rank)), [gathered, ((2, 2), (2, 0)), "d"])
        return got.tolist(), gathered.tolist()

    assert run_ranks(2, program).results[0] == ([0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0])


PROGRAM_OF_BOTH = """
import numpy as np
def program(comm, MPI):
    total, largest, gathered = np.array([10.0 * comm.rank]), np.empty(1), np.zeros(comm.size)
    comm.Allreduce(MPI.IN_PLACE, total)
    comm.Allreduce(total + comm.rank, largest, op=MPI.MAX)
    comm.Allgather(total + comm.rank, [gathered, 1, MPI.DOUBLE])
    none = comm.Split(MPI.UNDEFINED if comm.rank else 0)
    return total[0], largest[0], gathered.tolist(), none == MPI.COMM_NULL
"""


@pytest.mark.mpi(ranks=[3])
def test_programs_with_the_constants_of_mpi4py(comm: Any) -> None:
    from mpi4py import MPI

    names: dict[str, Any] = {}
    exec(PROGRAM_OF_BOTH, names)
    expected = names["program"](comm, MPI)
    found = run_ranks(3, names["program"], MPI).results[comm.rank]
    assert found[:3] == expected[:3]
    assert expected[3] is (comm.rank > 0)


def test_a_split_leaves_out_ranks_without_a_color() -> None:
    def program(comm: Any) -> int:
        part = comm.Split(import_mpi().UNDEFINED if comm.rank == 1 else 0)
        return part.Get_size() if part is not None else 0

    assert run_ranks(3, program).results == (2, 0, 2)


def test_a_receive_buffer_holds_nan_until_its_wait() -> None:
    def program(comm: Any) -> tuple[bool, float]:
        data = np.full(3, float(comm.rank))
        if comm.rank == 1:
            comm.Send(data, 0)
            return False, 0.0
        receive = comm.Irecv(data, 1)
        unreadable = bool(np.isnan(data).all())
        receive.Wait()
        return unreadable, float(data[0])

    assert run_ranks(2, program).results[0] == (True, 1.0)
    assert run_ranks(2, program, delivery="early").results[0] == (False, 1.0)


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
