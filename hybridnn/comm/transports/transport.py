"""Interface of transports, which carry out the calls of a group."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

Array = Any
"""An array of the host or of a device, contiguous."""

Graphs = MutableMapping[int, Callable[[], None]]
"""Replays of CUDA graphs by a key. A graph is freed when the last mapping that holds it drops it."""


class Transport(Protocol):
    """Starts the calls of one group.

    A call returns a list of what must be completed: MPI requests, or one object with their ``Testall`` and ``Waitall``.
    No method but `disconnect` blocks until another rank has made progress.

    Attributes
    ----------
    problem : str
        Why this rank could not be connected as requested; empty if it was, and where only another rank could not. All
        ranks of the group stage then.
    """

    problem: str = ""

    def allreduce(self, array: Array, operation: str) -> list[Any]:
        """Replace `array` by its sum or maximum over the ranks."""
        ...

    def allgather(self, array: Array) -> list[Any]:
        """Gather the blocks of rows of all ranks in `array`."""
        ...

    def alltoall(self, array: Array, out: Array) -> list[Any]:
        """Send row i of `array` to rank i, and receive row i of `out` from it."""
        ...

    def broadcast(self, array: Array, root: int) -> list[Any]:
        """Copy the root's `array` to all ranks."""
        ...

    def scatter(self, array: Array | None, out: Array, rows: Sequence[int], root: int) -> list[Any]:
        """Send every rank its rows of the root's `array`."""
        ...

    def gather(self, array: Array, out: Array | None, rows: Sequence[int], root: int) -> list[Any]:
        """Concatenate the rows of all ranks in the root's `out`."""
        ...

    def send(self, array: Array, peer: int, tag: int, synchronous: bool) -> list[Any]:
        """Send a message."""
        ...

    def receive(self, array: Array, peer: int, tag: int) -> list[Any]:
        """Receive a message."""
        ...

    def flush(self) -> None:
        """Start all calls that wait for the device, of any group; called before this rank blocks in MPI."""
        return

    def register_graphs(self, graphs: Graphs) -> bool:
        """Whether collectives can be captured in CUDA graphs; if so, `graphs` is cleared before `disconnect`.

        The same on all ranks of the group.
        """
        return False

    def disconnect(self) -> None:
        """Close the connections beside MPI; calls are staged from then on. Collective, with nothing in flight."""
        return


def is_on_host(array: Array) -> bool:
    """Whether `array` lies in host memory."""
    return isinstance(array, np.ndarray)


def copy_rows(source: Array, target: Array) -> None:
    """``target[...] = source`` between any memories. Copies of the device are enqueued on its current stream."""
    if is_on_host(source) == is_on_host(target):
        target[...] = source
    elif is_on_host(source):
        target.set(source)
    else:
        source.get(out=target)
