"""Collectives that are compared across their group before they begin.

MPI trusts its callers. Ranks that enter different collectives, or the same with arrays of other sizes, get wrong
numbers, an error of the library's that names no rank, or wait for ever. With `CheckedGroup` every rank first tells
the others what it is about to call, over a communicator on which nothing else happens and every message has the same
size, so that this exchange itself cannot go wrong.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.group import MESSAGE_LIMIT, Group
from hybridnn.comm.recorder import Call, CallRecord, Recorder
from hybridnn.comm.request import Request
from hybridnn.diagnostics.stalls.diagnosis import collective_mismatch
from hybridnn.diagnostics.stalls.state import COMMUNICATION_FILES, code_location
from hybridnn.errors import HybridnnError

if TYPE_CHECKING:
    from mpi4py import MPI


CALL_BYTES, SITE_BYTES = 96, 160


class CollectiveMismatchError(HybridnnError):
    """The ranks of a group entered different collectives; a defect of the program, raised on all of them."""

    exit_code = 1


class CheckedGroup(Group):
    """A group whose collectives are compared: operation, bytes, dtype, root, reduction and whether they block.

    A difference is raised on every rank of the group. A blocking collective waits for the comparison. A non-blocking
    one begins when its comparison is done, which a test or a wait finds out, so that a program which is right never
    waits where it would not without; only less of its communication is hidden. Messages are not compared.

    Parameters are those of `Group`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        axis: str,
        recorder: Recorder,
        message_limit: int = MESSAGE_LIMIT,
        members: Sequence[int] | None = None,
    ) -> None:
        super().__init__(comm, axis, recorder, message_limit, members)
        self._own: Any = None if comm is None or self.size == 1 else comm.Dup()
        self._compared: deque[_ComparedRequest] = deque()

    def _begin(
        self,
        name: str,
        nbytes: int,
        dtype: np.dtype[Any] | None = None,
        root: int = -1,
        reduction: str | None = None,
    ) -> CallRecord:
        """Note that this rank enters a blocking collective; returns when it is the same on all ranks."""
        call = super()._begin(name, nbytes, dtype, root, reduction)
        comparison = _Comparison(self._own, call, blocking=True)
        # MPI wants collectives in the same order on all ranks: those that still wait for their comparison go first.
        self._transport.flush()
        self._advance(None, wait=True)
        comparison.done(wait=True)
        return call

    def _start(
        self,
        name: str,
        nbytes: int,
        start: Callable[[], list[Any]],
        arrays: tuple[NDArray[Any], ...],
        root: int = -1,
        reduction: str | None = None,
    ) -> Request:
        """Enter a non-blocking collective, which begins when it is known to be the same on all ranks."""
        call = super()._begin(name, nbytes, arrays[-1].dtype, root, reduction)
        request = _ComparedRequest(self, _Comparison(self._own, call, blocking=False), start, arrays, call)
        self._compared.append(request)
        self._advance(request, wait=False)
        self._finish(call)
        return request

    def _advance(self, request: _ComparedRequest | None, *, wait: bool) -> None:
        """Begin collectives in their order, as far as they are compared, up to `request` or all of them."""
        while self._compared and (request is None or not request.begun):
            if not self._compared[0].comparison.done(wait=wait):
                return
            self._compared.popleft().begin()


class _ComparedRequest(Request):
    """A collective that begins when its comparison is done."""

    __slots__ = ("_group", "_start", "begun", "comparison")

    def __init__(
        self,
        group: CheckedGroup,
        comparison: _Comparison,
        start: Callable[[], list[Any]],
        arrays: tuple[NDArray[Any], ...],
        call: CallRecord,
    ) -> None:
        super().__init__([], arrays, call, group.recorder)
        self._group, self._start = group, start
        self.comparison, self.begun = comparison, False

    def begin(self) -> None:
        """Hand the arrays to MPI."""
        self._requests = self._start()
        self.begun = True

    def test(self) -> bool:
        self._group._advance(self, wait=False)
        if not self.begun:
            self._recorder.end_poll(self._call, perf_counter())
        return self.begun and super().test()

    def wait(self) -> None:
        self._recorder.current_call = self._call
        self._group._transport.flush()
        self._group._advance(self, wait=True)
        super().wait()


class _Comparison:
    """What every rank of a group is about to call, gathered in the background.

    Parameters
    ----------
    comm : MPI.Intracomm
        Used for nothing else.
    record : CallRecord
        This rank's call.
    blocking : bool
        Whether it blocks.
    """

    def __init__(self, comm: MPI.Intracomm, record: CallRecord, *, blocking: bool) -> None:
        self._call = Call._make(record)
        what = self._call.signature if blocking else f"non-blocking {self._call.signature}"
        self._mine = np.concatenate([_fixed(what, CALL_BYTES), _fixed(_call_site(), SITE_BYTES)])
        self._all = np.zeros((comm.Get_size(), self._mine.size), np.uint8)
        self._gathering: Any = comm.Iallgather(self._mine, self._all)

    def done(self, *, wait: bool) -> bool:
        """Whether all ranks have told what they call.

        Raises
        ------
        CollectiveMismatchError
            If it is not the same.
        """
        if wait:
            self._gathering.Wait()
        elif not self._gathering.Test():
            return False
        calls = self._all[:, :CALL_BYTES]
        if (calls != calls[0]).any():
            raise CollectiveMismatchError(self._difference())
        return True

    def _difference(self) -> str:
        channel = self._call.channel
        told = dict(zip(channel.members, self._all, strict=True))
        calls = {rank: _text(row[:CALL_BYTES]) for rank, row in sorted(told.items())}
        first_with = {what: rank for rank, what in reversed(calls.items())}
        sites = ", ".join(f"rank {rank} at {_text(told[rank][CALL_BYTES:])}" for rank in sorted(first_with.values()))
        return f"{collective_mismatch(channel.axis, channel.members, self._call.number, calls).text}; called by {sites}"


def _fixed(text: str, nbytes: int) -> NDArray[np.uint8]:
    encoded = text.encode(errors="replace")[:nbytes]
    return np.frombuffer(encoded.ljust(nbytes, b"\0"), np.uint8)


def _text(row: NDArray[np.uint8]) -> str:
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


def _call_site() -> str:
    """The innermost line that is not communication itself."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(COMMUNICATION_FILES):
        frame = frame.f_back
    return "" if frame is None else code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
