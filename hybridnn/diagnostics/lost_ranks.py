"""Lost ranks: continuing without a rank that died, by User-Level Failure Mitigation (ULFM).

Only Open MPI 5 has it, and only when started with ``mpirun --with-ft ulfm``. A call of MPI then raises an exception on
the ranks that detect the loss. They revoke every communicator of the run, so that the other ranks leave their calls,
all agree on a status, and shrink the job to the surviving ranks.

With Open MPI 5.0.11 ``MPI_Finalize`` may wait forever for a non-blocking collective that a loss interrupted;
`exit_without_mpi` ends a process without it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from hybridnn.comm.mpi import import_mpi, ranks_within
from hybridnn.diagnostics.failsafe import exit_now

if TYPE_CHECKING:
    from mpi4py import MPI


SWITCH = "OMPI_MCA_mpi_ft_enable"
"""Set for every rank by ``mpirun --with-ft ulfm``; without it the launcher ends a job that lost a rank."""

START_SECONDS = 60  # time for MPI to start on all ranks


def start_mpi_with_timeout() -> None:
    """Start MPI in a job that tolerates losses, and end this process with a traceback if it does not start in time.

    If a rank of such a job dies before it starts MPI, the others wait in ``MPI_Init`` forever.
    """
    if _is_started_for_losses() and "mpi4py.MPI" not in sys.modules:
        # A Python thread could not run, as MPI starts with the interpreter lock held.
        faulthandler.dump_traceback_later(START_SECONDS, exit=True)
        try:
            import_mpi()
        finally:
            faulthandler.cancel_dump_traceback_later()


def tolerates_losses() -> bool:
    """Whether the job survives the loss of a rank: the MPI library can, and was started with this option."""
    mpi = import_mpi()
    vendor, version = mpi.get_vendor()
    offered = vendor == "Open MPI" and version >= (5,) and hasattr(mpi.Comm, "Revoke")
    return offered and _is_started_for_losses()


def _is_started_for_losses() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "enabled")


def exit_without_mpi(exit_code: int) -> NoReturn:
    """End this process without ``MPI_Finalize``, after a loss."""
    sys.stdout.flush()
    sys.stderr.flush()
    exit_now(exit_code)


class SurvivingRanks:
    """The surviving ranks of a job, which own `comm`.

    Communicators that are split from the attribute `comm` are revoked with it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._own: Any = comm
        self._splits: list[Any] = []
        self.comm: MPI.Intracomm = _tracked_class()(comm, self._splits)

    @classmethod
    def of_job(cls) -> SurvivingRanks:
        """All ranks of the job; collective."""
        return cls(import_mpi().COMM_WORLD.Dup())

    @property
    def rank(self) -> int:
        """Rank of this process among them."""
        rank: int = self._own.Get_rank()
        return rank

    @property
    def world_ranks(self) -> frozenset[int]:
        """Their ranks in COMM_WORLD."""
        return frozenset(ranks_within(self._own, import_mpi().COMM_WORLD))

    @property
    def on_one_node(self) -> bool:
        """Whether all of them are on one node; collective."""
        node = self._own.Split_type(import_mpi().COMM_TYPE_SHARED)
        is_one: bool = node.Get_size() == self._own.Get_size()
        node.Free()
        return is_one

    def is_loss(self, error: BaseException | None) -> bool:
        """Whether `error`, or a cause of it, was raised because a rank was lost."""
        mpi = import_mpi()
        while error is not None:
            if isinstance(error, mpi.Exception):
                # The class of the error may be "error in status", where it is that of one of several requests.
                classes = (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED)
                return error.Get_error_class() in classes or self._has_loss()
            error = error.__cause__ or error.__context__
        return False

    def revoke(self) -> None:
        """Revoke all communicators of this run: calls of them raise on every rank, now and later."""
        for comm in (*self._splits, self._own):
            comm.Revoke()

    def combine_flags(self, flags: int) -> int | None:
        """Bitwise OR of `flags` over the surviving ranks; collective, also on revoked communicators.

        It is None, on every rank, if another rank was lost meanwhile.
        """
        self._own.Ack_failed()
        try:
            combined: int = ~self._own.Agree(~flags)
        except import_mpi().Exception:
            return None
        return combined

    def shrink(self) -> SurvivingRanks:
        """The surviving ranks, in the same order; collective over them."""
        return SurvivingRanks(self._own.Shrink())

    def _has_loss(self) -> bool:
        comms: Iterable[Any] = (self._own, *self._splits)
        return any(comm.Is_revoked() or comm.Get_failed().Get_size() for comm in comms)


@lru_cache(maxsize=1)
def _tracked_class() -> type[Any]:
    """The class of communicators that append what is split from them to a list."""
    mpi: Any = import_mpi()

    class TrackedComm(mpi.Intracomm):  # type: ignore[misc]  # mpi4py is imported as late as possible
        def __new__(cls, comm: Any, splits: list[Any]) -> TrackedComm:
            self: TrackedComm = super().__new__(cls, comm)
            self.splits = splits
            return self

        def Split(self, color: int = 0, key: int = 0) -> TrackedComm:  # noqa: N802 - MPI's name
            return self._tracked(super().Split(color, key))

        def Split_type(self, split_type: int, key: int = 0) -> TrackedComm:  # noqa: N802 - MPI's name
            return self._tracked(super().Split_type(split_type, key))

        def _tracked(self, comm: Any) -> TrackedComm:
            self.splits.append(comm)
            return TrackedComm(comm, self.splits)

    return TrackedComm
