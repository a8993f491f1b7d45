"""How a group tells the recorder what its rank is about to do, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.accounting import bytes_sent_by_rank
from hybridnn.comm.calls import CallRecord
from hybridnn.comm.recorder import Recorder
from hybridnn.comm.request import Request

__all__ = ["RecordedCalls"]


class RecordedCalls:
    """The base of a group: every call is noted before it begins and when it has ended.

    Parameters
    ----------
    axis : str
        Name of the axis.
    recorder : Recorder
    members : sequence of int
        Ranks of the grid, in the order of the group.
    rank : int
        This rank's number in the group.
    """

    def __init__(self, axis: str, recorder: Recorder, members: Sequence[int], rank: int) -> None:
        self.axis = axis
        self.recorder = recorder
        self.size = len(members)
        self.rank = rank
        self._channel = recorder.open_channel(axis, tuple(members))

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of the grid, in the order of the group."""
        return self._channel.members

    def _begin(
        self,
        name: str,
        nbytes: int,
        dtype: np.dtype[Any] | None = None,
        root: int = -1,
        reduction: str | None = None,
    ) -> CallRecord:
        """Note that this rank enters a collective."""
        channel = self._channel
        channel.entered = number = channel.entered + 1
        call: CallRecord = (name, channel, number, nbytes, dtype, root, reduction, perf_counter(), None)
        channel.recent.append(call)
        self.recorder.now = call
        return call

    def _finish(self, call: CallRecord) -> None:
        """Note that a call has ended: the whole operation, or the start of a non-blocking one."""
        name, _, _, nbytes, _, peer, _, start, about = call
        sent = _bytes_sent(name, nbytes, self.size, peer == self.rank)
        self.recorder.end_communication(name, self.axis, start, sent, 1, about)
        if self.recorder.kept is not None:
            self.recorder.kept.append((call, sent))

    def _start(
        self,
        name: str,
        nbytes: int,
        start: Callable[[], list[Any]],
        arrays: tuple[NDArray[Any], ...],
        root: int = -1,
        reduction: str | None = None,
    ) -> Request:
        """Enter a non-blocking collective of `arrays`, which `start` hands to MPI."""
        call = self._begin(name, nbytes, arrays[-1].dtype, root, reduction)
        return self._started(call, start(), arrays)

    def _begin_message(self, name: str, array: NDArray[Any], peer: int, tag: int, about: object) -> CallRecord:
        """Note that this rank begins a message."""
        call: CallRecord = (name, self._channel, 0, array.nbytes, array.dtype, peer, tag, perf_counter(), about)
        self.recorder.now = call
        return call

    def _started(self, call: CallRecord, requests: list[Any], arrays: tuple[NDArray[Any], ...]) -> Request:
        """Note that MPI has been given what `requests` are for."""
        self._finish(call)
        return Request(requests, arrays, call, self.recorder)


@lru_cache(maxsize=4096)
def _bytes_sent(name: str, nbytes: int, ranks: int, is_root: bool) -> int:
    return 0 if name == "barrier" else bytes_sent_by_rank(name, nbytes, ranks, is_root=is_root)
