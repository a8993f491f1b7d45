"""Turns of the processes that run these tests side by side, so that some tests have the machine for themselves."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NEXT", "turn"]

NEXT, MACHINE = "next.lock", "machine.lock"


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until the block may run: beside those of other processes that name this folder, or alone."""
    with open(folder / NEXT, "wb") as next_turn, open(folder / MACHINE, "wb") as machine:
        # Whoever waits for the machine is the next to have it: blocks that begin later wait behind.
        fcntl.flock(next_turn, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(next_turn, fcntl.LOCK_UN)
        yield
