"""A collective or a message in flight, with the arrays it reads and writes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.recorder import CallRecord, CollectiveProgress, Recorder


class Request:
    """Owns its arrays until `wait` returns or `test` says yes; nobody else may touch them before.

    Parameters
    ----------
    requests : list
        Requests of MPI, or one object that answers as they do (`hybridnn.comm.transports`); empty for an operation
        that had nothing to do.
    arrays : tuple of ndarray
        Kept alive, and owned, until the operation is done.
    call : CallRecord
        The call that began it.
    recorder : Recorder
    """

    __slots__ = ("_arrays", "_call", "_recorder", "_requests")

    def __init__(
        self, requests: list[Any], arrays: tuple[NDArray[Any], ...], call: CallRecord, recorder: Recorder
    ) -> None:
        self._requests = requests
        self._arrays = arrays
        self._call = call
        self._recorder = recorder

    def test(self) -> bool:
        """Let MPI make progress; True once the operation is done."""
        if not self._requests:
            return True
        start = perf_counter()
        # Asked of one of them, as importing MPI takes longer than what it is asked.
        done: bool = self._requests[0].Testall(self._requests)
        if done:
            self._ended(".test", start)
        else:
            self._recorder.end_poll(self._call, start)
        return done

    def wait(self) -> None:
        """Return when the operation is done."""
        if not self._requests:
            return
        self._recorder.current_call = self._call
        start = perf_counter()
        self._requests[0].Waitall(self._requests)
        self._ended(".wait", start)

    def _ended(self, how: str, start: float) -> None:
        name, channel, *_, about = self._call
        self._recorder.end_communication(name + how, channel.axis, start, 0, 0, about)
        self._requests = []
        self._arrays = ()


DONE = Request([], (), ("", CollectiveProgress("", ()), 0, 0, None, -1, None, 0.0, None), Recorder(0))
"""The request of an operation that had nothing to do."""
