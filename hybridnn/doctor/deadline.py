"""Time limits for what might never end: for calls that can be asked whether they are done, and for those that block."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

DOZE_SECONDS = 1e-3


class OutOfTimeError(Exception):
    """Something did not end within its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not end within {seconds:g} s")


class Deadline:
    """A time limit that runs from now on.

    Parameters
    ----------
    seconds : float
        Until it is over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, at least none."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Return while there is time.

        Raises
        ------
        OutOfTimeError
            When it is over.
        """
        if not self.left:
            raise OutOfTimeError(self.seconds)


def finish(requests: Sequence[Any], patience: Deadline, *, awake: bool = False) -> None:
    """Wait for requests of MPI.

    Parameters
    ----------
    requests : sequence of MPI.Request
    patience : Deadline
        How long.
    awake : bool
        Ask again at once, for measuring; otherwise sleep in between and leave the core to others.

    Raises
    ------
    OutOfTimeError
        If one of them is not done in time; their buffers must then be kept as long as the process lives.
    """
    for request in requests:
        while not request.Test():
            patience.check()
            if awake:
                os.sched_yield()
            else:
                time.sleep(DOZE_SECONDS)


def within(seconds: float, action: Callable[[], Result]) -> Result:
    """Carry out in a thread of its own what cannot be interrupted, and wait for it no longer than so many seconds.

    Returns
    -------
    object
        What `action` returned.

    Raises
    ------
    OutOfTimeError
        If it has not ended; the thread is left behind and does not keep the process alive.
    BaseException
        What `action` raised.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def carry_out() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=carry_out, name="within a time limit", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise OutOfTimeError(seconds)
    return results[0]
