"""Group of a rank in a process of its own, whose messages the grader carries.

It has the methods of `hybridnn.comm.group.Group` that tasks use, with the same arguments. As in ranks of one process,
data arrive at the wait: until then a receive buffer holds NaN, and a send buffer must not change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.diagnostics.failsafe import code_location
from hybridnn.in_process.communication_errors import CommunicationError

Exchange = Callable[[dict[str, Any]], dict[str, Any]]

OPERATIONS = {
    "isend": "isend",
    "ireceive": "ireceive",
    "allreduce": "iallreduce",
    "iallreduce": "iallreduce",
    "allgather_rows": "iallgather_rows",
    "iallgather_rows": "iallgather_rows",
    "broadcast": "ibroadcast",
    "ibroadcast": "ibroadcast",
    "barrier": "barrier",
}
"""Methods of the group, and the one of `Group` that carries them out."""


class RemoteRequest:
    """A message or collective in flight."""

    def __init__(self, group: RemoteGroup, number: int, array: NDArray[Any], receives: bool, sends: bool) -> None:
        self._group, self._number, self._array, self._receives = group, number, array, receives
        self._sent = array.copy() if sends else None
        self._site = _site()
        if receives:
            _fill(array)
            self._filled = array.copy()

    def test(self) -> bool:
        """Make progress; True once the operation is done."""
        return self._group.finish(self, "test")

    def wait(self) -> None:
        """Return when the operation is done."""
        self._group.finish(self, "wait")

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether the operation receives into memory of `array`."""
        return self._receives and np.may_share_memory(self._array, array)

    def _deliver(self, reply: dict[str, Any]) -> None:
        if self._receives and not _equal(self._filled, self._array):
            raise CommunicationError(
                f"rank {self._group.rank} wrote to the buffer of a receive before the wait: received at "
                f"{_shown(self._site)}, waited for at {_shown(_site())}"
            )
        if self._sent is not None and not self._receives and not _equal(self._sent, self._array):
            raise CommunicationError(
                f"rank {self._group.rank} changed the buffer of a send before the wait: sent at "
                f"{_shown(self._site)}, waited for at {_shown(_site())}"
            )
        if self._receives:
            self._array[...] = reply["array"]


class RemoteGroup:
    """The ranks of a case, as one of them sees them."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        self.rank, self.size, self.axis, self.members = rank, size, "ranks", tuple(range(size))
        self._exchange = exchange
        self._in_flight: dict[RemoteRequest, None] = {}

    def __getattr__(self, name: str) -> Any:
        """Refuse other methods, with the names of those that exist."""
        raise AttributeError(f"the group has no {name!r}; its methods: {', '.join(OPERATIONS)}")

    def isend(self, array: NDArray[Any], peer: int, tag: int, **_: object) -> RemoteRequest:
        """Send `array` to rank `peer`, non-blocking."""
        for request in self._in_flight:
            if request.overlaps(array):
                raise CommunicationError(
                    f"rank {self.rank} sends what its receive has not brought yet: sent at {_shown(_site())}, received "
                    f"at {_shown(request._site)}; wait for that first"
                )
        return self._begin("isend", array, sends=True, peer=int(peer), tag=int(tag))

    def ireceive(self, array: NDArray[Any], peer: int, tag: int, **_: object) -> RemoteRequest:
        """Receive `array` from rank `peer`, non-blocking."""
        return self._begin("ireceive", array, receives=True, peer=int(peer), tag=int(tag))

    def iallreduce(self, array: NDArray[Any], operation: str = "sum") -> RemoteRequest:
        """As `allreduce`, non-blocking."""
        return self._begin("iallreduce", array, sends=True, receives=True, operation=operation)

    def allreduce(self, array: NDArray[Any], operation: str = "sum") -> None:
        """Replace `array` by its sum or maximum over the ranks."""
        self._begin("allreduce", array, sends=True, receives=True, operation=operation).wait()

    def iallgather_rows(self, array: NDArray[Any]) -> RemoteRequest:
        """As `allgather_rows`, non-blocking."""
        return self._begin("iallgather_rows", array, sends=True, receives=True)

    def allgather_rows(self, array: NDArray[Any]) -> None:
        """Gather the blocks of rows of all ranks."""
        self._begin("allgather_rows", array, sends=True, receives=True).wait()

    def ibroadcast(self, array: NDArray[Any], root: int = 0) -> RemoteRequest:
        """As `broadcast`, non-blocking."""
        return self._begin("ibroadcast", array, sends=True, receives=True, root=int(root))

    def broadcast(self, array: NDArray[Any], root: int = 0) -> None:
        """Copy the root's `array` to all ranks."""
        self._begin("broadcast", array, sends=True, receives=True, root=int(root)).wait()

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        self._exchange({"do": "barrier", "site": _site()})

    def _begin(
        self, name: str, array: NDArray[Any], *, sends: bool = False, receives: bool = False, **arguments: Any
    ) -> RemoteRequest:
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            found = "one that is not C-contiguous" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"{name}: needs a contiguous array, got {found}")
        content = array if sends else np.empty(array.shape, array.dtype)
        reply = self._exchange({"do": name, "array": content, "site": _site(), **arguments})
        if sends and receives and self.size == 1:  # a collective of one rank: as in `Group`, nothing travels
            sends = receives = False
        request = RemoteRequest(self, reply["request"], array, receives, sends)
        self._in_flight[request] = None
        return request

    def finish(self, request: RemoteRequest, how: str) -> bool:
        """Wait for a request, or test it."""
        if request not in self._in_flight:
            return True
        reply = self._exchange({"do": how, "request": request._number, "site": _site()})
        if not reply["done"]:
            return False
        del self._in_flight[request]
        request._deliver(reply)
        return True


def _fill(array: NDArray[Any]) -> None:
    """Make the content of a receive buffer conspicuous."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    elif array.dtype.kind in "iu":
        array.fill(np.iinfo(array.dtype).max)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.tobytes() == other.tobytes()


def _site() -> list[Any]:
    """File, line and function of the student's code that called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name]


def _shown(site: list[Any]) -> str:
    return code_location(*site)
