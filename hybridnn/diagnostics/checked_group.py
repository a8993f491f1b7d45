"""Checked group: collectives are compared across the group before they begin.

Ranks that enter different collectives, or the same one with arrays of other sizes, get wrong results, an error of the
MPI library that names no rank, or a deadlock. In a `CheckedGroup` every rank first sends the others a description of
its call, over a communicator of its own in messages of one size, so that this exchange itself cannot fail.
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

from hybridnn.comm.group import MESSAGE_LIMIT, Group, Request
from hybridnn.comm.recorder import Call, CallRecord, Recorder
from hybridnn.diagnostics.locations import COMMUNICATION_FILES, code_location
from hybridnn.diagnostics.stalls.diagnosis import collective_mismatch
from hybridnn.errors import HybridnnError

if TYPE_CHECKING:
    from mpi4py import MPI


SIGNATURE_BYTES, SITE_BYTES = 96, 160


class CollectiveMismatchError(HybridnnError):
    """The ranks of a group entered different collectives: an error in the program, raised on all of them."""

    exit_code = 1


class CheckedGroup(Group):
    """A group whose collectives are compared: operation, bytes, dtype, root, reduction and whether they block.

    A difference raises `CollectiveMismatchError` on every rank of the group. A blocking collective waits for the
    comparison. A non-blocking one begins in the first test or wait after its comparison, so that a correct program
    waits at no other place than in a `Group`; only less of its communication overlaps. Messages are not compared.

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
        self._comparisons: Any = None if comm is None or self.size == 1 else comm.Dup()
        self._pending: deque[_ComparedRequest] = deque()

    def _begin(
        self,
        name: str,
        nbytes: int,
        dtype: np.dtype[Any] | None = None,
        root: int = -1,
        reduction: str | None = None,
    ) -> CallRecord:
        """Record that this rank enters a blocking collective; returns after the comparison."""
        call = super()._begin(name, nbytes, dtype, root, reduction)
        comparison = _Comparison(self._comparisons, call, blocking=True)
        # Collectives that wait for their comparison go first: MPI requires the same order on all ranks.
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
        """Enter a non-blocking collective, which begins after its comparison."""
        call = super()._begin(name, nbytes, arrays[-1].dtype, root, reduction)
        request = _ComparedRequest(self, _Comparison(self._comparisons, call, blocking=False), start, arrays, call)
        self._pending.append(request)
        self._advance(request, wait=False)
        self._finish(call)
        return request

    def _advance(self, request: _ComparedRequest | None, *, wait: bool) -> None:
        """Begin the collectives that have been compared, in their order, up to `request` or all of them."""
        while self._pending and (request is None or not request.begun):
            if not self._pending[0].comparison.done(wait=wait):
                return
            self._pending.popleft().begin()


class _ComparedRequest(Request):
    """A collective that begins after its comparison."""

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
        """Begin the collective."""
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
    """Non-blocking all-gather of the signatures and call sites of a collective, over a communicator of its own."""

    def __init__(self, comm: MPI.Intracomm, record: CallRecord, *, blocking: bool) -> None:
        self._call = Call._make(record)
        signature = self._call.signature if blocking else f"non-blocking {self._call.signature}"
        self._own = np.concatenate([_encoded(signature, SIGNATURE_BYTES), _encoded(_call_site(), SITE_BYTES)])
        self._gathered = np.zeros((comm.Get_size(), self._own.size), np.uint8)
        self._request: Any = comm.Iallgather(self._own, self._gathered)

    def done(self, *, wait: bool) -> bool:
        """Whether the all-gather has completed; raises `CollectiveMismatchError` if the signatures differ."""
        if wait:
            self._request.Wait()
        elif not self._request.Test():
            return False
        signatures = self._gathered[:, :SIGNATURE_BYTES]
        if (signatures != signatures[0]).any():
            raise CollectiveMismatchError(self._difference())
        return True

    def _difference(self) -> str:
        channel = self._call.channel
        rows = sorted(zip(channel.members, self._gathered, strict=True), key=lambda item: item[0])
        signatures = {rank: _decoded(row[:SIGNATURE_BYTES]) for rank, row in rows}
        sites = {rank: _decoded(row[SIGNATURE_BYTES:]) for rank, row in rows}
        first_with = {signature: rank for rank, signature in reversed(signatures.items())}
        called_by = ", ".join(f"rank {rank} at {sites[rank]}" for rank in sorted(first_with.values()))
        finding = collective_mismatch(channel.axis, channel.members, self._call.number, signatures)
        return f"{finding.text}; called by {called_by}"


def _encoded(text: str, nbytes: int) -> NDArray[np.uint8]:
    encoded = text.encode(errors="replace")[:nbytes]
    return np.frombuffer(encoded.ljust(nbytes, b"\0"), np.uint8)


def _decoded(row: NDArray[np.uint8]) -> str:
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


def _call_site() -> str:
    """The innermost line outside of communication code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(COMMUNICATION_FILES):
        frame = frame.f_back
    return "" if frame is None else code_location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
