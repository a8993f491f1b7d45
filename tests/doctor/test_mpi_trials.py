"""MPI trials and calls with time limits, on real ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridnn.doctor import mpi_trials
from hybridnn.doctor.mpi_trials import Deadline, time_all_reduce, time_ping_pong, try_file, try_window, wait_for
from hybridnn.doctor.report import TimeLimitError, call_within
from mpi_runner.slowness import deadline

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = deadline(30)


class Never:
    """A request that is never done."""

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return False


@pytest.mark.parametrize("busy", [False, True])
def test_waiting_ends_at_the_deadline(busy: bool) -> None:
    with pytest.raises(TimeLimitError, match=r"did not end within 0\.05 s"):
        wait_for([Never()], Deadline(0.05), busy=busy)


def test_a_call_within_a_time_limit() -> None:
    assert call_within(LIMIT, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_within(LIMIT, lambda: 1 // 0)
    with pytest.raises(TimeLimitError):
        call_within(0.05, lambda: time.sleep(3600))


@pytest.mark.mpi(ranks=[3])
def test_ranks_of_a_node_share_memory_and_are_timed(comm: MPI.Intracomm) -> None:
    own = mpi_trials.duplicate_world(LIMIT)
    assert (own.Get_rank(), own.Get_size()) == (comm.Get_rank(), comm.Get_size())
    node, nodes = mpi_trials.find_nodes(own, LIMIT)
    assert nodes == [0] * comm.Get_size()
    assert node.Get_size() == comm.Get_size()
    assert try_window(node, LIMIT).verdict == "ok"
    sizes, last = (8, 1 << 16), comm.Get_size() - 1
    sums = time_all_reduce(comm, sizes, LIMIT)
    assert len(sums) == len(sizes)
    assert all(0 < seconds < LIMIT for seconds in sums)
    messages = time_ping_pong(comm, last, sizes, LIMIT)
    assert len(messages) == (len(sizes) if comm.Get_rank() in (0, last) else 0)


@pytest.mark.mpi(ranks=[3])
def test_texts_are_gathered_and_a_file_is_written(comm: MPI.Intracomm, mpi_tmp_path: Path) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    texts = mpi_trials.gather_texts("ä" * 1000 * rank, LIMIT)
    assert texts == (["ä" * 1000 * other for other in range(size)] if rank == 0 else [])
    assert mpi_trials.broadcast_number(40 + rank, LIMIT) == 40
    assert mpi_trials.all_ready(comm, True, LIMIT)
    assert mpi_trials.all_ready(comm, rank != 0, LIMIT) is False
    assert try_file(comm, mpi_tmp_path / "file", LIMIT).verdict == "ok"
    comm.Barrier()
    assert list(mpi_tmp_path.iterdir()) == []
    found = try_file(comm, mpi_tmp_path / "no" / "file", LIMIT)
    assert found.verdict == "failure"
    assert "it cannot be written: No such file" in found.what
    comm.Barrier()


@pytest.mark.mpi(ranks=[3])
def test_a_wrong_sum_is_found(comm: MPI.Intracomm) -> None:
    class WrongSums:
        """A communicator whose sums lack all ranks but the first."""

        def __getattr__(self, name: str) -> Any:
            return getattr(comm, name)

        def Iallreduce(self, addend: Any, total: Any) -> Any:  # noqa: N802 - MPI's name
            return comm.Iallreduce(addend * (comm.Get_rank() == 0), total)

    with pytest.raises(RuntimeError, match="wrong sum"):
        time_all_reduce(WrongSums(), (8,), LIMIT)  # type: ignore[arg-type]


@pytest.mark.mpi(ranks=[3])
def test_a_late_rank_is_not_waited_for_and_has_no_text(comm: MPI.Intracomm) -> None:
    if comm.Get_rank() == 1:
        time.sleep(1.0)
        mpi_trials.all_ready(comm, True, LIMIT)  # joins late, so that no request is left over
    else:
        assert not mpi_trials.all_ready(comm, True, 0.2)
    comm.Barrier()
    if comm.Get_rank() != 1:
        texts = mpi_trials.gather_texts("here", deadline(1))
        assert texts == (["here", None, "here"] if comm.Get_rank() == 0 else [])
    comm.Barrier()
