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

from hybridnn.comm.partition import block_bounds, block_sizes
from hybridnn.cost.collectives import counts
from hybridnn.errors import SettingError
from hybridnn.in_process import CommunicationError, DeadlockError, StuckError, run_ranks

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
    assert monotonic() - start < 20
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
        (polls_for_ever, DeadlockError, ["deadlock"]),
    ],
)
def test_calls_that_do_not_fit_are_named(program: Callable[..., Any], kind: type[Exception], said: list[str]) -> None:
    with pytest.raises(kind) as caught:
        run_ranks(3, program)
    assert all(words in str(caught.value) for words in said), str(caught.value)


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
    "wrong", [{"order": "any"}, {"order": True}, {"sends": "fast"}, {"delivery": 1}, {"alpha": -1.0}, {"limit": 0}]
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        run_ranks(2, ring, **wrong)
    with pytest.raises(SettingError, match="ranks"):
        run_ranks(0, ring)


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
