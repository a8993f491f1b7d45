"""A collective or a message in flight, with the arrays it reads and writes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hybridnn.comm.mpi import import_mpi
from hybridnn.comm.recorder import Recorder

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["DONE", "Request"]


class Request:
    """Owns its arrays until `wait` returns or `test` says yes; nobody else may touch them before.

    Parameters
    ----------
    requests : list of MPI.Request
        What MPI has to finish; empty for an operation that had nothing to do.
    arrays : tuple of ndarray
        Kept alive, and owned, until the operation is done.
    name, axis : str
        For the recorder.
    recorder : Recorder or None
        None only for an operation that had nothing to do.
    about : object
        What it is done for; for the recorder.
    """

    __slots__ = ("_about", "_arrays", "_axis", "_name", "_recorder", "_requests")

    def __init__(
        self,
        requests: list[MPI.Request],
        arrays: tuple[NDArray[Any], ...],
        name: str,
        axis: str,
        recorder: Recorder | None,
        about: object = None,
    ) -> None:
        self._requests = requests
        self._arrays = arrays
        self._name = name
        self._axis = axis
        self._recorder = recorder
        self._about = about

    def test(self) -> bool:
        """Let MPI make progress; True once the operation is done."""
        if not self._requests or self._recorder is None:
            return True
        start = perf_counter()
        done: bool = import_mpi().Request.Testall(self._requests)
        self._recorder.end_communication(self._name + ".test", self._axis, start, 0, 0, self._about)
        if done:
            self._release()
        return done

    def wait(self) -> None:
        """Return when the operation is done."""
        if not self._requests or self._recorder is None:
            return
        start = perf_counter()
        import_mpi().Request.Waitall(self._requests)
        self._recorder.end_communication(self._name + ".wait", self._axis, start, 0, 0, self._about)
        self._release()

    def _release(self) -> None:
        self._requests = []
        self._arrays = ()


DONE = Request([], (), "", "", None)
"""The request of an operation that had nothing to do."""
