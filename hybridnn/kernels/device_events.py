"""CUDA events: recording, querying and waiting for them."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

SUCCESS, NOT_READY = 0, 600
"""``cudaSuccess`` and ``cudaErrorNotReady``."""

Progress = Callable[[], None]
"""Makes progress on communication with other ranks while this rank waits for its device."""


def record_event(cupy: Any, stream: Any = None) -> Any:
    """Event after all work enqueued so far on `stream`, by default the current one."""
    event = cupy.cuda.Event(disable_timing=True)
    event.record(cupy.cuda.get_current_stream() if stream is None else stream)
    return event


def is_complete(cupy: Any, event: Any) -> bool:
    """Whether `event` has completed; unlike CuPy's ``Event.done``, which is False for ever after an error.

    Raises `CUDARuntimeError` if the device has failed.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (SUCCESS, NOT_READY):
        event.synchronize()  # raises with the device's message
    return bool(status == SUCCESS)


def wait_for(cupy: Any, event: Any, progress: Progress | None) -> None:
    """Return when `event` has completed.

    Raises `CUDARuntimeError` if the device has failed.

    Parameters
    ----------
    progress : callable or None
        Called repeatedly meanwhile; None if no other rank needs this one, which then waits inside CUDA.
    """
    if progress is None:
        event.synchronize()
        return
    while not is_complete(cupy, event):
        progress()
        sleep(0)  # ranks may share a core
