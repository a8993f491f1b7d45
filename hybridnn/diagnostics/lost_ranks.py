"""Going on without a rank that was lost, where the MPI library can: User-Level Failure Mitigation (ULFM).

Only Open MPI 5 does, and only when started with ``mpirun --with-ft ulfm``. A call of MPI then raises on the ranks that
notice a loss; they revoke every communicator of the run, so that the others leave the calls they are in, all agree on
what happened, and shrink the job to the ranks that are left.

With Open MPI 5.0.11 ``MPI_Finalize`` now and then waits for ever for a non-blocking collective that a loss interrupted,
while a process that ends without it ends well; `exit_without_mpi` does that.
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
"""Set for every rank by ``mpirun --with-ft ulfm``. Without it the launcher ends a job that lost a rank."""


START_SECONDS = 60
"""In which MPI starts on all ranks, however late some of them come."""


def start_mpi_with_timeout() -> None:
    """Start MPI; where a rank that was lost before keeps it from starting, end this process with a traceback.

    A launcher that leaves losses to its ranks lets the others wait in ``MPI_Init`` for ever. Does nothing otherwise.
    """
    if _is_started_for_losses() and "mpi4py.MPI" not in sys.modules:
        # A thread of the interpreter's own could not run, as MPI starts with the interpreter's lock held.
        faulthandler.dump_traceback_later(START_SECONDS, exit=True)
        try:
            import_mpi()
        finally:
            faulthandler.cancel_dump_traceback_later()


def tolerates_losses() -> bool:
    """Whether the job outlives the loss of a rank: the library can, and was started so."""
    mpi = import_mpi()
    vendor, version = mpi.get_vendor()
    offered = vendor == "Open MPI" and version >= (5,) and hasattr(mpi.Comm, "Revoke")
    return offered and _is_started_for_losses()


def _is_started_for_losses() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes", "enabled")


def exit_without_mpi(exit_code: int) -> NoReturn:
    """End this process after a loss, without MPI."""
    sys.stdout.flush()
    sys.stderr.flush()
    exit_now(exit_code)


class SurvivingRanks:
    """The ranks that are left: at first all of the job.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of these ranks, for nobody else's use.

    Attributes
    ----------
    comm : MPI.Intracomm
        To train on: it remembers what is split from it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._own: Any = comm
        self._splits: list[Any] = []
        self.comm: MPI.Intracomm = _remembering()(comm, self._splits)

    @classmethod
    def of_job(cls) -> SurvivingRanks:
        """All ranks of the job; collective."""
        return cls(import_mpi().COMM_WORLD.Dup())

    @property
    def rank(self) -> int:
        """This rank's number among them."""
        rank: int = self._own.Get_rank()
        return rank

    @property
    def world_ranks(self) -> frozenset[int]:
        """Their numbers in the job."""
        return frozenset(ranks_within(self._own, import_mpi().COMM_WORLD))

    @property
    def on_one_node(self) -> bool:
        """Whether all of them share one node's memory; collective."""
        node = self._own.Split_type(import_mpi().COMM_TYPE_SHARED)
        alone: bool = node.Get_size() == self._own.Get_size()
        node.Free()
        return alone

    def is_loss(self, error: BaseException | None) -> bool:
        """Whether `error`, or what it came from, says that a rank was lost, here or on another rank."""
        mpi = import_mpi()
        while error is not None:
            if isinstance(error, mpi.Exception):
                # The class of the error says too little: one of several requests says "error in status".
                classes = (mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING, mpi.ERR_REVOKED)
                return error.Get_error_class() in classes or self._notices_a_loss()
            error = error.__cause__ or error.__context__
        return False

    def revoke(self) -> None:
        """Let no rank stay in a call of this run's communicators: it raises there, now or when it is made."""
        for comm in (*self._splits, self._own):
            comm.Revoke()

    def combine_flags(self, word: int) -> int | None:
        """The bits that are set in `word` on any of the ranks that are left; collective, whatever was lost or revoked.

        Returns
        -------
        int or None
            None, on every rank, if another rank was lost meanwhile.
        """
        self._own.Ack_failed()
        try:
            told: int = ~self._own.Agree(~word)
        except import_mpi().Exception:
            return None
        return told

    def shrink(self) -> SurvivingRanks:
        """The ranks that are left, in the same order; collective over them."""
        return SurvivingRanks(self._own.Shrink())

    def _notices_a_loss(self) -> bool:
        comms: Iterable[Any] = (self._own, *self._splits)
        return any(comm.Is_revoked() or comm.Get_failed().Get_size() for comm in comms)


@lru_cache(maxsize=1)
def _remembering() -> type[Any]:
    """The class of communicators that note in a list what is split from them."""
    mpi: Any = import_mpi()

    class Remembering(mpi.Intracomm):  # type: ignore[misc]  # mpi4py is imported as late as possible
        def __new__(cls, comm: Any, splits: list[Any]) -> Remembering:
            self: Remembering = super().__new__(cls, comm)
            self.splits = splits
            return self

        def Split(self, color: int = 0, key: int = 0) -> Remembering:  # noqa: N802 - a name of MPI
            return self._noted(super().Split(color, key))

        def Split_type(self, split_type: int, key: int = 0) -> Remembering:  # noqa: N802 - a name of MPI
            return self._noted(super().Split_type(split_type, key))

        def _noted(self, comm: Any) -> Remembering:
            self.splits.append(comm)
            return Remembering(comm, self.splits)

    return Remembering
