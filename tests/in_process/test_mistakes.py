"""Errors for wrong calls of ranks of one process: the message, and the lines that it names."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hybridnn import MLP, ProcessGrid, Trainer
from hybridnn.in_process import CommunicationError, DeadlockError, StuckError, run_ranks
from mpi_runner.slowness import deadline

IN_PLACE = "IN_PLACE"


def ring(comm: Any) -> None:
    own, left = np.ones(10), np.empty(10)
    comm.Send(own, (comm.rank + 1) % comm.size)
    comm.Recv(left, (comm.rank - 1) % comm.size)


@pytest.mark.parametrize("ranks", range(2, 8))
def test_a_blocking_ring_is_a_deadlock_with_its_cycle_line_and_picture(ranks: int, tmp_path: Path) -> None:
    start = monotonic()
    with pytest.raises(DeadlockError) as caught:
        run_ranks(ranks, ring)
    assert monotonic() - start < deadline(2)
    text = str(caught.value)
    line = ring.__code__.co_firstlineno + 2
    for rank in range(ranks):
        location = f"test_mistakes.py:{line} in ring"
        assert f"rank {rank} waits in send of 80 bytes to rank {(rank + 1) % ranks}, at {location}" in text
    assert "the cycle: " + " -> ".join(f"rank {rank}" for rank in (*range(ranks), 0)) in text
    caught.value.draw(tmp_path / "ring.svg")
    picture = ElementTree.parse(tmp_path / "ring.svg").getroot()
    drawn = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [f"rank {rank}" for rank in range(ranks)] == [text for text in drawn if text and text.startswith("rank ")]
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polygon"))) == ranks


def test_eager_sends_end_without_their_receive() -> None:
    assert run_ranks(3, ring, sends="eager").results == (None,) * 3


Program = Callable[[Any], Any]


def by_rank(*programs: Program) -> Program:
    """A program for each of the first ranks; the others do nothing."""
    return lambda comm: programs[comm.rank](comm) if comm.rank < len(programs) else None


def sends(elements: int, dtype: str = "f8", tag: int = 0) -> Program:
    """Send to the next rank."""
    return lambda comm: comm.Send(np.ones(elements, dtype), (comm.rank + 1) % comm.size, tag)


def receives(elements: int, tag: int = -1) -> Program:
    """Receive from the rank before, by default with any tag."""
    return lambda comm: comm.Recv(np.ones(elements), (comm.rank - 1) % comm.size, tag)


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


def polls_for_ever(comm: Any) -> None:
    if comm.rank == 0:
        request = comm.Ibarrier()
        while not request.Test():
            pass


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"test_mistakes.py:{function.__code__.co_firstlineno + offset} in {function.__name__}"


def polls_a_receive(comm: Any) -> None:
    if comm.rank != 2:
        request = comm.Irecv(np.empty(2), 1 - comm.rank, 6)
        while not request.Test():
            pass


def sends_with_the_own_rank_as_tag(comm: Any) -> None:
    own, left = np.ones(10), np.empty(10)
    send = comm.Isend(own, (comm.rank + 1) % comm.size, 1 + comm.rank)
    comm.Irecv(left, (comm.rank - 1) % comm.size, 1 + comm.rank).Wait()
    send.Wait()


def sends_a_pending_receive_buffer(comm: Any) -> None:
    data = np.empty(3)
    if comm.rank == 0:
        comm.Send(np.ones(3), 1)
    elif comm.rank == 1:
        receive = comm.Irecv(data, 0)
        comm.Send(data, 2)
        receive.Wait()
    else:
        comm.Recv(data, 1)


def writes_to_a_pending_receive_buffer(comm: Any) -> None:
    data = np.zeros(3, np.int64)
    if comm.rank == 0:
        comm.Send(np.ones(3, np.int64), 1)
    elif comm.rank == 1:
        receive = comm.Irecv(data, 0)
        data += 1
        receive.Wait()


def writes_to_a_pending_allreduce(comm: Any) -> None:
    array = np.ones(3)
    request = comm.Iallreduce(IN_PLACE, array)
    array[1] = 2.0
    request.Wait()


def reuses_a_buffer_of_a_broadcast(comm: Any) -> None:
    data = np.ones(3)
    request = comm.Ibcast(data, 0)
    if comm.rank == 0:
        data += 5
    request.Wait()


def waits_in_part_of_the_ranks(comm: Any) -> None:
    pair = comm.Split(comm.rank // 2)
    by_rank(lambda comm: pair.Barrier(), receives(1))(comm)


def has_a_cycle_beside_others(comm: Any) -> None:
    """Rank 0 waits for rank 1, which has ended, and for rank 2, which waits for rank 0."""
    if comm.rank == 0:
        requests = [comm.Irecv(np.empty(1), peer) for peer in (1, 2)]
        type(requests[0]).Waitall(requests)
    elif comm.rank == 2:
        comm.Recv(np.empty(1), 0)


DEADLOCKS: list[tuple[Program, list[str]]] = [
    (lambda comm: comm.rank == 1 or comm.Barrier(), ["rank 0 waits for rank 1, whose program has ended"]),
    (sends(3), ["sends, and none of the receives that they wait for has begun"]),
    (receives(3), ["receives, and none of the sends that they wait for has begun"]),
    (polls_for_ever, ["rank 0 waits in barrier, at", line_of(polls_for_ever, 2)]),
    (polls_a_receive, ["ranks 0, 1 wait for one another", line_of(polls_a_receive, 2), "from rank 1 with tag 6"]),
    (by_rank(sends(4, tag=5), receives(4, tag=6)), ["to rank 1 with tag 5", "from rank 0 with tag 6"]),
    (
        sends_with_the_own_rank_as_tag,
        ["has begun send of 80 bytes to rank", "with tag 2", "match none of those that are waited for"],
    ),
    (lambda comm: comm.rank != 1 or comm.Send(np.ones(4), 1), ["deadlock after 1 call: rank 1 waits for itself"]),
    (waits_in_part_of_the_ranks, ["rank 0 waits in barrier, in the communicator of ranks 0, 1, at"]),
    (has_a_cycle_beside_others, ["the cycle: rank 0 -> rank 2 -> rank 0"]),
]
MISTAKES: list[tuple[Program, list[str]]] = [
    (reuses_a_send_buffer, ["rank 0 changed the buffer", line_of(reuses_a_send_buffer, 5)]),
    (
        enters_other_collectives,
        [line_of(enters_other_collectives, 3), line_of(enters_other_collectives, 5), "broadcast(0)", "allreduce"],
    ),
    (by_rank(sends(5), receives(4)), ["rank 0 sends 5 elements", "rank 1 receives up to 4"]),
    (by_rank(sends(4, dtype="f4"), receives(4)), ["float32", "float64"]),
    (lambda comm: comm.Allreduce(IN_PLACE, np.ones(3 + comm.rank)), ["allreduce", "4 elements", "3 of float64"]),
    (
        by_rank(lambda comm: comm.Isend(np.ones(4), 1), receives(4)),
        ["no wait for its send of 32 bytes to rank 1"],
    ),
    (
        sends_a_pending_receive_buffer,
        [
            "rank 1 sends what its receive of 24 bytes from rank 0 has not brought yet",
            f"sent at {line_of(sends_a_pending_receive_buffer, 6)}",
            f"received at {line_of(sends_a_pending_receive_buffer, 5)}",
        ],
    ),
    (
        writes_to_a_pending_receive_buffer,
        [
            "rank 1 wrote to the buffer of its receive of 24 bytes from rank 0 before the wait",
            line_of(writes_to_a_pending_receive_buffer, 5),
            line_of(writes_to_a_pending_receive_buffer, 7),
        ],
    ),
    (
        writes_to_a_pending_allreduce,
        ["wrote to the buffer of its allreduce of 24 bytes before the wait", line_of(writes_to_a_pending_allreduce, 2)],
    ),
    (reuses_a_buffer_of_a_broadcast, ["rank 0 changed the buffer of its broadcast"]),
    (lambda comm: comm.Allreduce(*[np.ones(3)] * 2), ["the send and the receive buffer overlap"]),
    (
        lambda comm: comm.Allgather(np.ones(2 if comm.rank == 0 else 1), np.empty(3)),
        ["allgather", "2 elements of float64 for 1"],
    ),
    (lambda comm: comm.Bcast(np.ones(2 if comm.rank == 0 else 4)), ["broadcast", "2 elements", "buffer of 4"]),
    (
        lambda comm: comm.Reduce_scatter(np.ones(4), np.empty(1), [1, 1, 1]),
        ["recvcounts [1, 1, 1] of an array of 4 elements"],
    ),
    (lambda comm: comm.Bcast(np.ones(2), root=5), ["rank 5: the communicator has ranks 0 to 2"]),
    (lambda comm: comm.Allreduce(np.ones(2), np.empty(2), op="AVG"), ["op = 'AVG'", "SUM, MAX, MIN, PROD"]),
    (lambda comm: comm.Split(None), ["color = None"]),
    (lambda comm: comm.Send(np.ones((4, 4))[:, 0], 1), ["a buffer must be contiguous"]),
    (lambda comm: comm.Allreduce(np.ones(2), np.frombuffer(bytes(16))), ["must not be read-only"]),
]


@pytest.mark.parametrize(
    ("kind", "program", "fragments"),
    [
        *((DeadlockError, *case) for case in DEADLOCKS),
        *((CommunicationError, *case) for case in MISTAKES),
        (AttributeError, lambda comm: comm.bcast(1), ["no 'bcast': use Bcast, with arrays"]),
    ],
)
def test_wrong_calls_are_named(kind: type[Exception], program: Program, fragments: list[str]) -> None:
    with pytest.raises(kind) as caught:
        run_ranks(3, program)
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)


def test_a_deadlock_inside_the_library_names_the_line_of_the_user() -> None:
    def program(comm: Any) -> None:
        grid = ProcessGrid(comm, batch=2)
        if comm.rank == 0:
            Trainer(MLP([2, 3, 2]), grid=grid)

    with pytest.raises(DeadlockError, match=r"called from \S*test_mistakes.py:\d+ in program"):
        run_ranks(2, program)


def test_an_unreceived_message_is_named() -> None:
    with pytest.raises(CommunicationError, match="rank 0: send of 32 bytes to rank 1 was not received"):
        run_ranks(2, by_rank(sends(4)), sends="eager")


def test_a_rank_that_computes_without_end_is_named_with_its_line() -> None:
    def program(comm: Any) -> None:
        while comm.rank == 1:
            pass
        comm.Barrier()

    with pytest.raises(StuckError, match=r"rank 1 computed for 0.2 s .*test_mistakes.py:\d+ in program"):
        run_ranks(2, program, limit=0.2)


def test_a_rank_that_communicates_is_not_stuck() -> None:
    def program(comm: Any) -> None:
        data, end = np.ones(1), monotonic() + 2 * limit
        while comm.rank == 0 and monotonic() < end:
            sleep(limit / 20)
            comm.Sendrecv(data, 0, recvbuf=np.empty(1), source=0)
        comm.Barrier()

    limit = deadline(0.2)
    run_ranks(2, program, limit=limit)


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
