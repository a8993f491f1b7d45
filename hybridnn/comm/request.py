"""Request: a collective or a message in flight, with the arrays that it reads and writes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from hybridnn.comm.recorder import CallRecord, CollectiveProgress, Recorder


class Request:
    """Owns its arrays until `wait` returns or `test` returns True.

    Parameters
    ----------
    requests : list
        MPI requests, or one object with their ``Testall`` and ``Waitall`` (`hybridnn.comm.transports`); empty for an
        operation without communication.
    arrays : tuple of ndarray
        Kept alive until the operation is done.
    call : CallRecord
        The call that started it.
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
        """Make progress; True once the operation is done."""
        if not self._requests:
            return True
        start = perf_counter()
        # A class method, called on an instance: importing MPI would take longer than the call.
        done: bool = self._requests[0].Testall(self._requests)
        if done:
            self._end(".test", start)
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
        self._end(".wait", start)

    def _end(self, suffix: str, start: float) -> None:
        name, channel, *_, about = self._call
        self._recorder.end_communication(name + suffix, channel.axis, start, 0, 0, about)
        self._requests = []
        self._arrays = ()


DONE = Request([], (), ("", CollectiveProgress("", ()), 0, 0, None, -1, None, 0.0, None), Recorder(0))
"""The request of an operation without communication."""
