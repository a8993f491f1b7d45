"""Whether a device has come to an event in a stream of its work."""

from __future__ import annotations

from typing import Any

__all__ = ["has_passed"]

SUCCESS, NOT_READY = 0, 600
"""``cudaSuccess`` and ``cudaErrorNotReady``."""


def has_passed(cupy: Any, event: Any) -> bool:
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
