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


def only_sends(comm: Any) -> None:
    comm.Send(np.ones(3), (comm.rank + 1) % comm.size)


def only_receives(comm: Any) -> None:
    comm.Recv(np.ones(3), (comm.rank - 1) % comm.size)


def waits_for_a_rank_that_has_ended(comm: Any) -> None:
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


def sends_without_a_receive(comm: Any) -> None:
    if comm.rank == 0:
        comm.Send(np.ones(4), 1)


def polls_for_ever(comm: Any) -> None:
    if comm.rank == 0:
        request = comm.Ibarrier()
        while not request.Test():
            pass


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"test_mistakes.py:{function.__code__.co_firstlineno + offset} in {function.__name__}"


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


def sends_with_the_own_rank_as_tag(comm: Any) -> None:
    own, left = np.ones(10), np.empty(10)
    send = comm.Isend(own, (comm.rank + 1) % comm.size, 1 + comm.rank)
    comm.Irecv(left, (comm.rank - 1) % comm.size, 1 + comm.rank).Wait()
    send.Wait()


def sends_to_itself(comm: Any) -> None:
    if comm.rank == 1:
        comm.Send(np.ones(4), 1)


def waits_in_part_of_the_ranks(comm: Any) -> None:
    pair = comm.Split(comm.rank // 2)
    if comm.rank == 0:
        pair.Barrier()
    elif comm.rank == 1:
        comm.Recv(np.empty(1), 0)


def has_a_cycle_beside_others(comm: Any) -> None:
    """Rank 0 waits for rank 1, which has ended, and for rank 2, which waits for rank 0."""
    if comm.rank == 0:
        requests = [comm.Irecv(np.empty(1), peer) for peer in (1, 2)]
        type(requests[0]).Waitall(requests)
    elif comm.rank == 2:
        comm.Recv(np.empty(1), 0)


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


def sends_what_it_receives(comm: Any) -> None:
    data = np.ones(3)
    comm.Allreduce(data, data)


def gathers_other_sizes(comm: Any) -> None:
    comm.Allgather(np.ones(2 if comm.rank == 0 else 1), np.empty(3))


def broadcasts_into_a_longer_buffer(comm: Any) -> None:
    comm.Bcast(np.ones(2 if comm.rank == 0 else 4))


def scatters_a_wrong_sum(comm: Any) -> None:
    comm.Reduce_scatter(np.ones(4), np.empty(1), [1, 1, 1])


def names_an_unknown_reduction(comm: Any) -> None:
    comm.Allreduce(np.ones(2), np.empty(2), op="AVG")


def receives_into_a_constant(comm: Any) -> None:
    data = np.ones(2)
    data.flags.writeable = False
    comm.Allreduce(np.ones(2), data)


@pytest.mark.parametrize(
    ("program", "kind", "fragments"),
    [
        (waits_for_a_rank_that_has_ended, DeadlockError, ["rank 0 waits for rank 1, whose program has ended"]),
        (only_sends, DeadlockError, ["sends, and none of the receives that they wait for has begun"]),
        (only_receives, DeadlockError, ["receives, and none of the sends that they wait for has begun"]),
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
        (
            sends_with_the_own_rank_as_tag,
            DeadlockError,
            ["has begun send of 80 bytes to rank", "with tag 2", "match none of those that are waited for"],
        ),
        (sends_to_itself, DeadlockError, ["deadlock after 1 call: rank 1 waits for itself"]),
        (waits_in_part_of_the_ranks, DeadlockError, ["rank 0 waits in barrier, in the communicator of ranks 0, 1, at"]),
        (has_a_cycle_beside_others, DeadlockError, ["the cycle: rank 0 -> rank 2 -> rank 0"]),
        (
            sends_a_pending_receive_buffer,
            CommunicationError,
            [
                "rank 1 sends what its receive of 24 bytes from rank 0 has not brought yet",
                f"sent at {line_of(sends_a_pending_receive_buffer, 6)}",
                f"received at {line_of(sends_a_pending_receive_buffer, 5)}",
            ],
        ),
        (
            writes_to_a_pending_receive_buffer,
            CommunicationError,
            [
                "rank 1 wrote to the buffer of its receive of 24 bytes from rank 0 before the wait",
                line_of(writes_to_a_pending_receive_buffer, 5),
                line_of(writes_to_a_pending_receive_buffer, 7),
            ],
        ),
        (
            writes_to_a_pending_allreduce,
            CommunicationError,
            [
                "wrote to the buffer of its allreduce of 24 bytes before the wait",
                line_of(writes_to_a_pending_allreduce, 2),
            ],
        ),
        (reuses_a_buffer_of_a_broadcast, CommunicationError, ["rank 0 changed the buffer of its broadcast"]),
        (sends_what_it_receives, CommunicationError, ["the send and the receive buffer overlap"]),
        (gathers_other_sizes, CommunicationError, ["allgather", "2 elements of float64 for 1"]),
        (broadcasts_into_a_longer_buffer, CommunicationError, ["broadcast", "2 elements", "buffer of 4"]),
        (scatters_a_wrong_sum, CommunicationError, ["recvcounts [1, 1, 1] of an array of 4 elements"]),
        (
            lambda comm: comm.Bcast(np.ones(2), root=5),
            CommunicationError,
            ["rank 5: the communicator has ranks 0 to 2"],
        ),
        (names_an_unknown_reduction, CommunicationError, ["op = 'AVG'", "SUM, MAX, MIN, PROD"]),
        (lambda comm: comm.Split(None), CommunicationError, ["color = None"]),
        (lambda comm: comm.Send(np.ones((4, 4))[:, 0], 1), CommunicationError, ["a buffer must be contiguous"]),
        (receives_into_a_constant, CommunicationError, ["must not be read-only"]),
        (lambda comm: comm.bcast(1), AttributeError, ["no 'bcast': use Bcast, with arrays"]),
    ],
)
def test_wrong_calls_are_named(program: Callable[..., Any], kind: type[Exception], fragments: list[str]) -> None:
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
        run_ranks(2, sends_without_a_receive, sends="eager")


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
