"""The tries of MPI on real ranks: they work, they see what is wrong, and they give up in time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.doctor import probes, roll_call
from hybridnn.doctor.deadline import Deadline, OutOfTimeError, finish, within
from mpi_runner.slowness import deadline

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = deadline(30)


class Never:
    """A request that is never done."""

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return False


@pytest.mark.parametrize("awake", [False, True])
def test_waiting_ends_with_the_time(awake: bool) -> None:
    with pytest.raises(OutOfTimeError, match=r"did not end within 0\.05 s"):
        finish([Never()], Deadline(0.05), awake=awake)


def test_a_call_within_a_time_limit() -> None:
    assert within(LIMIT, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(LIMIT, lambda: 1 // 0)
    with pytest.raises(OutOfTimeError):
        within(0.05, lambda: time.sleep(3600))


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_ranks_find_each_other_and_share_memory(comm: MPI.Intracomm) -> None:
    own = roll_call.own_communicator(LIMIT)
    assert (own.Get_rank(), own.Get_size()) == (comm.Get_rank(), comm.Get_size())
    node, nodes = roll_call.find_nodes(own, LIMIT)
    assert nodes == [0] * comm.Get_size()
    assert node.Get_size() == comm.Get_size()
    probes.try_window(node, LIMIT)


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_sums_and_messages_are_timed(comm: MPI.Intracomm) -> None:
    sizes = (8, 1 << 16)
    sums = probes.time_all_reduce(comm, sizes, LIMIT)
    assert [timing.nbytes for timing in sums] == list(sizes)
    assert all(0 < timing.seconds < LIMIT for timing in sums)
    last = comm.Get_size() - 1
    messages = probes.time_ping_pong(comm, last, sizes, LIMIT) if last else []
    takes_part = last and comm.Get_rank() in (0, last)
    assert [timing.nbytes for timing in messages] == (list(sizes) if takes_part else [])


@pytest.mark.mpi(ranks=[2])
def test_a_wrong_sum_is_seen(comm: MPI.Intracomm) -> None:
    class Lying:
        """A communicator whose sums lack the last rank."""

        def __getattr__(self, name: str) -> Any:
            return getattr(comm, name)

        def Iallreduce(self, mine: Any, total: Any) -> Any:  # noqa: N802 - MPI's name
            return comm.Iallreduce(mine * (comm.Get_rank() == 0), total)

    with pytest.raises(RuntimeError, match="wrong sum"):
        probes.time_all_reduce(Lying(), (8,), LIMIT)  # type: ignore[arg-type]


@pytest.mark.mpi(ranks=[1, 3])
def test_a_file_that_all_write(comm: MPI.Intracomm, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(comm.bcast(str(tmp_path_factory.mktemp("shared"))))
    probes.try_file(comm, folder / "file", LIMIT)
    comm.Barrier()
    assert list(folder.iterdir()) == []
    with pytest.raises(RuntimeError, match="it cannot be written: No such file"):
        probes.try_file(comm, folder / "no" / "file", LIMIT)
    comm.Barrier()


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_texts_are_collected_and_a_code_is_spread(comm: MPI.Intracomm) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    texts = roll_call.collect_texts("ä" * 1000 * rank, LIMIT)
    assert texts == (["ä" * 1000 * other for other in range(size)] if rank == 0 else [])
    assert roll_call.spread_code(40 + rank, LIMIT) == 40
    assert roll_call.all_agree(comm, True, LIMIT)
    assert roll_call.all_agree(comm, rank != 0, LIMIT) is False


@pytest.mark.mpi(ranks=[3])
def test_a_rank_that_does_not_come_is_not_waited_for(comm: MPI.Intracomm) -> None:
    if comm.Get_rank() == 1:
        time.sleep(1.0)
    else:
        assert not roll_call.all_agree(comm, True, 0.2)
    if comm.Get_rank() == 1:  # joins late, so that no request is left over
        roll_call.all_agree(comm, True, LIMIT)
    comm.Barrier()


@pytest.mark.mpi(ranks=[3])
def test_a_rank_without_a_text_is_known(comm: MPI.Intracomm) -> None:
    if comm.Get_rank() != 1:
        texts = roll_call.collect_texts("here", deadline(1))
        assert texts == (["here", None, "here"] if comm.Get_rank() == 0 else [])
    comm.Barrier()
