"""What a transport can do, and what may be asked of arrays wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

Array = Any
"""An array of the host or of a device, contiguous."""

Graphs = MutableMapping[int, Callable[[], None]]
"""What a device replays, by a number; a recording ends when it is taken out of the last of them that holds it."""


class Transport(Protocol):
    """Begins the calls of one group, whose methods of nearly the same names say what each does.

    What is begun comes back as a list of what has to be finished: requests of MPI, or one object that answers to
    ``Testall`` and ``Waitall`` as they do. Nothing here, but for `disconnect`, blocks until a peer has done something.

    Attributes
    ----------
    problem : str
        Why this rank could not be connected as was wanted; empty if it was, and where only another rank could not. All
        ranks of the group stage then.
    """

    problem: str

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum, or maximum, over the ranks."""
        ...

    def allgather(self, array: Array) -> list[Any]:
        """Fill the rows of `array` from everybody's block."""
        ...

    def reduce_scatter(self, array: Array, out: Array) -> list[Any]:
        """Sum `array`, and leave this rank's block of the rows of the sum in `out`."""
        ...

    def alltoall(self, array: Array, out: Array) -> list[Any]:
        """Send rank i row i of `array`, and receive row i of `out` from it."""
        ...

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Give every rank the root's `array`."""
        ...

    def scatter(self, array: Array | None, out: Array, rows: Sequence[int], root: int) -> list[Any]:
        """Send every rank its rows of the root's `array`."""
        ...

    def gather(self, array: Array, out: Array | None, rows: Sequence[int], root: int) -> list[Any]:
        """Collect every rank's rows in the root's `out`."""
        ...

    def send(self, array: Array, peer: int, tag: int, synchronous: bool) -> list[Any]:
        """Send a message."""
        ...

    def receive(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        ...

    def flush(self) -> None:
        """Hand to MPI what still waits for a device, on any group: the caller is about to block without a transport."""
        ...

    def register_graphs(self, recordings: Graphs) -> bool:
        """Whether its collectives can be recorded; if so, `recordings` is emptied before what connects the ranks ends.

        The same on all ranks of the group.
        """
        ...

    def disconnect(self) -> None:
        """End what connects the ranks beside MPI, and go on without; collective, with nothing in flight."""
        ...


def is_on_host(array: Array) -> bool:
    """Whether `array` lies in the host's memory."""
    return isinstance(array, np.ndarray)


def copy_rows(source: Array, target: Array) -> None:
    """``target[...] = source``, wherever the two lie; work of the device is put in line in its current stream."""
    if is_on_host(source) == is_on_host(target):
        target[...] = source
    elif is_on_host(source):
        target.set(source)
    else:
        source.get(out=target)
