"""Whether a device has come to an event in a stream of its work, and waiting until it has."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

SUCCESS, NOT_READY = 0, 600
"""``cudaSuccess`` and ``cudaErrorNotReady``."""

Progress = Callable[[], None]
"""Does what other ranks may need of this one while it waits for its device."""


def record_event(cupy: Any, stream: Any = None) -> Any:
    """An event after all that `stream`, by default the current one, was told so far."""
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream() if stream is None else stream)
    return event


def is_complete(cupy: Any, event: Any) -> bool:
    """Ask without waiting; ``Event.done`` of CuPy takes every error for "not yet", and so would be asked for ever.

    Parameters
    ----------
    cupy : module
    event : cupy.cuda.Event

    Raises
    ------
    CUDARuntimeError
        The device has failed.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (SUCCESS, NOT_READY):
        event.synchronize()  # which says what happened
    return bool(status == SUCCESS)


def wait_for(cupy: Any, event: Any, progress: Progress | None) -> None:
    """Return when the device has come to `event`.

    Parameters
    ----------
    cupy : module
    event : cupy.cuda.Event
    progress : callable or None
        Called again and again meanwhile; None where nobody needs this rank, which then leaves the waiting to CUDA.

    Raises
    ------
    CUDARuntimeError
        The device has failed.
    """
    if progress is None:
        event.synchronize()
        return
    while not is_complete(cupy, event):
        progress()
        sleep(0)  # ranks may share a core
