"""A call on arrays of a device in flight: what it copies, when its messages begin, and whether it is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridnn.comm.transports.device import Device
from hybridnn.comm.transports.transport import Array, copy_rows, is_on_host

__all__ = ["Begin", "Transfer"]

Begin = Callable[[Array], Any]
"""Hands an array to MPI and returns the request."""


@dataclass
class _Part:
    """One request of MPI, and where what it brings is copied afterwards."""

    array: Array
    begin: Begin
    memory: NDArray[np.uint8] | None = None
    target: Array | None = None
    request: Any = None

    def depart(self) -> None:
        self.request = self.begin(self.array)


class Transfer:
    """Answers to ``Testall`` and ``Waitall`` as a request of MPI does, so that `Request` need not tell them apart.

    Done means that the messages are; copies to the device may still be under way, and the current stream waits for
    them before it goes on.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._parts: deque[_Part] = deque()
        self._begun_after: Any = None
        self._delivered: Any = None

    def stage(
        self, piece: Array, begin: Begin, *, fetch: slice | None, deliver: Array | None, waits_its_turn: bool = True
    ) -> None:
        """Add a request on `piece`, which travels through pinned memory where it lies on the device.

        Parameters
        ----------
        piece : array, shape (n,)
        begin : callable
            Given `piece` on the host.
        fetch : slice or None
            The part of `piece` that is read.
        deliver : array, shape (n,), or None
            Where to copy what has arrived; most often `piece` itself.
        waits_its_turn : bool
            Begin after everything that was begun before; else at once.
        """
        part, ready = _Part(piece, begin, target=deliver), None
        if is_on_host(piece):
            part.target = None if deliver is piece else deliver
        else:
            self._follow_the_stream()
            part.memory = self._device.pinned.lend(piece.nbytes)
            part.array = part.memory[: piece.nbytes].view(piece.dtype)
            if fetch is not None:
                ready = self._device.fetch(piece[fetch], part.array[fetch])
        self._add(part, ready, waits_its_turn)

    def pass_on(self, piece: Array, begin: Begin) -> None:
        """Add a request on `piece`, which MPI gets as it is once the device has done with it."""
        self._add(_Part(piece, begin), None if is_on_host(piece) else self._follow_the_stream(), waits_its_turn=True)

    def Testall(self, _requests: list[Any]) -> bool:  # noqa: N802 - the name MPI gives it
        """Make progress, on everything that waits for the device too; True once done."""
        self._device.departures.poll()
        while self._parts and self._parts[0].request is not None and self._parts[0].request.Test():
            self._arrived(self._parts.popleft())
        return not self._parts and self._ended()

    def Waitall(self, requests: list[Any]) -> None:  # noqa: N802 - the name MPI gives it
        """Return when done."""
        # While anything waits for the device somebody may need it from us, so MPI must not keep us.
        while self._device.departures:
            if self.Testall(requests):
                return
            sleep(0)
        while self._parts:
            self._parts[0].request.Wait()
            self._arrived(self._parts.popleft())
        self._ended()

    def _follow_the_stream(self) -> Any:
        """The event before which the arrays were somebody else's."""
        if self._begun_after is None:
            self._begun_after = self._device.mark()
            self._device.copies_follow(self._begun_after)
        return self._begun_after

    def _add(self, part: _Part, ready: Any, waits_its_turn: bool) -> None:
        self._parts.append(part)
        if waits_its_turn:
            self._device.departures.add(ready, part.depart)
        else:
            part.depart()

    def _arrived(self, part: _Part) -> None:
        event = None
        if is_on_host(part.target):
            copy_rows(part.array, part.target)
        elif part.target is not None:
            event = self._delivered = self._device.deliver(part.array, part.target)
        if part.memory is not None:
            self._device.pinned.give_back(part.memory, event)

    def _ended(self) -> bool:
        if self._delivered is not None:
            self._device.continue_after(self._delivered)
        return True
