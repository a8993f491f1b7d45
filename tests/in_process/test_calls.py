"""Calls between ranks of one process: what they deliver, when, and what is said where they do not fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.partition import block_bounds, block_sizes
from hybridnn.cost.collectives import ALGORITHMS, counts
from hybridnn.errors import SettingError
from hybridnn.in_process import CommunicationError, DeadlockError, StuckError, run_ranks
from mpi_runner.slowness import patience

IN_PLACE = "IN_PLACE"
RANKS = range(1, 8)


def brought(rank: int, size: int = 6) -> Any:
    return np.random.default_rng(rank).standard_normal(size)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("in_place", [False, True])
def test_reductions_give_the_sum_and_the_largest(ranks: int, in_place: bool) -> None:
    def program(comm: Any) -> list[Any]:
        found = []
        for operation in ("SUM", "MAX", "MIN"):
            mine = brought(comm.rank)
            out = mine.copy() if in_place else np.empty(6)
            comm.Iallreduce(IN_PLACE if in_place else mine, out, operation).Wait()
            found.append(out)
        return found

    everything = np.array([brought(rank) for rank in range(ranks)])
    expected = [everything.sum(0), everything.max(0), everything.min(0)]
    for found in run_ranks(ranks, program).results:
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("ranks", RANKS)
def test_blocks_of_any_size_reach_their_places(ranks: int) -> None:
    counts_ = list(block_sizes(10, ranks))
    offsets = [block_bounds(10, ranks, rank)[0] for rank in range(ranks)]
    whole = np.arange(10.0)
    root = ranks // 2

    def program(comm: Any) -> dict[str, Any]:
        n, at = counts_[comm.rank], offsets[comm.rank]
        part, found = whole[at : at + n].copy(), {}
        found["allgather"] = np.empty(10)
        comm.Iallgatherv(part, [found["allgather"], counts_, offsets, None]).Wait()
        found["in place"] = np.where(np.isin(np.arange(10), np.arange(at, at + n)), whole, -1.0)
        comm.Allgatherv(IN_PLACE, [found["in place"], counts_, offsets, None])
        found["scatter"] = np.empty(n)
        comm.Iscatterv([whole, counts_, offsets, None] if comm.rank == root else None, found["scatter"], root).Wait()
        found["gather"] = np.full(10, -1.0)
        comm.Gatherv(part, [found["gather"], counts_, offsets, None] if comm.rank == root else None, root)
        found["broadcast"] = whole.copy() if comm.rank == root else np.empty(10)
        comm.Ibcast(found["broadcast"], root).Wait()
        found["reduce_scatter"] = np.empty(n)
        comm.Ireduce_scatter(whole * (comm.rank + 1), found["reduce_scatter"], counts_).Wait()
        found["alltoall"] = np.empty(ranks)
        comm.Ialltoall(np.arange(ranks) + 100.0 * comm.rank, found["alltoall"]).Wait()
        return found

    total = ranks * (ranks + 1) / 2
    for rank, found in enumerate(run_ranks(ranks, program).results):
        mine = whole[offsets[rank] : offsets[rank] + counts_[rank]]
        for name in ("allgather", "in place", "broadcast"):
            np.testing.assert_array_equal(found[name], whole, err_msg=name)
        np.testing.assert_array_equal(found["scatter"], mine)
        np.testing.assert_array_equal(found["gather"], whole if rank == root else np.full(10, -1.0))
        np.testing.assert_array_equal(found["reduce_scatter"], total * mine)
        np.testing.assert_array_equal(found["alltoall"], rank + 100.0 * np.arange(ranks))


def test_a_split_orders_ranks_by_key_and_keeps_groups_apart() -> None:
    def program(comm: Any) -> tuple[int, float]:
        half = comm.Split(comm.rank % 2, -comm.rank)
        total = np.array([float(comm.rank)])
        half.Allreduce(IN_PLACE, total)
        return half.Get_rank(), total[0]

    assert run_ranks(5, program).results == ((2, 6.0), (1, 4.0), (1, 6.0), (0, 4.0), (0, 6.0))


def test_messages_meet_in_the_order_of_their_tags() -> None:
    def program(comm: Any) -> list[float]:
        if comm.rank == 0:
            sends = [comm.Isend(np.array([float(value)]), 1, tag) for value, tag in ((1, 7), (2, 8), (3, 7))]
            for send in reversed(sends):
                send.Wait()
            return []
        found = np.empty(3)
        for place, tag in enumerate((8, 7, -1)):
            comm.Recv(found[place : place + 1], 0, tag)
        return found.tolist()

    assert run_ranks(2, program).results[1] == [2.0, 1.0, 3.0]


# -- what is wrong ---------------------------------------------------------------------------------------------------


def ring(comm: Any) -> None:
    mine, left = np.ones(10), np.empty(10)
    comm.Send(mine, (comm.rank + 1) % comm.size)
    comm.Recv(left, (comm.rank - 1) % comm.size)


@pytest.mark.parametrize("ranks", range(2, 8))
def test_a_blocking_ring_is_a_deadlock_with_its_circle_line_and_picture(ranks: int, tmp_path: Path) -> None:
    start = monotonic()
    with pytest.raises(DeadlockError) as caught:
        run_ranks(ranks, ring)
    assert monotonic() - start < patience(2)
    text = str(caught.value)
    line = ring.__code__.co_firstlineno + 2
    for rank in range(ranks):
        place = f"test_calls.py:{line} in ring"
        assert f"rank {rank} waits in send of 80 bytes to rank {(rank + 1) % ranks}, at {place}" in text
    assert "the circle: " + " -> ".join(f"rank {rank}" for rank in (*range(ranks), 0)) in text
    caught.value.draw(tmp_path / "ring.svg")
    picture = ElementTree.parse(tmp_path / "ring.svg").getroot()
    drawn = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [f"rank {rank}" for rank in range(ranks)] == [text for text in drawn if text and text.startswith("rank ")]
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polygon"))) == ranks


def test_eager_sends_end_without_their_receive() -> None:
    assert run_ranks(3, ring, sends="eager").results == (None,) * 3


def waits_for_one_that_left(comm: Any) -> None:
    if comm.rank != 1:
        comm.Barrier()


def reuses_a_send_buffer(comm: Any) -> None:
    data = np.ones(3)
    if comm.rank == 1:
        comm.Recv(data, 0)
    elif comm.rank == 0:
        send = comm.Isend(data, 1)
        data += 1
        send.Wait()


def enters_other_collectives(comm: Any) -> None:
    data = np.ones(3)
    if comm.rank == 1:
        comm.Bcast(data)
    else:
        comm.Allreduce(IN_PLACE, data)


def sends_more_than_fits(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(5), 1)
    elif comm.rank == 1:
        comm.Recv(np.ones(4), 0)


def sends_another_type(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(4, np.float32), 1)
    elif comm.rank == 1:
        comm.Recv(np.ones(4), 0)


def reduces_other_sizes(comm: Any) -> None:
    comm.Allreduce(IN_PLACE, np.ones(3 + comm.rank))


def forgets_a_wait(comm: Any) -> None:
    if comm.rank == 0:
        comm.Isend(np.ones(4), 1)
    elif comm.rank == 1:
        comm.Recv(np.ones(4), 0)


def sends_to_nobody(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(4), 1)


def polls_for_ever(comm: Any) -> None:
    if comm.rank == 0:
        request = comm.Ibarrier()
        while not request.Test():
            pass


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"test_calls.py:{function.__code__.co_firstlineno + offset} in {function.__name__}"


def polls_for_a_message(comm: Any) -> None:
    if comm.rank != 2:
        request = comm.Irecv(np.empty(2), 1 - comm.rank, 6)
        while not request.Test():
            pass


def tags_differ(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(4), 1, tag=5)
    elif comm.rank == 1:
        comm.Recv(np.ones(4), 0, tag=6)


def sends_to_itself(comm: Any) -> None:
    if comm.rank == 1:
        comm.Send(np.ones(4), 1)


def waits_in_part_of_the_ranks(comm: Any) -> None:
    pair = comm.Split(comm.rank // 2)
    if comm.rank == 0:
        pair.Barrier()
    elif comm.rank == 1:
        comm.Recv(np.empty(1), 0)


def has_a_circle_beside_others(comm: Any) -> None:
    """Rank 0 waits for rank 1, which has ended, and for rank 2, which waits for rank 0."""
    if comm.rank == 0:
        requests = [comm.Irecv(np.empty(1), peer) for peer in (1, 2)]
        type(requests[0]).Waitall(requests)
    elif comm.rank == 2:
        comm.Recv(np.empty(1), 0)


def passes_on_what_has_not_arrived(comm: Any) -> None:
    data = np.empty(3)
    if comm.rank == 0:
        comm.Send(np.ones(3), 1)
    elif comm.rank == 1:
        receive = comm.Irecv(data, 0)
        comm.Send(data, 2)
        receive.Wait()
    else:
        comm.Recv(data, 1)


def adds_to_what_has_not_arrived(comm: Any) -> None:
    data = np.zeros(3, np.int64)
    if comm.rank == 0:
        comm.Send(np.ones(3, np.int64), 1)
    elif comm.rank == 1:
        receive = comm.Irecv(data, 0)
        data += 1
        receive.Wait()


def reuses_a_buffer_of_a_broadcast(comm: Any) -> None:
    data = np.ones(3)
    request = comm.Ibcast(data, 0)
    if comm.rank == 0:
        data += 5
    request.Wait()


def reuses_a_buffer_of_an_allreduce(comm: Any) -> None:
    data, total = np.ones(3), np.empty(3)
    request = comm.Iallreduce(data, total)
    data += 5
    request.Wait()


def sends_what_it_receives(comm: Any) -> None:
    data = np.ones(3)
    comm.Allreduce(data, data)


def gathers_other_sizes(comm: Any) -> None:
    comm.Allgather(np.ones(2 if comm.rank == 0 else 1), np.empty(3))


def broadcasts_into_a_longer_buffer(comm: Any) -> None:
    comm.Bcast(np.ones(2 if comm.rank == 0 else 4))


def scatters_a_wrong_sum(comm: Any) -> None:
    comm.Reduce_scatter(np.ones(4), np.empty(1), [1, 1, 1])


def names_a_root_that_is_not_there(comm: Any) -> None:
    comm.Bcast(np.ones(2), root=5)


def names_an_unknown_reduction(comm: Any) -> None:
    comm.Allreduce(np.ones(2), np.empty(2), op="AVG")


def splits_without_a_color(comm: Any) -> None:
    comm.Split(None)


def sends_a_column(comm: Any) -> None:
    comm.Send(np.ones((4, 4))[:, 0], 1)


def receives_into_a_constant(comm: Any) -> None:
    data = np.ones(2)
    data.flags.writeable = False
    comm.Allreduce(np.ones(2), data)


@pytest.mark.parametrize(
    ("program", "kind", "said"),
    [
        (waits_for_one_that_left, DeadlockError, ["rank 0 waits for rank 1, whose program has ended"]),
        (reuses_a_send_buffer, CommunicationError, ["rank 0 changed the buffer", line_of(reuses_a_send_buffer, 5)]),
        (
            enters_other_collectives,
            CommunicationError,
            [line_of(enters_other_collectives, 3), line_of(enters_other_collectives, 5), "broadcast(0)", "allreduce"],
        ),
        (sends_more_than_fits, CommunicationError, ["rank 0 sends 5 elements", "rank 1 receives up to 4"]),
        (sends_another_type, CommunicationError, ["float32", "float64"]),
        (reduces_other_sizes, CommunicationError, ["allreduce", "4 elements", "3 of float64"]),
        (forgets_a_wait, CommunicationError, ["no wait for its send of 32 bytes to rank 1"]),
        (polls_for_ever, DeadlockError, ["rank 0 waits in barrier, at", line_of(polls_for_ever, 2)]),
        (
            polls_for_a_message,
            DeadlockError,
            ["ranks 0, 1 wait for one another", line_of(polls_for_a_message, 2), "from rank 1 with tag 6"],
        ),
        (tags_differ, DeadlockError, ["to rank 1 with tag 5", "from rank 0 with tag 6"]),
        (sends_to_itself, DeadlockError, ["deadlock after 1 call: rank 1 waits for itself"]),
        (waits_in_part_of_the_ranks, DeadlockError, ["rank 0 waits in barrier, in the communicator of ranks 0, 1, at"]),
        (has_a_circle_beside_others, DeadlockError, ["the circle: rank 0 -> rank 2 -> rank 0"]),
        (
            passes_on_what_has_not_arrived,
            CommunicationError,
            [
                "rank 1 sends what its receive of 24 bytes from rank 0 has not brought yet",
                f"sent at {line_of(passes_on_what_has_not_arrived, 6)}",
                f"received at {line_of(passes_on_what_has_not_arrived, 5)}",
            ],
        ),
        (
            adds_to_what_has_not_arrived,
            CommunicationError,
            [
                "rank 1 wrote to the buffer of its receive of 24 bytes from rank 0 before the wait",
                line_of(adds_to_what_has_not_arrived, 5),
                line_of(adds_to_what_has_not_arrived, 7),
            ],
        ),
        (reuses_a_buffer_of_a_broadcast, CommunicationError, ["rank 0 changed the buffer of its broadcast"]),
        (reuses_a_buffer_of_an_allreduce, CommunicationError, ["changed the buffer of its allreduce"]),
        (sends_what_it_receives, CommunicationError, ["the send and the receive buffer overlap"]),
        (gathers_other_sizes, CommunicationError, ["allgather", "2 elements of float64 for 1"]),
        (broadcasts_into_a_longer_buffer, CommunicationError, ["broadcast", "2 elements", "buffer of 4"]),
        (scatters_a_wrong_sum, CommunicationError, ["recvcounts [1, 1, 1] of an array of 4 elements"]),
        (names_a_root_that_is_not_there, CommunicationError, ["rank 5: the communicator has ranks 0 to 2"]),
        (names_an_unknown_reduction, CommunicationError, ["op = 'AVG'", "SUM, MAX, MIN, PROD"]),
        (splits_without_a_color, CommunicationError, ["color = None"]),
        (sends_a_column, CommunicationError, ["a buffer must be contiguous"]),
        (receives_into_a_constant, CommunicationError, ["must not be read-only"]),
        (lambda comm: comm.bcast(1), AttributeError, ["no 'bcast': use Bcast, with arrays"]),
    ],
)
def test_calls_that_do_not_fit_are_named(program: Callable[..., Any], kind: type[Exception], said: list[str]) -> None:
    with pytest.raises(kind) as caught:
        run_ranks(3, program)
    assert all(words in str(caught.value) for words in said), str(caught.value)


def test_a_deadlock_inside_the_library_names_the_line_of_the_user() -> None:
    def program(comm: Any) -> None:
        grid = ProcessGrid(comm, batch=2)
        if comm.rank == 0:
            Trainer(MLP([2, 3, 2]), grid=grid)

    with pytest.raises(DeadlockError, match=r"called from \S*test_calls.py:\d+ in program"):
        run_ranks(2, program)


def test_what_a_message_does_not_fill_stays_as_it_was() -> None:
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
def test_a_program_with_the_constants_of_mpi4py_runs_in_one_process_too(comm: Any) -> None:
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


def test_a_message_that_nobody_received_is_named() -> None:
    with pytest.raises(CommunicationError, match="rank 0: send of 32 bytes to rank 1 was not received"):
        run_ranks(2, sends_to_nobody, sends="eager")


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


def test_a_rank_that_computes_for_ever_is_named_with_its_line() -> None:
    def program(comm: Any) -> None:
        while comm.rank == 1:
            pass
        comm.Barrier()

    with pytest.raises(StuckError, match=r"rank 1 computed for 0.2 s .*test_calls.py:\d+ in program"):
        run_ranks(2, program, limit=0.2)


def test_a_rank_that_communicates_is_not_stuck() -> None:
    def program(comm: Any) -> None:
        data, end = np.ones(1), monotonic() + 0.6
        while comm.rank == 0 and monotonic() < end:
            comm.Sendrecv(data, 0, recvbuf=np.empty(1), source=0)
        comm.Barrier()

    run_ranks(2, program, limit=0.2)


def test_an_error_of_one_rank_ends_all_and_is_raised() -> None:
    left: list[int] = []

    def program(comm: Any) -> None:
        try:
            comm.Barrier()
            if comm.rank == 1:
                raise ZeroDivisionError("of rank 1")
            comm.Barrier()
        finally:
            left.append(comm.rank)

    with pytest.raises(ZeroDivisionError, match="of rank 1"):
        run_ranks(3, program)
    assert sorted(left) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep": -1},
        {"machine": "vm"},
        {"order": -1},
        {"order": "any"},
        {"order": True},
        {"sends": "fast"},
        {"delivery": 1},
        {"alpha": -1.0},
        {"limit": 0},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        run_ranks(2, ring, **wrong)
    for ranks in (0, 5000):
        with pytest.raises(SettingError, match=r"ranks = .*: a whole number from 1 to "):
            run_ranks(ranks, ring)


# -- order and time --------------------------------------------------------------------------------------------------


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
    """Reduce-scatter, then all-gather round the ring, from sends and receives."""
    blocks = np.split(array, comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * (comm.size - 1)):
        out, into = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        got = np.empty_like(blocks[into])
        comm.Sendrecv(blocks[out], right, recvbuf=got, source=left)
        blocks[into][...] = blocks[into] + got if step < comm.size - 1 else got


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_a_ring_from_sends_takes_what_the_formula_says(ranks: int) -> None:
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


def test_collectives_take_what_the_formulas_say_for_all_their_parts() -> None:
    alpha, beta = 1e-6, 1e-9

    def program(comm: Any, name: str) -> None:
        part, whole = np.ones(100), np.ones(400)
        if name == "gather":
            comm.Gather(part, whole if comm.rank == 2 else None, root=2)
        elif name == "scatter":
            comm.Scatter(whole if comm.rank == 2 else None, part, root=2)
        elif name == "allgather":
            comm.Allgather(part, whole)
        else:
            comm.Alltoall(whole, np.empty(400))

    for name in ("gather", "scatter", "allgather"):
        times = {counts(name, way, 3200, 4).seconds(alpha, beta) for way in ALGORITHMS[name]}
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


def test_ranks_of_one_process_need_no_mpi4py() -> None:
    program = """
import sys
sys.modules["mpi4py"] = None
import numpy as np
from hybridnn import MLP, SGD, ProcessGrid, Trainer
from hybridnn.in_process import run_ranks

def program(comm):
    x = np.linspace(-1, 1, 60)[:, None]
    trainer = Trainer(MLP([1, 8, 1], "tanh"), SGD(lr=0.1), grid=ProcessGrid(comm, batch=2, model=1), batch_size=20)
    trainer.fit(x, x**2, epochs=2)
    return trainer.evaluate(x, x**2).samples

print(run_ranks(2, program).results)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "(60, 60)\n", done.stderr
